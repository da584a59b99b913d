"""Storage: peaks, sharing, pools."""

import cProfile

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fuzz import random_program
from scheduler_programs import Maker, target

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import Const, ShapeFacts, Sym, SymKind, evaluate
from gyrator_ir.host.nodes import (
    Allocate,
    AllocateFromPool,
    AllocatePool,
    ExternCall,
    Free,
    Launch,
    Ref,
    Reuse,
)
from gyrator_ir.host.verify import verify
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.nodes import Extern, LoopProgram
from gyrator_ir.loop.parse import parse
from gyrator_ir.passes import PassEdits
from gyrator_scheduler.fusion.cluster import Cluster
from gyrator_scheduler.host.memory import ALIGNMENT, assign_offsets, place_in_pools
from gyrator_scheduler.memory import Uses, bytes_of, needs, program_peak, sizes_of_buffers, touched
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.order import within
from gyrator_scheduler.stage import plan_host, schedule

OPTIONS = SchedulerOptions()
SEEDS = st.integers(0, 1 << 30)


@given(SEEDS, st.integers(5, 60), st.sampled_from((0, 8)))
@settings(max_examples=60, deadline=None)
def test_never_more_memory_than_program_order(seed: int, size: int, parts: int) -> None:
    program = random_program(seed, size)
    slack, peak = 256, program_peak(program)
    planned = schedule(program, OPTIONS, target(slack_bytes=slack, slack_parts=parts))
    assert needs(planned) <= peak + slack + (peak // parts if parts else 0)


@given(SEEDS, st.integers(5, 60))
@settings(max_examples=60, deadline=None)
def test_storages_that_wait_for_their_reuse_do_not_raise_the_peak(seed: int, size: int) -> None:
    planned = schedule(random_program(seed, size), OPTIONS, target())
    sizes = sizes_of_buffers(planned.buffers, planned.facts)
    reused = {life.buffer: life.reuses for life in planned.lifetimes}
    held: dict[str, tuple[int, int]] = {}
    for life in planned.lifetimes:
        root = life.buffer
        while (earlier := reused[root]) is not None:
            root = earlier
        first, last = held.get(root, (life.first, life.last))
        held[root] = min(first, life.first), max(last, life.last)
    for n in range(len(planned.nodes) + 1):
        now = sum(sizes[name] for name, (first, last) in held.items() if first <= n <= last)
        assert now <= needs(planned)


def test_a_storage_is_given_back_where_it_would_raise_the_peak() -> None:
    """The storage of the exponentials would wait for `z` while `wide` is alive."""
    m = Maker()
    x, w = m.input("x", 64, 64), m.input("w", 64, 640)
    v = m.input("v", 640, 64)
    first = m.pointwise("exp", x)
    y = m.mm(first, x, (64, 64))
    wide = m.mm(y, w, (64, 640))
    narrow = m.mm(wide, v, (64, 64))
    z = m.mm(narrow, x, (64, 64))
    s = schedule(m.program(z), OPTIONS, target())
    lives = {life.buffer: life.reuses for life in s.lifetimes}
    assert lives == {first: None, y: None, wide: None, narrow: y, z: None}
    assert needs(s) == 4 * 64 * (640 + 64)


def test_activations_saved_for_a_backward_pass_are_released_first() -> None:
    """The gradient `late` would occupy memory beside the activations `saved`."""
    m = Maker()
    x, y, saved = m.input("x", 64, 64), m.input("y", 64, 640), m.input("saved", 64, 6400)
    wide, square = m.input("wide", 6400, 64), m.input("square", 64, 64)
    late = m.mm(x, y, (64, 640))
    first = m.mm(saved, wide, (64, 64))
    second = m.mm(first, square, (64, 64))
    program = m.program(m.mm(second, late, (64, 640)))
    released = (saved,)
    early = schedule(program, OPTIONS, target())
    assert needs(early, released) == 4 * 64 * (6400 + 640 + 64)
    planned = schedule(program, evolve(OPTIONS, released=released), target())
    assert needs(planned, released) == 4 * 64 * (6400 + 64)


def _backward(m: Maker, layers: int) -> tuple[LoopProgram, tuple[str, ...], list[str]]:
    """Return a backward pass, the activations that it frees, and the gradients of its weights."""
    flow, square = m.input("flow", 64, 64), m.input("square", 64, 64)
    released: list[str] = []
    gradients: list[str] = []
    for n in range(layers):
        saved, thin = m.input(f"saved{n}", 64, 640), m.input(f"thin{n}", 640, 64)
        kept = m.mm(flow, square, (64, 64))
        gradients.append(m.mm(kept, thin, (64, 320)))
        flow = m.mm(m.mm(saved, thin, (64, 64)), kept, (64, 64))
        released.append(saved)
    return m.program(*gradients, flow), tuple(released), gradients


def test_gradients_of_weights_wait_until_activations_are_released() -> None:
    """In the program's order, the first of them exists beside all activations."""
    m = Maker()
    program, released, gradients = _backward(m, layers=4)
    options, one = evolve(OPTIONS, released=released), 4 * 64 * 64
    planned = schedule(program, options, target())
    assert needs(planned, released) == (4 * 10 + 1) * one
    assert needs(schedule(program, evolve(options, reorder=False), target()), released) == 47 * one
    written = [name for node in planned.nodes for name in touched(node)[1]]
    assert written[:2] == ["b2", "b0"]  # what frees the first activation, and what that reads
    assert [name for name in written if name in gradients] == gradients


def test_a_bound_that_nothing_fits_is_not_the_last() -> None:
    """With what lives at the beginning as the bound, nothing fits, and small gradients come before
    the product that lets activations be released; in the program's order, a large one does."""
    m = Maker()
    flow, square = m.input("flow", 64, 64), m.input("square", 64, 64)
    saved, late = m.input("saved", 192, 64), m.input("late", 64, 1280)
    gradients = [m.mm(flow, m.input("wide", 64, 512), (64, 512))]
    back = m.mm(m.mm(flow, m.input("left", 64, 192), (64, 192)), saved, (64, 64))
    last = m.addmm(back, late, m.input("thin", 1280, 64))
    gradients += [m.mm(flow, square, (64, 64)) for _ in range(4)]
    program, released = m.program(*gradients, last), (saved, late)
    planned = schedule(program, evolve(OPTIONS, released=released), target())
    assert needs(planned, released) == (3 + 20 + 4) * 4 * 64 * 64


def test_orders_are_compared_with_results_in_place() -> None:
    """Two results of 4 exist at once only if the second is not stored over the first; then no order
    needs less than the program's."""
    m = Maker()
    saved = m.input("saved", 256, 64)
    wide = m.mm(m.input("flow", 64, 64), m.input("square", 64, 256), (64, 256))
    gradient = m.mm(m.input("left", 128, 256), saved, (128, 64))
    last = m.mm(m.pointwise("exp", wide), m.input("thin", 256, 64), (64, 64))
    program = m.program(gradient, last)
    for reuse, needed in ((False, 10), (True, 7)):
        options = evolve(OPTIONS, released=(saved,), reuse=reuse)
        assert needs(schedule(program, options, target()), (saved,)) == needed * 4 * 64 * 64


def test_a_result_in_place_needs_no_memory_that_must_be_left() -> None:
    """The second of three clusters can store over the result of the first."""
    clusters = [Cluster(n) for n in range(3)]
    clusters[1].before[0] = clusters[0].after[1] = None
    uses: dict[int, Uses] = {0: ((), ("a",)), 1: (("a",), ("b",)), 2: ((), ("c",))}
    sizes, kept = {"a": 4, "b": 4, "c": 1}, {"b", "c"}
    for shared, expected in (({1: {"b": "a"}}, [0, 1, 2]), ({}, [0, 2, 1])):
        order = within(clusters, 5, uses, sizes, kept, (), shared)
        assert [c.id for c in order] == expected


def test_results_that_wait_take_steps_in_proportion() -> None:
    """Each of a chain of clusters is also read by one whose result never fits."""

    def steps(count: int) -> int:
        clusters = [Cluster(n) for n in range(2 * count)]
        uses: dict[int, Uses] = {}
        for c in clusters:
            before = c.id - 2 + c.id % 2
            reads = (f"b{before}",) if before >= 0 else ()
            uses[c.id] = reads, (f"b{c.id}",)
            if reads:
                c.before[before] = clusters[before].after[c.id] = None
        sizes = {f"b{c.id}": 1000 if c.id % 2 else 1 for c in clusters}
        kept = {f"b{c.id}" for c in clusters if c.id % 2}
        profile = cProfile.Profile()
        order = profile.runcall(within, clusters, 10, uses, sizes, kept, (), {})
        assert [c.id for c in order][:count] == list(range(0, 2 * count, 2))
        return sum(entry.callcount for entry in profile.getstats())

    assert steps(1000) < 11 * steps(100)


def test_a_plan_may_need_one_part_more_than_program_order() -> None:
    """Adding `a` and `b` in the kernel of their reader holds both while `wide` is alive."""
    m = Maker()
    x, w, v = m.input("x", 64, 64), m.input("w", 64, 640), m.input("v", 640, 64)
    a, b = m.mm(x, x, (64, 64)), m.mm(x, x, (64, 64))
    added = m.pointwise("add", a, b)
    wide = m.mm(m.mm(a, b, (64, 64)), w, (64, 640))
    narrow = m.mm(wide, v, (64, 64))
    program = m.program(m.pointwise("mul", narrow, added))
    peak, more = 4 * 64 * (640 + 2 * 64), 4 * 64 * 64
    assert program_peak(program) == peak
    for parts, needed, kernels in ((0, peak, 2), (13, peak, 2), (12, peak + more, 1)):
        s = schedule(program, OPTIONS, target(slack_bytes=0, slack_parts=parts))
        assert needs(s) == needed
        assert sum(isinstance(node, Kernel) for node in s.nodes) == kernels


GRADIENTS_OF_ROWS = """\
loop.program 1 @main
  in saved: f32[64, 64] strides [64, 1] on cpu
  in grad: f32[64, 64] strides [64, 1] on cpu
  in rows: i64[64] strides [1] on cpu
  buffer total: f32[64] strides [1] on cpu
  buffer g: f32[64, 64] strides [64, 1] on cpu
  buffer table: f32[640, 64] strides [64, 1] on cpu
  reduction op0 (i0 < 64) over (r0 < 64)
    v0 = load saved[64*i0 + r0]
    v1 = load grad[64*i0 + r0]
    v2: f32 = mul v0, v1
    r0: f32 = reduce.sum v2
    store total[i0], r0
  pointwise op1 (i0 < 64, i1 < 64)
    v0 = load grad[64*i0 + i1]
    v1 = load saved[64*i0 + i1]
    v2 = load total[i0]
    v3: f32 = mul v1, v2
    v4: f32 = sub v0, v3
    store g[64*i0 + i1], v4
  pointwise op2 (i0 < 640, i1 < 64)
    v0: f32 = const 0.0
    store table[64*i0 + i1], v0
  scatter op3 (i0 < 64, i1 < 64)
    v0 = load rows[i0]
    t0 = bind v0 below 640 check
    v1 = load g[64*i0 + i1]
    store.add table[i1 + 64*t0], v1
  return table, g
"""


def test_only_operations_on_what_is_large_leave_a_kernel_that_needs_too_much() -> None:
    """With the scatter in the kernel of its values, `table` lives beside `saved`."""
    program, released = parse(GRADIENTS_OF_ROWS), ("saved",)
    table, small = 4 * 640 * 64, 4 * 64 * 64
    for slack, needed, kernels in ((small, table + 2 * small, 2), (0, table + small, 3)):
        s = schedule(program, evolve(OPTIONS, released=released), target(slack_bytes=slack))
        assert needs(s, released) == needed
        assert len(s.nodes) == kernels


def test_storages_do_not_wait_beside_activations_saved_for_a_backward_pass() -> None:
    m = Maker()
    x, saved, left = m.input("x", 64, 64), m.input("saved", 6400, 64), m.input("left", 64, 6400)
    first = m.pointwise("exp", x)
    y = m.mm(first, x, (64, 64))
    z = m.mm(left, m.mm(saved, y, (6400, 64)), (64, 64))
    program = m.program(m.mm(z, y, (64, 64)))
    for released, expected in (((), first), ((saved,), None)):
        s = schedule(program, evolve(OPTIONS, released=released), target())
        assert {life.buffer: life.reuses for life in s.lifetimes}[z] == expected


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


def test_places_of_buffers_alive_at_once_take_steps_in_proportion() -> None:
    def steps(count: int) -> int:
        profile = cProfile.Profile()
        lives = [(n, 2 * count - n, 64) for n in range(count)]
        offsets = profile.runcall(assign_offsets, lives, 64 * count)
        assert offsets == [64 * n for n in range(count)]
        return sum(entry.callcount for entry in profile.getstats())

    assert steps(1000) < 11 * steps(100)


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


def _dynamic_chain(m: Maker, x: str, steps: int) -> str:
    """Add rows' and columns' sums, step by step."""
    for _ in range(steps):
        rows, columns = (m.reduction(ReduceKind.SUM, x, [d])[0] for d in (1, 0))
        scaled = m.pointwise("exp", rows)
        total = m.reduction(ReduceKind.SUM, rows, [0])[0]
        for part in (columns, scaled, total):
            x = m.pointwise("add", x, part, shape=m.buffers[x].shape)
    return x


@given(st.integers(1, 4), st.lists(st.integers(0, 300), min_size=2, max_size=2))
@settings(max_examples=30, deadline=None)
def test_live_buffers_of_symbolic_sizes_never_overlap(steps: int, sizes: list[int]) -> None:
    s0, s1 = Sym("s0", SymKind.SIZE), Sym("s1", SymKind.SIZE)
    m = Maker()
    facts = ShapeFacts().with_range(s0, 0, None).with_range(s1, 0, None)
    y = _dynamic_chain(m, m.input("x", s0, s1), steps)
    options = SchedulerOptions(fusion=False, passes=PassEdits().only("loop"))
    program = evolve(m.program(y), facts=facts.with_hint(s0, 8).with_hint(s1, 5))
    planned = schedule(program, options, target())
    placement = place_in_pools(planned, target(), {s0, s1})
    values = {s0: sizes[0], s1: sizes[1]}
    buffers = {b.name: b for b in planned.buffers}
    sized = {p.name: p for p in placement.pools if p.bytes.free_symbols}
    assert sized
    lives = {life.buffer: life for life in planned.lifetimes}
    spans = [
        (
            at[0],
            start,
            start + evaluate(bytes_of(buffers[b]), values),
            lives[b].first,
            lives[b].last,
        )
        for b, at in placement.offsets.items()
        for start in [evaluate(at[1], values)]
    ]
    for n, (pool, start, end, first, last) in enumerate(spans):
        if pool in sized:
            assert start % ALIGNMENT == 0 and end <= evaluate(sized[pool].bytes, values)
            assert sized[pool].first <= first and last <= sized[pool].last
        for other_pool, other, other_end, other_first, other_last in spans[:n]:
            together = pool == other_pool and first < other_last and other_first < last
            assert not together or end <= other or other_end <= start


def test_a_pool_waits_for_sizes_that_a_call_finds_out() -> None:
    u0 = Sym("u0", SymKind.UNBACKED)
    m = Maker()
    x = m.input("x", 64)
    m.buffer("found", (u0,))
    m.operations.append(Extern("find", "test.find.default", (m.ref(x),), (), ("found",)))
    columns = m.view("exp", "found", (u0, Const(4)), lambda i, j: i)
    y = _dynamic_chain(m, columns, 2)
    options = SchedulerOptions(fusion=False, passes=PassEdits().only("loop"))
    facts = ShapeFacts().with_range(u0, 0, None).with_hint(u0, 8)
    program = evolve(m.program(y), facts=facts)
    host = plan_host(schedule(program, options, target()), options, target())
    kinds = [type(i) for i in verify(host).instructions]
    pools = [i for i in host.instructions if isinstance(i, AllocatePool)]
    assert any(p.bytes.free_symbols == {u0} for p in pools)
    assert kinds.index(ExternCall) < kinds.index(AllocatePool)


def test_a_product_adds_to_a_dying_operand_in_place() -> None:
    m = Maker()
    a, w = m.input("a", 64, 64), m.input("w", 64, 64)
    first = m.mm(a, w, (64, 64))
    second = m.addmm(first, a, w)
    third = m.addmm(second, a, second)
    host = plan_host(schedule(m.program(third), OPTIONS, target()), OPTIONS, target())
    (reuse,) = [i for i in host.instructions if isinstance(i, Reuse)]
    assert (reuse.name, reuse.source) == (second, first)
    _, added, alone = [i for i in host.instructions if isinstance(i, ExternCall)]
    assert added.args[0] == Ref(second)
    assert alone.args[0] == alone.args[2] == Ref(second) != Ref(*alone.results)


def test_what_a_library_gave_is_written_over_where_it_dies() -> None:
    m = Maker()
    a, w = m.input("a", 64, 64), m.input("w", 64, 64)
    y = m.mm(a, w, (64, 64))
    program = m.program(m.mm(m.pointwise("exp", y), w, (64, 64)))

    def reused(target_: str, reason: str) -> int:
        called = [
            evolve(op, target=target_, out=None, out_names=(), reason=reason)
            if isinstance(op, Extern)
            else op
            for op in program.operations
        ]
        s = schedule(evolve(program, operations=tuple(called)), OPTIONS, target())
        verify(plan_host(s, OPTIONS, target()))
        return sum(life.reuses == y for life in s.lifetimes)

    assert reused("aten.linear.default", "library") == 1
    assert reused("mkldnn._convolution_pointwise.default", "library") == 1
    assert reused("aten.linear.default", "no rule") == 0
    assert reused("mine.product.default", "library") == 0
