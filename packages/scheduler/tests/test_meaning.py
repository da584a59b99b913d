"""Schedules and host programs mean what the program means."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fuzz import check, random_program
from scheduler_programs import Maker, target

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.kernel.nodes import Kernel, ScheduleNode
from gyrator_ir.passes import PassEdits
from gyrator_scheduler import build
from gyrator_scheduler.fusion.cluster import Cluster
from gyrator_scheduler.memory import touched
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.order import gathered
from gyrator_scheduler.partitions import Fit
from gyrator_scheduler.passes import split_reductions
from gyrator_scheduler.stage import schedule

SEEDS = st.integers(0, 1 << 30)


@given(SEEDS, st.integers(1, 24), st.booleans())
@settings(max_examples=60, deadline=None)
def test_random_programs(seed: int, size: int, fusion: bool) -> None:
    check(random_program(seed, size), seed, SchedulerOptions(fusion=fusion))


@given(SEEDS, st.integers(1, 16))
@settings(max_examples=30, deadline=None)
def test_random_programs_without_passes(seed: int, size: int) -> None:
    check(random_program(seed, size), seed, SchedulerOptions(passes=PassEdits().only("loop")))


@given(SEEDS, st.integers(1, 16))
@settings(max_examples=30, deadline=None)
def test_random_programs_on_many_cores_with_little_scratch(seed: int, size: int) -> None:
    program = random_program(seed, size)
    check(
        program, seed, SchedulerOptions(), cores=4, split_reduction_extent=4, split_scan_extent=4,
        scratch_bytes=40, parallel_grain=8,
    )  # fmt: skip


@given(SEEDS, st.integers(4, 18))
@settings(max_examples=40, deadline=None)
def test_random_programs_whose_rows_sum_columns(seed: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_reductions, "_MIN_TOTAL", 1)
        check(random_program(seed, size), seed, SchedulerOptions(), cores=2, total_elements=64)


@given(SEEDS, st.integers(4, 18), st.sampled_from([0, 40, 200]))
@settings(max_examples=40, deadline=None)
def test_random_programs_whose_rows_compete_for_scratch(seed: int, size: int, room: int) -> None:
    options = SchedulerOptions(keep_peak=False)
    check(random_program(seed, size), seed, options, scratch_bytes=room)


@given(SEEDS, st.integers(2, 24), st.sampled_from([3, 6, 1024]), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_random_programs_launched_together(
    seed: int, size: int, tensors: int, alike: bool, keep: bool
) -> None:
    check(
        random_program(seed, size), seed, SchedulerOptions(keep_peak=keep),
        together_elements=1 << 20, together_tensors=tensors, together_kinds=int(alike),
    )  # fmt: skip


def test_what_is_launched_together_waits_for_no_other() -> None:
    """Four tensors over their sums: one launch, of kernels that are small enough."""
    m = Maker()
    results = []
    for n in range(4):
        x = m.input(f"x{n}", 8, 8)
        (total,) = m.reduction(ReduceKind.SUM, x, (0, 1))
        results.append(m.pointwise("div", x, total, name=f"y{n}"))
    program = m.program(*results)
    planned = schedule(program, SchedulerOptions(), target(together_elements=64))
    assert [(t.start, t.end) for t in planned.together] == [(0, 4)]
    for options, numbers in ((SchedulerOptions(together=False), 64), (SchedulerOptions(), 63)):
        assert not schedule(program, options, target(together_elements=numbers)).together


@pytest.mark.parametrize(("room", "launches"), [(0, []), (1 << 20, [(0, 4)])])
def test_what_is_launched_together_does_not_wait_at_the_peak(
    room: int, launches: list[tuple[int, int]]
) -> None:
    """A chain of products whose weights are converted first: converting all in one launch would
    hold those of later products. The products are scaled in place."""
    m = Maker()
    x = m.input("x", 64, 8)
    for n in range(4):
        weight = m.input(f"w{n}", 8, 8)
        product = m.mm(x, m.pointwise("mul", weight, weight), (64, 8))
        x = m.pointwise("mul", product, product)
    program = m.program(x)
    planned = schedule(program, SchedulerOptions(), target(together_elements=64, slack_bytes=room))
    assert [(t.start, t.end) for t in planned.together] == launches
    unlimited = schedule(
        program, SchedulerOptions(keep_peak=False), target(together_elements=64, slack_bytes=0)
    )
    assert [(t.start, t.end) for t in unlimited.together] == [(0, 4)]


@given(SEEDS, st.integers(4, 20), st.booleans())
@settings(max_examples=40, deadline=None)
def test_random_programs_in_partitions(seed: int, size: int, fusion: bool) -> None:
    """Every third node, or so, stays outside of the graphs that capture the others."""
    original_fits = build.fits

    def some(nodes: Iterable[ScheduleNode], *rest: Any) -> Iterator[Fit]:
        node_list = list(nodes)
        for node, fit in zip(node_list, original_fits(node_list, *rest), strict=True):
            hidden = zlib.crc32(f"{touched(node)}{seed}".encode()) % 3 == 0
            yield Fit(None, "hidden") if hidden else fit

    options = SchedulerOptions(device_graphs=True, fusion=fusion)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "fits", some)
        check(random_program(seed, size), seed, options, graphs=True)


def test_what_may_be_captured_is_brought_together() -> None:
    kinds = {0: "a", 1: "b", 2: "a", 3: "b", 4: "a"}
    clusters = [Cluster(n) for n in range(5)]
    for early, late in ((1, 3), (0, 4)):
        clusters[early].after[late] = clusters[late].before[early] = None
    assert [c.id for c in gathered(clusters, kinds)] == [0, 2, 4, 1, 3]
    clusters[3].after[4] = clusters[4].before[3] = None
    assert [c.id for c in gathered(clusters, kinds)] == [0, 2, 1, 3, 4]


def test_what_depends_on_nothing_runs_just_before_what_needs_it() -> None:
    """Weights are converted first in a program, and needed one after the other."""
    m = Maker()
    x, weights = m.input("x", 64, 8), [m.input(f"w{n}", 8, 8) for n in range(3)]
    for converted in [m.pointwise("mul", weight, weight) for weight in weights]:
        x = m.mm(x, converted, (64, 8))
    planned = schedule(m.program(x), SchedulerOptions(), target(slack_bytes=0))
    assert [isinstance(node, Kernel) for node in planned.nodes] == [True, False] * 3


@given(SEEDS, st.integers(4, 16))
@settings(max_examples=20, deadline=None)
def test_random_programs_with_all_asserts(seed: int, size: int) -> None:
    options = SchedulerOptions(size_asserts=True, profile=True, reuse=False, pool=False)
    check(random_program(seed, size), seed, options)


@pytest.mark.parametrize("size", [1009, 4096, 12])
@pytest.mark.parametrize("dims", [(2,), (1, 2), (0, 1, 2), (1,)])
@pytest.mark.parametrize(
    "kind",
    [
        k
        for k in ReduceKind
        if k not in (ReduceKind.ANY, ReduceKind.ALL, ReduceKind.XOR, ReduceKind.DOT)
    ],
)
def test_split_reductions(kind: ReduceKind, dims: tuple[int, ...], size: int) -> None:
    maker = Maker()
    x = maker.input("x", 2, 3, size)
    e = maker.pointwise("log1p", x)
    results = {ReduceKind.WELFORD: 3, ReduceKind.ONLINE_SOFTMAX: 2}.get(kind, 1)
    program = maker.program(*maker.reduction(kind, e, dims, results))
    numbers = {"cores": 4, "split_reduction_extent": 100}
    check(program, 1, SchedulerOptions(), **numbers)
    if size == 4096 and dims == (2,):
        nodes = schedule(program, SchedulerOptions(), target(**numbers)).nodes
        assert len(nodes) == (1 if kind in (ReduceKind.ARGMIN, ReduceKind.ARGMAX) else 2)
