"""Every row of the op table against the reference interpreter."""

import numpy as np
import pytest
from triton_build import I0, I64, kernel, outer
from triton_harness import NUMPY, Library

from gyrator_codegen_triton.ops import EMITTERS
from gyrator_ir.loop.body import Let, Load, Store
from gyrator_ir.loop.ops import OPS, Numerics, Typing, result_dtype
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import cast
from gyrator_testing.interp.ops import apply

N = 67
TYPES = tuple(NUMPY)


def signatures(op):
    """Operand types and result type of each use of an op that the table allows."""
    row = OPS[op]
    for t in TYPES:
        match row.typing:
            case Typing.SAME:
                uses = [((t,) * row.arity, t)]
            case Typing.COMPARE:
                uses = [((t, t), DType.BOOL)]
            case Typing.SELECT:
                uses = [((DType.BOOL, t, t), t)]
            case Typing.CAST | Typing.BITCAST:
                uses = [((t,), other) for other in TYPES]
            case Typing.PREDICATE:
                uses = [((t,), DType.BOOL)]
            case Typing.EXPONENT:
                uses = [((t, DType.I32), t)]
            case Typing.RANDOM:
                result = DType.I64 if op == "randint" else DType.F32
                uses = [((I64,) * row.arity, result)] if t is I64 else []
        for operands, result in uses:
            if result_dtype(op, operands, result) is None:
                yield operands, result


def op_kernel(op, number, operands, result):
    body = [Load(f"a{k}", f"x{k}", I0) for k in range(len(operands))]
    body.append(Let("b", op, tuple(f"a{k}" for k in range(len(operands))), result))
    body.append(Store("y", I0, "b"))
    types = {f"x{k}": t for k, t in enumerate(operands)} | {"y": result}
    return kernel(f"{op}_{number}", [(I0, N)], [], [outer(*body)], types)


USES = {f"{op}_{k}": (op, *use) for op in OPS for k, use in enumerate(signatures(op))}


@pytest.fixture(scope="module")
def library(interpreter, text_folder):
    kernels = [op_kernel(op, name.rpartition("_")[2], a, r) for name, (op, a, r) in USES.items()]
    made = Library(kernels, interpreter, text_folder, unit_statements=400)
    assert not made.refused
    return made


def test_every_row_has_an_emitter():
    assert set(EMITTERS) == set(OPS)


def sample(op, k, dtype, result, rng):
    """Return operands that the op is defined on."""
    if op in ("rand", "randn", "randint"):
        if k == 0:
            x = np.full(N, 1234567890123)
        else:
            x = rng.integers(0, 1 << 40, N) if k == 1 else np.full(N, (0, 0, -7, 1 << 40)[k])
    elif dtype is DType.BOOL:
        x = rng.random(N) < 0.5
    elif dtype.is_int:
        x = _integers(op, k, dtype, rng)
    else:
        x = _floats(op, k, dtype, result, rng)
    x = cast(np.asarray(x), dtype) if np.asarray(x).dtype != NUMPY[dtype] else x
    return np.asarray(x, NUMPY[dtype])


def _integers(op, k, dtype, rng):
    info = np.iinfo(NUMPY[dtype])
    if op in ("shl", "shr") and k == 1:
        low = -3 if info.min < 0 else 0
        return rng.integers(low, 8 * dtype.size + 3, N).astype(NUMPY[dtype])
    if op == "ldexp":
        return rng.integers(-160, 160, N).astype(NUMPY[dtype])
    x = rng.integers(info.min, info.max, N, NUMPY[dtype], endpoint=True)
    small = rng.integers(max(info.min, -20), 20, N).astype(NUMPY[dtype])
    x = np.where(rng.random(N) < 0.5, x, small)
    x[:2] = info.min, info.max
    if op in ("floordiv", "truncdiv", "mod", "rem") and k == 1:
        x[(x == 0) | (x == -1 if info.min < 0 else False)] = 3
    return x


def _floats(op, k, dtype, result, rng):
    x = rng.standard_normal(N) * 10.0 ** rng.integers(-4, 4, N)
    if op == "cast" and result.is_int:
        info = np.iinfo(NUMPY[result])
        return np.clip(x, max(info.min, -(2**20)), min(info.max, 2**20))
    if op in ("acos", "asin", "erfinv"):
        return np.tanh(x)
    if op == "atanh":
        return np.tanh(x) * 0.99
    if op in ("lgamma", "digamma"):
        return np.abs(x) + 0.1
    if op == "pow":
        return np.abs(x) if k == 0 else np.clip(x, -8, 8)
    if op == "nextafter":
        x[0] = 0.0
        return x
    x[:7] = 0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0
    if k == 1:
        x[:7] = rng.permutation(x[:7])
    x[7:9] = 2.5, -3.5
    return x


def same_bits(got, want):
    """Where two arrays agree: in every bit, or both NaN, or both a zero."""
    if got.dtype == np.bool_:
        return got == want
    equal = got.view(f"u{got.itemsize}") == want.view(f"u{got.itemsize}")
    if got.dtype.kind in "fV" or got.dtype.name == "bfloat16":
        wide = got.astype(np.float64), want.astype(np.float64)
        equal |= np.isnan(wide[0]) & np.isnan(wide[1])
        equal |= (wide[0] == 0) & (wide[1] == 0)
    return equal


@pytest.mark.parametrize("name", USES)
def test_op(library, name):
    op, operands, result = USES[name]
    rng = np.random.default_rng(len(name))
    xs = [sample(op, k, t, result, rng) for k, t in enumerate(operands)]
    y = np.zeros(N, NUMPY[result])

    library(name, {f"x{k}": x for k, x in enumerate(xs)} | {"y": y})

    want = np.asarray(apply(op, xs, result), NUMPY[result])
    # The interpreter multiplies and adds with two roundings where a device's `fma` has one.
    exact = OPS[op].numerics in (Numerics.EXACT, Numerics.ROUNDED) and op != "fma"
    if exact or not result.is_float:
        equal = same_bits(y, want)
        assert equal.all(), [(*(x[i] for x in xs), y[i], want[i]) for i in np.flatnonzero(~equal)]
    elif op == "randn":
        np.testing.assert_allclose(y, want, rtol=0, atol=2e-6)  # a product of rounded functions
    else:
        rel = 2e-12 if result is DType.F64 else 2e-6
        finite = np.isfinite(want)
        assert (same_bits(y, want) | finite).all()
        np.testing.assert_allclose(y[finite], want[finite], rtol=rel, atol=rel)
