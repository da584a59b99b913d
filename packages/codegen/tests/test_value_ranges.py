"""Ranges of values against the reference interpreter, on random operands within ranges."""

import numpy as np
import pytest

from gyrator_codegen.value_ranges import ValueRanges
from gyrator_ir.body.nodes import Const, IndexValue, Let
from gyrator_ir.body.ops import OPS, Typing
from gyrator_ir.expr import ShapeFacts, Sym
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import NUMPY
from gyrator_testing.interp.ops import apply

I64, F32 = DType.I64, DType.F32
INTEGERS = "add sub mul minimum maximum floordiv truncdiv mod rem bit_and shr neg abs".split()
FLOATS = "add sub mul div minimum maximum neg abs floor ceil trunc round".split()
COMPARED = [name for name, row in OPS.items() if row.typing is Typing.COMPARE]
COUNT = 40


def interval(rng, dtype):
    """Return ends that are near 0, far apart, or the same."""
    ends = np.sort(rng.choice([-(1 << 33), -70, -5, -1, 0, 1, 3, 31, 64, 1 << 20], 2))
    scale = 1 if dtype.is_int else rng.choice([1.0, 0.1, 1e-4])
    return tuple((ends * scale).astype(NUMPY[dtype]).tolist())


def within(ends, dtype, rng):
    """Return numbers of an interval, its ends among them."""
    low, high = ends
    if dtype.is_int:
        samples = rng.integers(low, high, COUNT, endpoint=True)
    else:
        samples = low + rng.random(COUNT) * (high - low)
    samples[:2] = low, high
    return np.clip(samples.astype(NUMPY[dtype]), low, high)


def told(operands, dtype, ranges):
    """Tell of values that take any number of some intervals; return their names."""
    names = []
    for k, (low, high) in enumerate(operands):
        ranges.add(Const(f"low{k}", low, dtype))
        ranges.add(Const(f"high{k}", high, dtype))
        ranges.add(Const(f"c{k}", True, DType.BOOL))
        ranges.add(Let(f"x{k}", "where", (f"c{k}", f"low{k}", f"high{k}"), dtype))
        names.append(f"x{k}")
    return tuple(names)


CASES = [(op, I64) for op in INTEGERS + COMPARED] + [(op, F32) for op in FLOATS + COMPARED]


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda v: getattr(v, "value", v))
def test_results_lie_in_their_range(op, dtype):
    rng = np.random.default_rng(len(op))
    decided = 0
    for _ in range(200):
        operands = [interval(rng, dtype) for _ in range(OPS[op].arity)]
        ranges = ValueRanges(ShapeFacts(), {})
        names = told(operands, dtype, ranges)
        arrays = [within(ends, dtype, rng) for ends in operands]
        if op in ("floordiv", "truncdiv", "mod", "rem", "div"):
            arrays[1] = np.where(arrays[1] == 0, arrays[1].max() or 1, arrays[1])
            if not (operands[1][0] <= arrays[1][0] <= operands[1][1]):
                continue
        result = DType.BOOL if op in COMPARED else dtype
        with np.errstate(all="ignore"):
            results = np.asarray(apply(op, arrays, result))
        s = Let("y", op, names, result)
        ranges.add(s)
        if op in COMPARED:
            known = ranges.compared(s)
            decided += known is not None
            assert known is None or (results == known).all(), (operands, known)
            continue
        known = ranges.of("y")
        if known is None:
            continue
        decided += 1
        assert (results >= known[0]).all(), (operands, known, results.min())
        assert (results <= known[1]).all(), (operands, known, results.max())
    assert decided > 20


def test_places_of_a_resized_line():
    i0 = Sym("i0")
    ranges = ValueRanges(ShapeFacts().with_ranges({i0: 64}), {})
    for s in (
        IndexValue("a", i0, I64),
        Let("b", "cast", ("a",), F32),
        Const("h", 0.5, F32),
        Let("c", "mul", ("b", "h"), F32),
        Let("d", "cast", ("c",), I64),
    ):
        ranges.add(s)
    assert ranges.of("a") == (0, 63)
    low, high = ranges.of("d")
    assert (low, high) == (0, 31)
