"""Quantisation, with eager's exact bits."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the ops

Q = torch.ops.quantized_decomposed
BITS = {"rtol": 0.0, "atol": 0.0}
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def values(*shape: int) -> torch.Tensor:
    """Return numbers of which many are halfway between two quantised ones."""
    return torch.cat([torch.randn(shape) * 3, torch.randint(-300, 300, shape) * 0.025])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_per_tensor(check, dtype: torch.dtype) -> None:
    def there(x, scale, zero):
        bounds = torch.tensor(-128), torch.tensor(127)
        return (
            Q.quantize_per_tensor(x, 0.05, 3, 0, 255, torch.uint8),
            Q.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8),
            Q.quantize_per_tensor.tensor2(x, scale, zero, *bounds, torch.int8),
        )

    scale, zero = torch.tensor([0.07]), torch.tensor([-3])
    for x in (values(3, 5).to(dtype), values(2, 8).to(dtype)[:, ::2].t(), values(0, 3).to(dtype)):
        check(there, x, scale, zero, **BITS)
        check(there, x, scale.double()[0], zero.int()[0], **BITS)
    check(there, values(3, 5), scale, zero, other=(values(1, 4), scale, zero), **BITS)

    def back(q, scale, zero):
        return (
            Q.dequantize_per_tensor(q, 0.0531, 3, 0, 255, torch.uint8),
            Q.dequantize_per_tensor(q, 0.0531, 259, 0, 255, torch.uint8, out_dtype=dtype),
            Q.dequantize_per_tensor.tensor(q, scale, zero, 0, 255, torch.uint8, out_dtype=dtype),
        )

    q = torch.randint(0, 256, (4, 6), dtype=torch.uint8)
    check(back, q, scale, zero, **BITS)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("zeros", [torch.int64, torch.int32, torch.float32], ids=str)
def test_per_channel(check, kind: torch.dtype, zeros: torch.dtype) -> None:
    scale, zero = torch.rand(6).to(kind) + 0.01, torch.randint(-9, 9, (6,)).to(zeros)
    q = torch.randint(-128, 128, (6, 5), dtype=torch.int8)
    for x in (values(3, 5), values(3, 5).bfloat16(), values(3, 10)[:, ::2]):
        check(
            lambda x, s, z: Q.quantize_per_channel(x, s, z, 0, -128, 127, torch.int8),
            x, scale, zero, **BITS,
        )  # fmt: skip

    def back(q, s, z):
        return (
            Q.dequantize_per_channel(q, s, z, 0, -128, 127, torch.int8),
            Q.dequantize_per_channel(q, s, None, 0, -128, 127, torch.int8),
            Q.dequantize_per_channel(
                q.t(), s, z, 1, -128, 127, torch.int8, out_dtype=torch.bfloat16
            ),
        )

    check(back, q, scale, zero, strides=False, **BITS)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_per_token_and_group(check, dtype: torch.dtype) -> None:
    x, q = values(2, 6).to(dtype), torch.randint(-128, 128, (4, 6), dtype=torch.int8)
    scale, zero = torch.rand(4, 1, dtype=torch.float64), torch.randint(-9, 9, (4, 1))

    def f(x, q, s, z):
        return (
            Q.quantize_per_token(x, s + 0.01, z, -128, 127, torch.int8),
            Q.quantize_per_token(x, (s + 0.01).to(dtype), z, -128, 127, torch.int8),
            Q.dequantize_per_token(q, s, z, -128, 127, torch.int8, dtype),
        )

    check(f, x, q, scale, zero, **BITS)
    check(
        lambda q, s, z: Q.dequantize_per_channel_group(q, s, z, -8, 7, torch.int8, 3, dtype),
        q, torch.rand(4, 2), torch.randint(-3, 3, (4, 2), dtype=torch.int32), **BITS,
    )  # fmt: skip


def test_scales_of_whole_tensors(check) -> None:
    def f(x):
        return (
            *Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8),
            *Q.choose_qparams.tensor(x, 0, 255, 1.2e-7, torch.uint8),
        )

    for x in (values(2, 6), values(3, 8)[:, ::2], values(4, 1).abs(), torch.zeros(2, 3)):
        check(f, x, **BITS)
    check(f, values(3, 5), other=(values(1, 2),), **BITS)


def test_scales_of_tokens(check) -> None:
    for x in (
        values(2, 6),
        values(3, 1),
        torch.zeros(2, 3),
        values(2, 6).abs(),
        -values(2, 6).abs(),
    ):
        check(lambda x: Q.choose_qparams_per_token_asymmetric(x, torch.int8), x, **BITS)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_scales_of_tokens_have_the_dtype_of_eager(check, dtype: torch.dtype) -> None:
    def f(x):
        scales, zeros = Q.choose_qparams_per_token(x, torch.int8)
        return scales, zeros, x / scales

    for x in (values(2, 6), values(3, 1), torch.zeros(2, 3)):
        check(f, x.to(dtype), **BITS)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_fake_quantization_and_its_gradient(check, dtype: torch.dtype) -> None:
    x = values(3, 5).to(dtype)
    x[0, 0], x[0, 1], x[0, 2] = torch.inf, -torch.inf, torch.nan
    scale, zero = torch.tensor([0.07]), torch.tensor([-3], dtype=torch.int32)

    def f(x, scale, zero):
        return (
            torch.fake_quantize_per_tensor_affine(x, 0.05, 3, 0, 255),
            torch.fake_quantize_per_tensor_affine(x, scale.detach(), zero, -128, 127),
        )

    check.gradients(f, x, scale, zero, **BITS)
    check(f, x.t(), scale, zero, **BITS)
    check(f, x[:0], scale, zero, **BITS)

    def switched(x, scale, zero, on):
        return torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            x, scale, zero, on, -128, 127
        )

    for on in (0, 1):
        check(switched, x, scale, zero, torch.tensor([on]), **BITS)

    def channels(x, scales, zeros):
        return torch.fake_quantize_per_channel_affine(x, scales.detach(), zeros, 0, -128, 127)

    scales, zeros = torch.rand(6) + 0.01, torch.randint(-9, 9, (6,), dtype=torch.int32)
    check.gradients(channels, x, scales, zeros, **BITS)
