"""Kernels that C++ cannot express are refused with a code before anything is written."""

import pytest
from attrs import evolve
from harness import target

from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.backend import TilingBackend
from gyrator_ir.body.nodes import Let, Load, Reduce, ReduceKind, ScanKind, ScanStep, SortStep, Store
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import ShapeFacts, expr
from gyrator_ir.tile.nodes import Loop, LoopKind, Method, Reduction
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import F32, I0, R0, inner, kernel, outer

AT = expr(8) * I0 + R0
SCAN = ScanStep(("c",), ScanKind.SUM, ("a",), F32)
BACK = ScanStep(("e",), ScanKind.SUM, ("a",), F32, reverse=True)
SORT = SortStep(("v", "p"), ("a",), F32)
SORT_DOWN = SortStep(("w", "q"), ("a",), F32, descending=True)
FOLD = Reduce(("f",), ReduceKind.SUM, ("a",), F32)
GRID, VECTORS = Loop(LoopKind.GRID, (I0,)), Loop(LoopKind.LOOP, (R0,), 16)
COLUMNS = Loop(LoopKind.GRID, (I0,), 16), Loop(LoopKind.LOOP, (I0,), 16), Loop(LoopKind.LOOP, (R0,))
TWICE = Reduction("f", Method.TWO_PASS, block=4)
WRITES = {
    "c": Store("running", AT, "c"),
    "e": Store("back", AT, "e"),
    "v": Store("values", AT, "v"),
    "w": Store("down", AT, "w"),
}


def beside(*steps):
    """Return a kernel that has the collectives `steps` in one stage."""
    writes = [WRITES[s.names[0]] for s in steps if s.names[0] in WRITES]
    stages = [inner(Load("a", "x", AT), *steps, *writes)]
    if FOLD in steps:
        stages.append(outer(Store("total", I0, "f")))
    return kernel("k", [(I0, 4)], [(R0, 8)], stages)


def refused(result):
    return CppBackend().refuses(result, target("avx512"))


def test_an_op_that_the_target_lacks_is_refused():
    """`Capabilities.ops_lacking` says which rows of the op table a target does without."""
    bound = target("avx512")
    lacking = evolve(bound.capabilities, ops_lacking=frozenset({"erfinv"}))
    body = [Load("a", "x", I0), Let("b", "erfinv", ("a",), F32), Store("y", I0, "b")]
    erfinv = kernel("k", [(I0, 4)], [], [outer(*body)])
    assert CppBackend().refuses(erfinv, bound) is None

    result = CppBackend().refuses(erfinv, evolve(bound, capabilities=lacking))

    assert result is not None
    assert result.code == "GY-CPP-002"
    assert result.message == "C++ kernels have no erfinv"
    assert result.where == "b in kernel k"
    assert "ATen" in result.help


@pytest.mark.parametrize(
    "steps",
    [(SCAN, BACK), (SORT, SORT_DOWN), (SCAN, SORT), (SORT, FOLD), (FOLD, SORT), (FOLD, SCAN, SORT)],
    ids=lambda steps: "-".join(s.names[0] for s in steps),
)
def test_collectives_that_cannot_share_a_stage_are_refused(steps):
    """A sort stands alone in its stage; scans of one stage run in one direction."""
    result = refused(beside(*steps))

    assert result is not None
    assert result.code == "GY-CPP-003"
    assert "scans in both directions, or sorts beside other collectives" in result.message
    assert result.where == "kernel k"
    assert result.help == "schedule them as separate stages"


@pytest.mark.parametrize("steps", [(SCAN,), (BACK,), (SORT,), (FOLD,), (SCAN, FOLD), (FOLD, BACK)])
def test_collectives_that_are_not_refused_are_emitted(steps):
    """What `refuses` lets through, the emitter writes."""
    result = beside(*steps)
    assert refused(result) is None
    (unit,) = CppBackend().emit([result], ShapeFacts(), (), target("avx512"))
    assert "gy_k_" in unit.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loops": (GRID, Loop(LoopKind.LOOP, (R0,), 8))}, "vectors of 8"),
        ({"loops": (GRID, Loop(LoopKind.LOOP, (R0,), 64))}, "vectors of 64"),
        ({"loops": (Loop(LoopKind.GRID, (I0,), 2), VECTORS)}, "along axes other"),
        ({"loops": (Loop(LoopKind.GRID, (R0, I0), 16),)}, "several axes"),
        ({"loops": (VECTORS,)}, "without a grid loop"),
        ({"loops": (GRID, VECTORS, VECTORS)}, "this order"),
        ({"reductions": (Reduction("f", Method.AT_ONCE),)}, "at once"),
        ({"reductions": (Reduction("f", Method.ACCUMULATE, unroll=3),)}, "powers of two"),
        ({"reductions": (evolve(TWICE, keep=("a",)),)}, "part of a row"),
        ({"loops": COLUMNS, "reductions": (TWICE,)}, "two passes that are not along vectors"),
        ({"index": DType.I32}, "indices in i32"),
        ({"replicated": ("a",)}, "replicated"),
    ],
)
def test_tilings_for_other_machines_are_refused(changes, message):
    backend, bound = CppBackend(), target("avx512")
    program = backend.tile([beside(FOLD)], ShapeFacts(), (), bound)
    backend.emit_tiled(program, bound)
    other = evolve(program, kernels=(evolve(program.kernels[0], **changes),))

    with pytest.raises(UnsupportedError, match=f"GY-CPP-004.*{message}"):
        backend.emit_tiled(other, bound)


def test_only_what_was_loaded_is_loaded_again():
    body = Load("a", "x", AT), Let("b", "neg", ("a",), F32), evolve(FOLD, args=("b",))
    backend, bound = CppBackend(), target("avx512")
    result = kernel("k", [(I0, 4)], [(R0, 8)], [inner(*body), outer(Store("total", I0, "f"))])
    program = backend.tile([result], ShapeFacts(), (), bound)
    again = evolve(program.kernels[0], reductions=(evolve(TWICE, reload=True),))

    with pytest.raises(UnsupportedError, match=r"GY-CPP-004.*computed values"):
        backend.emit_tiled(evolve(program, kernels=(again,)), bound)


def test_the_language_tiles():
    assert isinstance(CppBackend(), TilingBackend)
