"""`gelu` of `f32` and its gradient with the bits of oneDNN, which ATen calls on CPUs
(`numerics="bitwise"`).

oneDNN computes the error function by Abramowitz and Stegun's formula, but `gelu` with AVX-512 by a
polynomial for each interval.
"""

import math
from math import prod

from gyrator_ir.expr import contiguous_strides
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.bits.aten_formulas import of_f32, power_of_two, selected
from gyrator_lowering.rules.bits.aten_sums import integers
from gyrator_lowering.rules.pointwise import Scalar, polynomial
from gyrator_lowering.table import FallbackToAten, Rule

_MOST = 4096
"""The most elements for which coefficients that kernels select take less time than a call."""


def gelu(lanes: int) -> Rule:
    """Return the rule of `aten.gelu` by the error function, for vectors of so many elements."""
    has_intervals = lanes == 16
    formula: Scalar = _by_intervals if has_intervals else _by_one_formula

    def rule(b: LoopBuilder, x: TensorValue, *, approximate: str = "none") -> TensorValue:
        _check(x, approximate)
        if has_intervals and prod(integers(x.shape)) > _MOST:
            raise FallbackToAten  # oneDNN finds coefficients by one instruction
        return of_f32(b, formula, x)

    return rule


def gelu_backward(
    b: LoopBuilder, grad: TensorValue, x: TensorValue, *, approximate: str = "none"
) -> TensorValue:
    """`aten.gelu_backward` by the error function."""
    _check(x, approximate)

    def fn(ops: Tracer, g: Value, v: Value) -> Value:
        erf, exp = _erf_of_root(ops, v)
        slope = v * _ROOT_HALF * _ROOT_OF_PI * exp
        return g * ops.fma(erf, 0.5, 0.5 + slope)

    return of_f32(b, fn, grad, x)


def _check(x: TensorValue, approximate: str) -> None:
    """Raise FallbackToAten unless ATen calls oneDNN."""
    if prod(integers(x.shape)) < 2 or approximate != "none":
        raise FallbackToAten
    if x.strides != contiguous_strides(x.shape):
        raise FallbackToAten


def _by_one_formula(ops: Tracer, x: Value) -> Value:
    half = x * 0.5
    return ops.fma(_erf_of_root(ops, x)[0], half, half)


def _by_intervals(ops: Tracer, x: Value) -> Value:
    size = ops.abs(x)
    number = ops.shr(ops.bitcast(size, DType.I32) - _SECOND_INTERVAL, _INTERVAL_BITS) + 1
    number = ops.where(ops.gt(size, _LAST), len(_INTERVALS) - 1, ops.maximum(number, 0))
    # If `x` is NaN, so is the result, whatever the coefficients.
    coefficients = [
        selected(ops, number, [ops.const(c, DType.F32) for c in column])
        for column in zip(*_INTERVALS, strict=True)
    ]
    erf = coefficients[-1]
    for c in coefficients[-2::-1]:
        erf = ops.fma(erf, size, c)
    return x * (ops.where(ops.signbit(x), -erf, erf) + 1.0) * 0.5


def _bits(word: int) -> float:
    """Return the `f32` with these bits."""
    sign, exponent, fraction = word >> 31, word >> 23 & 0xFF, word & 0x7FFFFF
    return math.ldexp((-1) ** sign * (0x800000 + fraction), exponent - 150)


_INTERVAL_BITS = 21
"""The bits of a number that do not decide on its interval: but two of the fraction."""
_SECOND_INTERVAL = 0x3E200001
"""The bits of the second interval's first number, just above 0.15625."""
_LAST = _bits(0x40B15CEE)
"""The end of the last interval, about 5.5426."""
_INTERVALS = (
    *(
        tuple(_bits(int(word, 16)) for word in row.split())
        for row in """\
        32827792 3f4c421f 3735e4cf be084570 39f097a3 3c9b6050
        3381cc0c 3f4c4207 37f2ff89 be08639b 3a5845dc 3c978d11
        34523d4a 3f4c41cb 388c23be be089837 3ab1fa35 3c92e850
        351ac44d 3f4c413b 3917535c be08f409 3b0cefb8 3c8d058b
        35f36d88 3f4c3fad 39ab2ab0 be09ab95 3b653ab6 3c848454
        36ee8229 3f4c3a2f 3a60fadb be0b66d0 3bcae527 3c6cd623
        37b8a3bb 3f4c2d40 3af9b960 be0e400a 3c221712 3c4c824b
        3867a213 3f4c146a 3b6e5491 be124df8 3c6c5840 3c2a7935
        3940033b 3f4bc341 3c0a4ec5 be1bde02 3cc0a703 3be0b390
        3a2a5a1d 3f4ad08c 3ca5aa8c be2f19c9 3d1dcc19 3b0651ac
        3ae35863 3f48f8cf 3d2138d9 be4931bf 3d63656d bb232f53
        3b7828f2 3f45fac7 3d8737d4 be685fbc 3d955907 bbd42fa0
        3c08b14b 3f404e07 3ddfb660 be89c95f 3dbf9910 bc2c5366
        3c515ed3 3f3b980f 3e0f27ab be96cbca 3dd53f69 bc492c9e
        bb503236 3f48dff3 3d94004b be8044aa 3db7dcef bc2a7aa6
        bd8d8e5e 3f78b21b be0efdeb be0550f2 3d639ebe bbd55d04
        be8abcd9 3fbb0704 bf1d96c3 3dcfd6a1 ba6ede48 ba823a76
        bf0c19a2 40019c32 bf89db58 3e94c826 bd22be69 3b102aa8
        beccb328 3fe536d6 bf6d9897 3e79345f bd041cf1 3ae25a7e
        3e176ced 3f81331e bef69fb8 3decec91 bc64f5ab 3a31f792
        3f470d99 3e6c8684 bdc4f8a8 3ca46568 bb097a32 38b84375
        3f7abb28 3c98f936 bbde6422 3aa1e00a b8ebf380 3689bb5a
        """.splitlines()[:-1]
    ),
    (1.0, 0.0, 0.0, 0.0, 0.0, 0.0),  # which gives NaN at infinity
)  # fmt: skip
"""By interval: the coefficients of the error function of `x / sqrt(2)`, the constant first."""

_ROOT_HALF = _bits(0x3F3504F3)
_ROOT_OF_PI = _bits(0x3F106EBA)
"""1 / sqrt(pi)."""
_ERF_SLOPE = _bits(0x3EA7BA05)
_ERF = tuple(map(_bits, (0x3F87DC22, 0xBFBA00E3, 0x3FB5F0E3, 0xBE91A98E, 0x3E827906)))
_EXP_RANGE = (_bits(0xC2AEAC50), _bits(0x42B17218))
_EXP = tuple(map(_bits, (0x3C07CFCE, 0x3D2B9D0D, 0x3E2AAD40, 0x3EFFFEE3, 0x3F7FFFFB, 0x3F800000)))
_EXP_LOG2_E = _bits(0x3FB8AA3B)
_EXP_LN2 = _bits(0x3F317218)


def _erf_of_root(ops: Tracer, x: Value) -> tuple[Value, Value]:
    """Return `erf(x / sqrt(2))` and `exp(-x * x / 2)` as oneDNN computes them (Abramowitz and
    Stegun)."""
    root = x * _ROOT_HALF
    t = 1.0 / ops.fma(ops.abs(root), _ERF_SLOPE, 1.0)
    exp = _onednn_exp(ops, -(root * root))
    erf = ops.fma(-exp * t, polynomial(ops, t, _ERF), 1.0)
    return ops.where(ops.signbit(x), -erf, erf), exp


def _onednn_exp(ops: Tracer, x: Value) -> Value:
    low, high = _EXP_RANGE
    # As x86's instructions, these return the limit for NaN.
    within = ops.where(ops.lt(x, high), x, high)
    within = ops.where(ops.gt(within, low), within, low)
    n = ops.floor(within * _EXP_LOG2_E + 0.5)
    r = ops.fma(-n, _EXP_LN2, within)
    scale = power_of_two(ops, ops.cast(n - 1.0, DType.I32))
    scale = ops.where(ops.lt(x, low), 0.0, scale)
    return polynomial(ops, r, _EXP) * scale * 2.0
