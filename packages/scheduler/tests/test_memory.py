"""Storage: peaks, sharing, pools."""

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fuzz import random_program
from scheduler_programs import Maker, target

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import Const
from gyrator_ir.host.nodes import Allocate, AllocateFromPool, AllocatePool, Free, Launch, Reuse
from gyrator_ir.passes import PassEdits
from gyrator_scheduler.host.memory import ALIGNMENT, assign_offsets
from gyrator_scheduler.memory import needs, program_peak
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule

OPTIONS = SchedulerOptions()
SEEDS = st.integers(0, 1 << 30)


@given(SEEDS, st.integers(5, 60))
@settings(max_examples=60, deadline=None)
def test_never_more_memory_than_program_order(seed: int, size: int) -> None:
    program = random_program(seed, size)
    slack = 256
    planned = schedule(program, OPTIONS, target(slack_bytes=slack))
    assert needs(planned) <= program_peak(program) + slack


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(1, 500)), max_size=40),
    st.integers(64, 8192),
)
def test_places_of_live_buffers_never_overlap(
    given_lives: list[tuple[int, int, int]], limit: int
) -> None:
    lives = [(first, first + length, size) for first, length, size in given_lives]
    offsets = assign_offsets(lives, limit)
    placed = [(x, at) for x, at in zip(lives, offsets, strict=True) if at is not None]
    for n, ((first, last, size), at) in enumerate(placed):
        assert at % ALIGNMENT == 0 and at + size <= limit
        for (other_first, other_last, other_size), other in placed[:n]:
            together = first <= other_last and other_first <= last
            assert not together or at + size <= other or other + other_size <= at


@given(SEEDS, st.integers(5, 40))
@settings(max_examples=40, deadline=None)
def test_storages_are_taken_over_once_and_when_dead(seed: int, size: int) -> None:
    program = random_program(seed, size)
    s = schedule(program, OPTIONS, target())
    lives = {life.buffer: life for life in s.lifetimes}
    sources = [life.reuses for life in s.lifetimes if life.reuses is not None]
    assert len(set(sources)) == len(sources)
    returned = {o.buffer for o in s.outputs}
    for life in s.lifetimes:
        if life.reuses is not None:
            assert life.reuses not in returned
            assert lives[life.reuses].last <= life.first


def test_a_dying_operand_gives_its_storage_to_the_result() -> None:
    m = Maker()
    a, w = m.input("a", 128, 128), m.input("w", 128, 128)
    y = m.mm(a, w, (128, 128))
    z = m.mm(m.pointwise("exp", y), w, (128, 128))
    host = plan_host(schedule(m.program(z), OPTIONS, target()), OPTIONS, target())
    (reuse,) = [i for i in host.instructions if isinstance(i, Reuse)]
    (launch,) = [i for i in host.instructions if isinstance(i, Launch)]
    assert reuse.source == y
    assert launch.tensors == (reuse.name, reuse.name)
    assert sum(isinstance(i, Allocate) for i in host.instructions) == 2


def test_a_permuted_result_takes_no_storage_in_place() -> None:
    m = Maker()
    a, w = m.input("a", 128, 128), m.input("w", 128, 128)
    y = m.mm(a, w, (128, 128))
    flipped = m.view("exp", y, (128, 128), lambda i, j: 128 * i + (127 - j))
    s = schedule(m.program(m.mm(flipped, w, (128, 128))), OPTIONS, target())
    lives = {life.buffer: life for life in s.lifetimes}
    assert lives[flipped].reuses is None


def test_small_temporaries_share_one_allocation() -> None:
    m = Maker()
    x = m.input("x", 64, 32)
    totals = [m.reduction(ReduceKind.SUM, x, [d])[0] for d in (0, 1)]
    scaled = [m.pointwise("exp", t) for t in totals]
    y = m.pointwise("add", scaled[0], scaled[1], shape=(64, 32))
    options = SchedulerOptions(fusion=False, passes=PassEdits().only("loop"))
    host = plan_host(schedule(m.program(y), options, target()), options, target())
    (pool,) = [i for i in host.instructions if isinstance(i, AllocatePool)]
    inside = [i for i in host.instructions if isinstance(i, AllocateFromPool)]
    assert len(inside) == 4
    assert isinstance(pool.bytes, Const) and pool.bytes.value <= 1024
    assert [i.name for i in host.instructions if isinstance(i, Allocate)] == [y]
    assert Free(pool.name) in host.instructions
