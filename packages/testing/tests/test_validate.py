"""`validate` agrees with what does as the IR says, and sees what does not."""

import re

import numpy as np
import pytest

from gyrator_ir.body.nodes import Bind, Let, Load, Reduce, ReduceKind, Store
from gyrator_ir.expr import ShapeFacts, Sym
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import NUMPY
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.random import FORMS, Limits, random_case
from gyrator_testing.kernels.validate import GUARD, POINTS, validate
from gyrator_testing.kernels.write import F32, I0, I64, R0, S0, S1, inner, kernel, outer

T0 = Sym("t0")
HINTS = ShapeFacts().with_range(S0, 1).with_hint(S0, 6)


def interpreted(k, seen=None):
    """Return what runs a kernel on raw memory by the interpreter, and notes the sizes."""

    def run(memories, sizes):
        inside = {
            p.name: m[GUARD : m.size - GUARD].view(NUMPY[p.dtype])
            for p, m in zip(k.parameters, memories, strict=True)
        }
        named = {s.name: n for s, n in zip(k.sizes, sizes, strict=True)}
        with np.errstate(all="ignore"):
            run_kernel(k, inside, named)
        if seen is not None:
            seen.append(named)
        return memories

    return run


def rows(length=S1, kind=ReduceKind.SUM):
    """Fold the rows of x."""
    return kernel(
        "rows", [(I0, S0)], [(R0, length)],
        [inner(Load("a", "x", I0 * length + R0), Reduce(("f",), kind, ("a",), F32)),
         outer(Store("y", I0, "f"))],
        spans={"x": S0 * length, "y": S0},
    )  # fmt: skip


def gather(wrap=False, dtype=F32):
    """Return table[index]."""
    body = [Load("n", "index", I0), Bind(T0, "n", S1, wrap=wrap), Load("a", "table", T0)]
    types = {"index": I64, "table": dtype, "y": dtype}
    spans = {"index": S0, "table": S1, "y": S0}
    return kernel("gather", [(I0, S0)], [], [outer(*body, Store("y", I0, "a"))], types, spans)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(4))
def test_random_kernels_agree_with_themselves(form, seed):
    case = random_case(seed, form, limits=Limits(points=3000))
    facts = ShapeFacts()
    for name, n in case.sizes.items():  # their buffers are as long as these sizes need
        facts = facts.with_range(Sym(name), n, n).with_hint(Sym(name), n)
    verdict = validate(case.kernel, facts, interpreted(case.kernel))
    assert not verdict.difference
    assert verdict.runs or verdict.skipped


def test_sizes_are_the_hints_and_others_that_the_facts_admit():
    seen = []
    facts = HINTS.with_divisible(S1, 4).with_range(S1, 4, 12).with_hint(S1, 12)
    assert not validate(rows(), facts, interpreted(rows(), seen)).difference
    assert seen[0] == {"s0": 6, "s1": 12}
    assert len({tuple(s.values()) for s in seen}) == 3
    assert all(s["s1"] in (4, 8, 12) and s["s0"] >= 1 for s in seen)


def test_indices_stay_inside_and_wrap():
    for wrap in (False, True):
        k, held = gather(wrap), []

        def run(memories, sizes, k=k, held=held):
            held.extend(memories[0][GUARD:-GUARD].view(np.int64))
            return interpreted(k)(memories, sizes)

        assert validate(k, HINTS.with_range(S1, 1).with_hint(S1, 9), run).runs
        assert (min(held) < 0) == wrap and max(held) < 9


@pytest.mark.parametrize(
    ("place", "said"),
    [(GUARD - 1, "before the buffer"), (-GUARD, "past the buffer"), (GUARD + 4, "is .*, not ")],
)
def test_a_stray_byte_is_seen(place, said):
    def run(memories, sizes):
        interpreted(k)(memories, sizes)
        memories[1][place] ^= 1 if place != GUARD + 4 else 0xFF
        return memories

    k = rows(8, ReduceKind.MAX)
    verdict = validate(k, HINTS, run)
    assert verdict.difference.startswith("y")
    assert re.search(said, verdict.difference)


def test_a_kernel_that_reads_outside_is_the_fault_of_its_ir():
    k = kernel("k", [(I0, 4)], [], [outer(Load("a", "x", I0 + 1), Store("y", I0, "a"))],
               spans={"x": 4, "y": 4})  # fmt: skip
    assert "the IR itself is at fault" in validate(k, HINTS, interpreted(k)).difference


def test_what_cannot_be_run_says_why():
    large = kernel("k", [(I0, POINTS + 1)], [], [outer(Load("a", "x", I0), Store("y", I0, "a"))],
                   spans={"x": POINTS + 1, "y": POINTS + 1})  # fmt: skip
    assert "points" in validate(large, HINTS, interpreted(large)).skipped
    narrow = gather(dtype=DType.C64)
    assert "c64" in validate(narrow, HINTS, interpreted(narrow)).skipped
    body = [Load("n", "index", I0), Bind(T0, "n", 2 * S0 // S0), Load("a", "x", I0)]
    scatter = kernel("k", [(I0, S0)], [], [outer(*body, Store("y", T0, "a"))], {"index": I64},
                     {"index": S0, "x": S0, "y": 2})  # fmt: skip
    facts = HINTS.with_range(S0, 5)
    assert "several points" in validate(scatter, facts, interpreted(scatter)).skipped


def test_a_rounded_result_may_differ_in_its_last_bits_and_another_may_not():
    def run(memories, sizes):
        interpreted(k)(memories, sizes)
        for memory in memories[1:]:
            memory[GUARD:-GUARD].view(np.uint32)[0] ^= 1
        return memories

    for op, differs in (("exp", False), ("neg", True)):
        k = kernel("k", [(I0, 40)], [], [outer(
            Load("a", "x", I0), Let("b", op, ("a",), F32), Store("y", I0, "b"))],
            spans={"x": 40, "y": 40})  # fmt: skip
        assert bool(validate(k, HINTS, run).difference) == differs
