"""Repeated parts of a program become kernels once."""

from itertools import permutations

import pytest
from scheduler_fuzz import random_program
from scheduler_programs import Maker, target

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.nodes import LoopOperation, Pointwise, Reduction
from gyrator_scheduler.fusion.cluster import singleton
from gyrator_scheduler.fusion.kernel_cache import KernelCache
from gyrator_scheduler.fusion.kernels import kernel_of
from gyrator_scheduler.fusion.match import Refused, match
from gyrator_scheduler.fusion.match_cache import MatchCache
from gyrator_scheduler.fusion.staging import assemble
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.ranges import Ranges
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_testing.feeds import assert_same_meaning


def layers(m: Maker, count: int, wide_last: bool = False) -> str:
    """Add residual layers: a norm by rows of a product, and the sum with what came in."""
    x = m.input("x", 8, 16)
    w = m.input("w", 16, 16)
    for n in range(count):
        y = m.mm(x, w, (8, 16))
        (top,) = m.reduction(ReduceKind.MAX, y, [1])
        y = m.pointwise("sub", y, top)
        if wide_last and n == count - 1:
            y = m.pointwise("exp", y)
        x = m.pointwise("add", x, y)
    return x


def test_layers_share_kernels_and_mean_what_they_meant() -> None:
    for wide_last, kernels in ((False, 1), (True, 2)):
        m = Maker()
        program = m.program(layers(m, 4, wide_last))
        planned = schedule(program, SchedulerOptions(), target())
        assert len(planned.kernels) == 4
        assert len({k.parameters for k in planned.kernels}) == 4
        assert_same_meaning(program, planned)
        host = plan_host(planned, SchedulerOptions(), target())
        assert len(host.kernels) == kernels
        assert_same_meaning(program, host)


def test_a_kernel_is_made_once_for_clusters_that_differ_in_names_only() -> None:
    m = Maker()
    x, y, z = m.input("x", 8, 16), m.input("y", 8, 16), m.input("z", 16, 8)
    sums = [m.pointwise("add", a, b) for a, b in ((x, y), (y, x), (x, x))]
    exps = [m.pointwise("exp", a) for a in (x, z)]
    folds = [m.reduction(ReduceKind.SUM, x, [d])[0] for d in (0, 1)]
    program = m.program(*sums, *exps, *folds)
    buffers = {b.name: b for b in program.all_buffers}
    kernels, ranges = KernelCache(), Ranges(ShapeFacts())
    heuristics, numerics = target()["cpu"].heuristics, SchedulerOptions().numerics
    built_names: list[str] = []

    def kernel(op: Pointwise | Reduction, exported: bool = True) -> Kernel:
        cluster = singleton(0, op)
        stored = set(cluster.stores) if exported else set()

        def make() -> Kernel:
            built_names.append(op.name)
            inside = assemble(cluster, stored, buffers, heuristics, ranges)
            return kernel_of("k", buffers["x"].device, inside, buffers, (7,), numerics)

        cached = kernels.kernel(cluster, stored, buffers, heuristics, (7,), make)
        count = len(built_names)
        assert cached == make()
        del built_names[count:]
        return cached

    add_xy, add_yx, add_xx, exp_x, exp_z, fold_0, fold_1 = program.operations
    kernel(add_xy)
    kernel(add_yx)
    assert built_names == [add_xy.name]
    kernel(add_xx)
    kernel(exp_x)
    kernel(exp_z)
    kernel(fold_0)
    kernel(fold_1)
    kernel(exp_x, exported=False)
    expected = [add_xy, add_xx, exp_x, exp_z, fold_0, fold_1, exp_x]
    assert built_names == [op.name for op in expected]


@pytest.mark.parametrize("seed", range(3))
def test_what_fits_is_what_fits_under_other_names(seed: int) -> None:
    facts = ShapeFacts()
    ranges, heuristics = Ranges(facts), target()["cpu"].heuristics
    program = random_program(seed, 24)
    loops = [op for op in program.operations if isinstance(op, LoopOperation)]
    matches = MatchCache()
    met: set[str] = set()
    for form, other in permutations(loops, 2):
        expected = match(singleton(0, form), singleton(1, other), ranges, heuristics)
        result = matches.match(singleton(0, form), singleton(1, other), ranges, heuristics)
        assert result == expected
        met.add(expected.reason if isinstance(expected, Refused) else "fits")
    assert "fits" in met and any("{}" in reason for reason in met)
