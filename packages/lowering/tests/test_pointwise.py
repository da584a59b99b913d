"""Elementwise rules against eager."""

import decimal
import itertools

import pytest
import torch
from attrs import evolve

from gyrator_ir.target import Heuristics
from gyrator_lowering.builder import trace
from gyrator_testing.interp.loop import run_loop

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan "
    "asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid floor ceil trunc round frac "
    "reciprocal neg abs sign relu isnan isinf isfinite signbit square logical_not positive "
    "isposinf isneginf"
).split()
ONLY_FLOAT = {"erfinv", "frac"}


def make(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return (torch.rand(shape, dtype=torch.float64) * 1.8 - 0.9).to(dtype)
    low = 0 if not dtype.is_signed else -7
    return torch.randint(low, 8, shape).to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool], ids=str
)
@pytest.mark.parametrize("op", UNARY)
def test_unary(check, op: str, dtype: torch.dtype) -> None:
    fn = getattr(torch, op)
    x = make(dtype, 3, 5)
    try:
        fn(x)
    except RuntimeError:
        pytest.skip("eager has no such op for this type")
    loose = {"lgamma", "digamma", "erfinv"}
    check(fn, x, rtol=1e-4 if op in loose else None, atol=1e-5 if op in loose else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("op", UNARY)
def test_unary_on_special_values(check, op: str, dtype: torch.dtype) -> None:
    x = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, float("inf"), -float("inf"), float("nan")],
        dtype=dtype,
    )
    if op in ("lgamma", "digamma"):
        x = x[2:6]
    check(getattr(torch, op), x, rtol=1e-3, atol=1e-5)


BINARY = (
    "add sub mul div maximum minimum fmax fmin atan2 hypot copysign nextafter eq ne lt le gt ge "
    "bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor remainder fmod pow "
    "floor_divide xlogy logaddexp bitwise_left_shift bitwise_right_shift"
).split()
PAIRS = (
    *((d, d) for d in (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.int64),
    (torch.bfloat16, torch.float16),
    (torch.int32, torch.int64),
    (torch.uint8, torch.int8),
    (torch.bool, torch.float32),
    (torch.float64, torch.float32),
    (torch.int64, torch.bfloat16),
    (torch.bool, torch.int32),
)


@pytest.mark.parametrize("types", PAIRS, ids=lambda p: f"{p[0]}-{p[1]}".replace("torch.", ""))
@pytest.mark.parametrize("op", BINARY)
def test_binary(check, op: str, types: tuple[torch.dtype, torch.dtype]) -> None:
    fn = getattr(torch, op)
    x, y = make(types[0], 4, 1, 5), make(types[1], 3, 5)
    if op in ("remainder", "fmod", "floor_divide", "bitwise_left_shift", "bitwise_right_shift"):
        y = y.abs() + 1 if types[1] is not torch.bool else torch.ones_like(y)
    if op == "pow" and not types[1].is_floating_point:
        y = y.abs() if types[1] is not torch.bool else y
    try:
        fn(x, y)
    except (RuntimeError, NotImplementedError):
        pytest.skip("eager has no such op for these types")
    integer = not (types[0].is_floating_point or types[1].is_floating_point)
    left = (
        {
            "aten.remainder.Tensor",
            "aten.fmod.Tensor",
            "aten.pow.Tensor_Tensor",
            "aten.floor_divide.default",
            "aten.div.Tensor_mode",
        }
        if integer
        else {"aten.nextafter.default"}  # of narrow floats
    )
    check(fn, x, y, externs=tuple(left))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("scalar", [2, -1, 3, 0.5, 0.3, True], ids=str)
@pytest.mark.parametrize(
    "op",
    [
        "add",
        "sub",
        "mul",
        "div",
        "remainder",
        "fmod",
        "pow",
        "lt",
        "ge",
        "eq",
        "floor_divide",
        "rsub",
        "bitwise_and",
        "clamp_min",
    ],
)
def test_scalar(check, op: str, scalar: float, dtype: torch.dtype) -> None:
    fn = getattr(torch, op)
    x = make(dtype, 3, 4)
    if op == "pow" and dtype is torch.bool and scalar is True:
        return  # eager's result has another type than its own fake tensors say
    try:
        fn(x, scalar)
    except (RuntimeError, NotImplementedError):
        pytest.skip("eager has no such op for these types")
    check(
        lambda x: fn(x, scalar),
        x,
        externs=(
            ("aten.remainder.Scalar", "aten.fmod.Scalar", "aten.pow.Tensor_Scalar")
            if dtype is torch.bool
            else ()
        ),
    )


def test_zero_dim_tensors_do_not_promote(check) -> None:
    x, s = torch.randn(3, 4, dtype=torch.bfloat16), torch.tensor(0.1)
    check(lambda x, s: (x * s, s * x, x + s, x > s), x, s)
    check(lambda x, s: x * s, torch.arange(5), torch.tensor(2.5, dtype=torch.float64))
    check(lambda x, s: x + s, torch.arange(5, dtype=torch.int32), torch.tensor(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_alpha(check, dtype: torch.dtype) -> None:
    # Eager rounds `alpha * y` of narrow floats in the scalar tail of its loops, not in their
    # vectorised part, which is what rules follow: hence whole vectors and no broadcasting.
    x, y = make(dtype, 4, 64), make(dtype, 4, 64)
    check(
        lambda x, y: (
            torch.add(x, y, alpha=3),
            torch.sub(x, y, alpha=2),
            torch.rsub(x, y, alpha=2),
        ),
        x,
        y,
    )


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_division_modes(check, mode: str | None, dtype: torch.dtype) -> None:
    x = torch.tensor([7.0, -7, 0, 5.5, -1, float("inf"), float("nan"), 3, -0.0], dtype=dtype)
    y = torch.tensor([2.0, 2, 3, -0.5, 0, 2, 1, float("inf"), 5], dtype=dtype)
    check(lambda x, y: torch.div(x, y, rounding_mode=mode), x, y)


@pytest.mark.parametrize("divisor", [2, -3, -1, 1, 7])
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_integer_division(check, mode: str, divisor: int) -> None:
    x = torch.arange(-9, 10)
    check(
        lambda x: (torch.div(x, divisor, rounding_mode=mode), x % divisor, torch.fmod(x, divisor)),
        x,
    )


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 4, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32])
def test_pow(check, exponent: float, dtype: torch.dtype) -> None:
    x = make(dtype, 11)
    if not dtype.is_floating_point and exponent < 0:
        return
    check(lambda x: x**exponent, x)


def test_clamp(check) -> None:
    x = torch.tensor([-3.0, -1, 0, 1, 3, float("nan"), float("inf")])
    low, high = torch.full((7,), -1.5), torch.full((7,), 1.0)
    check(lambda x: (x.clamp(-1, 2), x.clamp(min=0), x.clamp(max=1), x.clamp(2, 1)), x)
    check(lambda x, a, b: (x.clamp(a, b), x.clamp(min=a), x.clamp(max=b)), x, low, high)
    check(lambda x: (x.clamp(-1, 2), x.clamp(0.5, 2.5)), torch.arange(-4, 5))
    yes, no = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    check(lambda x, y: (torch.clamp_min(x, y), torch.clamp_max(x, y)), yes, no)


def test_where_and_masked_fill(check) -> None:
    c, x, y = make(torch.bool, 3, 4), torch.randn(3, 4), torch.randn(4)
    check(
        lambda c, x, y: (
            torch.where(c, x, y),
            torch.where(c, x, 0.5),
            torch.where(c, 1.0, 2.0),
            x.masked_fill(c, float("-inf")),
            x.masked_fill(c, y[0]),
        ),
        c,
        x,
        y,
    )
    check(lambda c, x: (torch.where(c, x, 3), torch.where(c, x, 2.5)), c, torch.arange(4))
    check(lambda c, x: torch.where(c, x, 0.1), c, x.bfloat16())


ACTIVATIONS = {
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "mish": torch.nn.functional.mish,
    "softplus": torch.nn.functional.softplus,
    "elu": torch.nn.functional.elu,
    "selu": torch.nn.functional.selu,
    "celu": torch.nn.functional.celu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "hardtanh": torch.nn.functional.hardtanh,
    "relu6": torch.nn.functional.relu6,
    "hardswish": torch.nn.functional.hardswish,
    "hardsigmoid": torch.nn.functional.hardsigmoid,
    "logsigmoid": torch.nn.functional.logsigmoid,
    "softshrink": torch.nn.functional.softshrink,
    "hardshrink": torch.nn.functional.hardshrink,
    "tanhshrink": torch.nn.functional.tanhshrink,
    "softsign": torch.nn.functional.softsign,
    "threshold": lambda x: torch.threshold(x, 0.1, 2.0),
    "logit": lambda x: torch.logit(x, 0.1),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "nan_to_num": torch.nan_to_num,
    "prelu": torch.prelu,
    "glu": lambda x: torch.nn.functional.glu(x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_and_gradient(check, name: str, dtype: torch.dtype) -> None:
    fn = ACTIVATIONS[name]
    x = (
        torch.cat(
            [
                torch.randn(30, dtype=torch.float64) * 3,
                torch.tensor([0.0, -3.0, 3.0, 6.0, 25.0, -25.0]),
            ]
        )
        .reshape(6, 6)
        .to(dtype)
    )

    if name == "prelu":
        check.gradients(torch.prelu, x, torch.tensor([0.25], dtype=dtype))
    else:
        check.gradients(fn, x)


@pytest.mark.parametrize("quick", ["quick_exp2", "quick_quotients"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gelu_without_erf(check, dtype: torch.dtype, quick: str) -> None:
    """All narrow floats, against `float64`. Eager's infinities and NaN depend on the machine."""
    (target,) = check.targets.values()
    check.targets = {target.device: evolve(target, heuristics=Heuristics(**{quick: True}))}
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    grad = torch.randn(x.shape).to(dtype)
    wide = x.double()
    cdf = 0.5 * torch.special.erfc(-wide * 0.5**0.5)
    slope = cdf + wide * torch.exp(-0.5 * wide * wide) / (2 * torch.pi) ** 0.5
    aten = torch.ops.aten
    for op, args, exact in (
        (aten.gelu.default, (x,), wide * cdf),
        (aten.gelu_backward.default, (grad, x), grad.double() * slope),
    ):
        (got,) = check.results(op, *args)
        ends = ~exact.isfinite()
        wanted = exact[ends].to(dtype)
        torch.testing.assert_close(got[ends], wanted, rtol=0, atol=0, equal_nan=True)
        info = torch.finfo(dtype)
        unit = info.eps * torch.exp2(exact.abs().clamp(min=info.tiny).log2().floor())
        wrong = (got.double() - exact).abs() / unit
        accurate = ~ends & (wide > -9)
        assert wrong[accurate].max() < 0.55
        assert wrong[~ends].max() < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_mish_by_one_exponential(check, dtype: torch.dtype) -> None:
    """Relative errors of a few units; the special values are eager mode's."""
    ends = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e30, -1e30, 20.0, 20.001, 3e38]
    x = torch.cat([torch.randn(2000) * 4, torch.linspace(-60, 60, 3001), torch.tensor(ends)])
    x, grad, aten = x.to(dtype), torch.ones(len(x), dtype=dtype), torch.ops.aten
    with decimal.localcontext() as context:
        context.prec = 60
        exact = torch.tensor([_mish(v) for v in x[: -len(ends)].tolist()], dtype=torch.float64)
    value, first, second = exact.t()
    for op, args, wanted, size in (
        (aten.mish.default, (x,), value, value.abs()),
        (aten.mish_backward.default, (grad, x), first + second, first.abs() + second.abs()),
    ):
        (got,) = check.results(op, *args)
        special = slice(-len(ends), None)
        torch.testing.assert_close(got[special], op(*args)[special], equal_nan=True)
        wrong = (got[: -len(ends)].double() - wanted).abs()
        assert (wrong / size.clamp(min=1e-300)).max() < 5 * torch.finfo(dtype).eps


def _mish(x: float) -> tuple[float, float, float]:
    """Return mish and the two terms of its derivative."""
    exact = decimal.Decimal(x)
    e = exact.exp()
    n = e * (e + 2)
    slope = exact * 4 * e * (e + 1) / (n + 2) ** 2
    return float(exact * n / (n + 2)), float(n / (n + 2)), float(slope)


def test_gelu_of_float32_without_erf(check) -> None:
    """Errors below those of eager mode, and far below where its terms cancel."""
    (target,) = check.targets.values()
    check.targets = {target.device: evolve(target, heuristics=Heuristics(quick_quotients=True))}
    ends = [0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 14.1, -14.1, torch.inf, -torch.inf, torch.nan]
    x = torch.cat([torch.randn(1 << 16) * 2, torch.linspace(-15, 15, 9001), torch.tensor(ends)])
    wide, aten = x.double(), torch.ops.aten
    cdf = 0.5 * torch.special.erfc(-wide * 0.5**0.5)
    slope = cdf + wide * torch.exp(-0.5 * wide * wide) / (2 * torch.pi) ** 0.5
    for op, args, exact in (
        (aten.gelu.default, (x,), wide * cdf),
        (aten.gelu_backward.default, (torch.ones_like(x), x), slope),
    ):
        (got,), eager = check.results(op, *args), op(*args)
        at_infinity = got[-3].isnan() if op is aten.gelu_backward.default else got[-3] > 0
        assert at_infinity and not got[-3:].isfinite().any() and got[-2:].isnan().all()
        wrong = (got.double() - exact).abs()
        assert (wrong / wide.abs().clamp(min=1))[:-3].max() < 2e-7
        low = (wide > -4.7) & (wide < -1)
        assert (wrong / exact.abs())[low].max() < 3e-6
        assert (eager.double() / exact - 1).abs()[low].max() > 1e-4


@pytest.mark.parametrize(
    ("dtype", "quick"),
    [(torch.float32, "quick_exp2"), (torch.float64, "quick_exp2"),
     (torch.float64, "quick_quotients")],
    ids=str,
)  # fmt: skip
def test_gelu_of_wide_floats_is_by_erf(check, dtype: torch.dtype, quick: str) -> None:
    (target,) = check.targets.values()
    check.targets = {target.device: evolve(target, heuristics=Heuristics(**{quick: True}))}
    program = check(torch.nn.functional.gelu, torch.randn(40, dtype=dtype))
    (operation,) = program.operations
    assert "erf" in {getattr(s, "op", "") for s in operation.body}


@pytest.mark.parametrize(
    "layout", ["transposed", "expanded", "sliced", "zero_dim", "empty", "ones"]
)
def test_layouts(check, layout: str) -> None:
    x = {
        "transposed": torch.randn(4, 6).t(),
        "expanded": torch.randn(4, 1).expand(4, 6),
        "sliced": torch.randn(8, 9)[::2, 1::3],
        "zero_dim": torch.randn(()),
        "empty": torch.randn(0, 4),
        "ones": torch.randn(1, 4, 1),
    }[layout]
    check(lambda x: (x + 1, x.exp(), x * x), x)


def test_channels_last(check) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: (x + 1, x.relu(), x.bfloat16()), x)


def test_symbolic_sizes(check) -> None:
    check(
        lambda x, y: (x + y).relu() * 2,
        torch.randn(3, 7),
        torch.randn(7),
        other=(torch.randn(5, 2), torch.randn(2)),
    )


def test_sizes_as_numbers(check) -> None:
    check(
        lambda x: (x * x.shape[0], x / x.shape[1] ** 0.5, x + x.numel()),
        torch.randn(3, 7),
        other=(torch.randn(5, 4),),
    )


@pytest.mark.parametrize(
    "dtypes",
    list(
        itertools.product(
            (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool),
            repeat=2,
        )
    ),
    ids=str,
)
def test_conversion(check, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    check(lambda x: x.to(dtypes[1]) + 0, make(dtypes[0], 3, 4))


def test_addcmul_addcdiv_lerp(check) -> None:
    x, y, z = (torch.rand(3, 4) + 0.5 for _ in range(3))
    check(
        lambda x, y, z: (
            torch.addcmul(x, y, z, value=0.5),
            torch.addcdiv(x, y, z, value=2),
            torch.lerp(x, y, 0.3),
            torch.lerp(x, y, z),
            torch.lerp(x, y, 0.8),
        ),
        x,
        y,
        z,
    )


def test_the_next_narrow_float(check) -> None:
    x = torch.tensor([1.0, -1.0, 0.0, float("inf"), -float("inf"), 3.5]).bfloat16()
    y = torch.tensor([2.0, 2.0, -2.0, 0.0, 0.0, 3.5]).bfloat16()
    check(torch.nextafter, x, y, externs=("aten.nextafter.default",), rtol=0, atol=0)
    check(torch.nextafter, x.float(), y.float(), rtol=0, atol=0)


@pytest.mark.parametrize("saturates", [False, True])
def test_overflow_of_8_bit_floats_is_as_in_eager(check, monkeypatch, saturates) -> None:
    """torch 2.11 converts it to NaN, later versions to the largest number."""
    monkeypatch.setattr(trace, "SATURATES", saturates)
    x = torch.tensor([448.0, -464.0, 464.5, 1e9, -torch.inf, torch.nan])
    program = check.lower(lambda x: x.to(torch.float8_e4m3fn).to(torch.float32), (x,))
    (got,) = run_loop(program, [x.numpy()])
    large = 448.0 if saturates else torch.nan
    want = torch.tensor([448.0, -448.0, large, large, -large, torch.nan])
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("op", ["floor_divide", "remainder", "fmod"])
def test_devices_without_division_errors_divide_in_kernels(check, op: str, dtype) -> None:
    (target,) = check.targets.values()
    able = evolve(target.capabilities, unchecked_division=True)
    check.targets = {target.device: evolve(target, capabilities=able)}
    x, y = (torch.randint(-100, 100, (40,)).to(dtype) for _ in "xy")
    y = torch.where(y == 0, 7, y).to(dtype)
    check(getattr(torch, op), x, y)
    check(lambda x, y: torch.div(x, y, rounding_mode="trunc"), x, y)
    check(lambda x, y: getattr(torch, op)(x, y[0]), x, y)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("op", ["floor_divide", "remainder", "fmod", "div"])
def test_kernels_report_integer_divisors_of_zero(check, op: str, dtype) -> None:
    (target,) = check.targets.values()
    able = evolve(target.capabilities, unchecked_division=False)
    check.targets = {target.device: evolve(target, capabilities=able)}
    options = {"rounding_mode": "trunc"} if op == "div" else {}
    x, y = (torch.randint(-100, 100, (4, 10)).to(dtype) for _ in "xy")
    y = torch.where(y == 0, 7, y).to(dtype)
    check(lambda x, y: getattr(torch, op)(x, y, **options), x, y)
    check(lambda x, y: getattr(torch, op)(x.T, y[0, :4], **options), x, y)
    program = check.lower(lambda x, y: getattr(torch, op)(x, y, **options), (x, y))
    y[3, 9] = 0
    with pytest.raises(RuntimeError):
        run_loop(program, [x.numpy(), y.numpy()])


@pytest.mark.parametrize("divisor", [255, 0.25, 3.0, -1e-30, 0.0, 1e39])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_division_by_constants_uses_reciprocals_as_aten_does(check, dtype, divisor) -> None:
    (target,) = check.targets.values()
    able = evolve(target.capabilities, reciprocals=True)
    check.targets = {target.device: evolve(target, capabilities=able)}
    x = torch.randn(50).mul(99).to(dtype)
    program = check.lower(lambda x: x / divisor, (x,))
    (got,) = run_loop(program, [x.numpy()])
    kind = (x / divisor).dtype
    want = x.to(kind) * torch.tensor(divisor, dtype=kind).reciprocal()
    if divisor and (abs(divisor) < 1e38 or kind is torch.float64):
        torch.testing.assert_close(torch.from_numpy(got), want, rtol=0, atol=0)
    else:
        torch.testing.assert_close(
            torch.from_numpy(got), x / divisor, rtol=0, atol=0, equal_nan=True
        )


def test_booleans_are_divided_by_aten(check) -> None:
    (target,) = check.targets.values()
    able = evolve(target.capabilities, unchecked_division=True)
    check.targets = {target.device: evolve(target, capabilities=able)}
    flags = torch.tensor([True, False]), torch.tensor([True, True])
    for op, called in ((torch.floor_divide, "floor_divide.default"), (torch.fmod, "fmod.Tensor")):
        try:
            op(*flags)
        except RuntimeError:
            continue
        check(op, *flags, externs=(f"aten.{called}",))
