"""`quantized-calls`: integer products and convolutions give the results of the float ones."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the ops
from attrs import field, frozen

from gyrator_ir.target import Capabilities, Target
from gyrator_lowering.folding import ASSUMED, FROZEN, ZEROS
from gyrator_lowering.freezing import freeze
from gyrator_lowering.fx_passes import Activation, Convolution, Product, QuantizedCalls

aten = torch.ops.aten
Q = torch.ops.quantized_decomposed
BOUNDS = {torch.uint8: (0, 255), torch.int8: (-128, 127)}
TARGETS = {
    "cpu": Target(
        device="cpu",
        arch="plain",
        kernel_backend="interpreter",
        capabilities=Capabilities(
            dtypes=frozenset(), libraries=frozenset({"mkl", "onednn", "flash_attention"})
        ),
    )
}
pytestmark = pytest.mark.skipif(
    not torch.cpu._is_vnni_supported(), reason="this processor sums no products of bytes"
)


@frozen
class Always:
    """Always chooses integers, and records the queries."""

    gains: bool = True
    queries: list[Any] = field(factory=list)

    def integers(self, call: Product | Convolution) -> bool:
        self.queries.append(call)
        return self.gains

    def allows(self, device: str, after: Activation) -> bool:
        return True


def transformed(gm: Any, choice: Any, known: Sequence[int], zeros: Sequence[int]) -> bool:
    """Run the pass; the inputs at `known` are constants, and those at `zeros` are zero."""
    for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        node.meta[FROZEN], node.meta[ZEROS] = place in known, place in zeros
    changed = QuantizedCalls.of(TARGETS, choice).run(gm)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()
    return changed


def names(gm: Any) -> list[str]:
    calls = [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]
    return [name for name in calls if name.endswith((".mm.default", ".addmm.default"))
            or "convolution" in name or "pointwise" in name]  # fmt: skip


def weights(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a quantised weight, its scales and its zero points."""
    w = torch.randint(-128, 128, shape, dtype=torch.int8)
    return w, torch.rand(shape[0]) * 0.02 + 1e-3, torch.zeros(shape[0], dtype=torch.int64)


def near(actual: Any, expected: Any, steps: int = 1) -> None:
    """Assert that results agree; integers may differ in the last digit."""
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        if a.dtype.is_floating_point:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        else:
            apart = (a.int() - b.int()).abs()
            assert apart.max() <= steps and (apart > 0).float().mean() < 0.01


def linear(dtype: torch.dtype, zero: int, after: Callable[..., Any], out: Any) -> Any:
    """Return a quantised layer with a bias, a function, and `out`: the result's zero point and
    dtype."""
    low, high = BOUNDS[dtype]

    def run(x, w, scale, zeros, bias):
        x = Q.dequantize_per_tensor(x, 0.03, zero, low, high, dtype)
        w = Q.dequantize_per_channel(w, scale, zeros, 0, -128, 127, torch.int8)
        if bias is None:
            y = after(torch.mm(x.view(-1, x.shape[-1]), w.t()))
        else:
            y = after(torch.addmm(bias, x.view(-1, x.shape[-1]), w.t()))
        if out is not None:
            y = Q.quantize_per_tensor(y, 0.7, *out)
        return (y,)

    return run


U8, S8 = (100, 0, 255, torch.uint8), (-3, -128, 127, torch.int8)
LAYERS = {
    "lowest": (torch.uint8, 0, torch.relu, (0, 0, 255, torch.uint8), True),
    "highest": (torch.uint8, 255, aten.gelu.default, U8, True),
    "signed": (torch.int8, -128, aten.hardswish.default, S8, False),
    "signed, highest": (torch.int8, 127, lambda x: x, (127, -128, 127, torch.int8), True),
    "floats": (torch.uint8, 7, torch.relu, None, True),
    "clamped": (torch.uint8, 7, lambda x: aten.hardtanh(x, -2.0, 30.0), U8, False),
    "other range": (torch.uint8, 7, torch.relu, (0, 0, 127, torch.uint8), True),
    "viewed": (torch.uint8, 7, lambda x: x.view(2, -1, x.shape[-1]).relu(), U8, True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(check: Any, name: str) -> None:
    dtype, zero, after, out, biased = LAYERS[name]
    low, high = BOUNDS[dtype]
    x = torch.randint(low, high + 1, (2, 5, 96)).to(dtype)
    inputs = x, *weights(40, 96), torch.randn(40) if biased else None
    run = linear(dtype, zero, after, out)
    gm, choice = check.trace(run, inputs), Always()
    assert transformed(gm, choice, (1, 2, 3), (3,))
    near(gm(*inputs), run(*inputs))
    assert names(gm) == ["onednn.qlinear_pointwise.default"]
    assert choice.queries == [Product("cpu", 10, 96, 40, dtype=dtype)]
    whole = out is not None and "other" not in name
    text = gm.print_readable(print_output=False)
    assert (".quantize_per_tensor" in text) is (out is not None and not whole)
    assert ("relu.default" in text) is (not whole and after is torch.relu)
    points = [n for n in gm.graph.find_nodes(op="placeholder") if n.meta.get(ASSUMED)]
    assert [n.name for n in points] == ["arg3_1"]


WINDOWS = {
    "plain": ((2, 8, 9, 7), (12, 8, 3, 3), [1, 1], [1, 1], [1, 1], 1),
    "strides": ((2, 8, 9, 7), (12, 8, 3, 2), [2, 1], [2, 1], [1, 1], 1),
    "dilated": ((1, 8, 9, 9), (12, 8, 3, 3), [1, 1], [2, 2], [2, 2], 1),
    "groups": ((2, 8, 9, 7), (12, 4, 3, 3), [1, 1], [1, 1], [1, 1], 2),
    "each alone": ((2, 8, 9, 7), (8, 1, 5, 5), [1, 1], [2, 2], [1, 1], 8),
    "points": ((2, 8, 5, 5), (12, 8, 1, 1), [1, 1], [0, 0], [1, 1], 1),
    "lines": ((2, 8, 19), (12, 8, 3), [2], [1], [1], 1),
    "one channel": ((3, 1, 6, 6), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], 1),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("zero", [0, 131, 255])
@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions(check: Any, name: str, zero: int, channels_last: bool) -> None:
    """Padding is with zeros, unlike zero points."""
    shape, of, stride, padding, dilation, groups = WINDOWS[name]
    whole, biased = zero != 131, zero != 255

    def run(x, w, scale, bias):
        x = Q.dequantize_per_tensor(x, 0.03, zero, 0, 255, torch.uint8)
        w = Q.dequantize_per_channel(w, scale, None, 0, -128, 127, torch.int8)
        window = (stride, padding, dilation, False, [0] * len(stride), groups)
        y = torch.relu(torch.convolution(x, w, bias if biased else None, *window))
        return (Q.quantize_per_tensor(y, 0.31, 0, 0, 255, torch.uint8) if whole else y * 2,)

    x = torch.randint(0, 256, shape, dtype=torch.uint8)
    if channels_last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    w, scale, _ = weights(*of)
    inputs = x, w, scale, torch.randn(of[0])
    gm, choice = check.trace(run, inputs), Always()
    assert transformed(gm, choice, (1, 2), ())
    near(gm(*inputs), run(*inputs))
    assert names(gm) == ["onednn.qconv_pointwise.default"]
    assert isinstance(choice.queries[0], Convolution) and choice.queries[0].images == shape


def test_per_tensor_and_dynamic_scales(check: Any) -> None:
    """A single scale for the weight; for images a scale that is computed at run time."""

    def run(x, w, bias):
        scale, zero = Q.choose_qparams.tensor(x, 0, 255, 1e-5, torch.uint8)
        x = Q.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        x = Q.dequantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        w = Q.dequantize_per_tensor(w, 0.013, 0, -127, 127, torch.int8)
        return (torch.addmm(bias, x, w.t()),)

    inputs = torch.randn(6, 64), weights(24, 64)[0], torch.randn(24)
    gm = check.trace(run, inputs)
    assert transformed(gm, Always(), (1,), ())
    assert names(gm) == ["onednn.qlinear_pointwise.tensor"]
    near(gm(*inputs), run(*inputs))
    near(gm(3 + inputs[0], *inputs[1:]), run(3 + inputs[0], *inputs[1:]))


def test_images_with_a_dynamic_scale(check: Any) -> None:
    def run(x, w):
        scale, zero = Q.choose_qparams.tensor(x, 0, 255, 1e-5, torch.uint8)
        x = Q.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        x = Q.dequantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        w = Q.dequantize_per_tensor(w, 0.013, 0, -127, 127, torch.int8)
        return (torch.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),)

    inputs = torch.randn(1, 8, 6, 6), weights(24, 8, 3, 3)[0]
    gm = check.trace(run, inputs)
    assert transformed(gm, Always(), (1,), ())
    for x in (inputs[0], inputs[0].abs(), 4 - inputs[0].abs()):
        near(gm(x, inputs[1]), run(x, inputs[1]))


def test_unsupported_calls_stay(check: Any) -> None:
    """Weights that are not known or not symmetric, and results that other nodes read in floats
    too."""
    inputs = torch.randint(0, 256, (5, 96), dtype=torch.uint8), *weights(40, 96), torch.randn(40)
    run = linear(torch.uint8, 3, torch.relu, U8)
    for choice, known, zeros in (
        (Always(), (1, 2), (3,)),
        (Always(), (1, 2, 3), ()),
        (Always(gains=False), (1, 2, 3), (3,)),
        (None, (1, 2, 3), (3,)),
    ):
        assert not transformed(check.trace(run, inputs), choice, known, zeros)

    def apart(x, w, scale, zeros, bias):
        (y,) = linear(torch.uint8, 3, torch.relu, None)(x, w, scale, zeros, bias)
        return y, Q.quantize_per_tensor(y, 0.7, *U8)

    gm = check.trace(apart, inputs)
    assert transformed(gm, Always(), (1, 2, 3), (3,))
    near(gm(*inputs), apart(*inputs))
    outside = linear(torch.uint8, 300, torch.relu, U8)
    assert not transformed(check.trace(outside, inputs), Always(), (1, 2, 3), (3,))
    empty = inputs[0][:0], *inputs[1:]
    assert not transformed(check.trace(run, empty), Always(), (1, 2, 3), (3,))
    along = check.trace(
        lambda x, w, s, z: (
            Q.dequantize_per_tensor(x, 0.1, 0, 0, 255, torch.uint8)
            @ Q.dequantize_per_channel(w, s, z, 1, -128, 127, torch.int8).t(),
        ),
        (inputs[0], inputs[1], torch.rand(96), torch.zeros(96, dtype=torch.int64)),
    )
    assert not transformed(along, Always(), (1, 2, 3), (3,))


def test_constants_depend_on_zero_points(check: Any) -> None:
    """A frozen graph lists the inputs that must be zero."""
    inputs = torch.randint(0, 256, (5, 96), dtype=torch.uint8), *weights(40, 96), torch.randn(40)
    gm = check.trace(linear(torch.uint8, 3, torch.relu, U8), inputs)
    assert transformed(gm, Always(), (1, 2, 3), (3,))
    frozen = freeze(gm)
    assert frozen is not None
    folding, rest = frozen
    assert folding.zeros == (3,) and folding.sources == (1, 3)
    assert folding == type(folding).from_json(folding.as_json())
    constants = folding.constants([inputs[k] for k in folding.sources])
    results = rest(*(inputs[k] for k in folding.remaining), *constants)
    near(results, gm(*inputs), 0)
