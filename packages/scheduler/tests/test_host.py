"""Host programs: calls, views, assertions, control flow, sizes."""

import numpy as np
import pytest
from attrs import evolve
from scheduler_programs import CPU, Maker, contiguous, target

from gyrator_ir.expr import ZERO, Const, Expr, Sym, SymKind, eq, expr
from gyrator_ir.host.nodes import (
    AssertNoNan,
    AssertTrue,
    BindParameter,
    BindSize,
    Branch,
    CallProgram,
    Comment,
    Conform,
    ExternCall,
    Instruction,
    Launch,
    Loop,
    Mend,
    ProfileRange,
    ReadScalar,
    Ref,
    Return,
    Separate,
    View,
)
from gyrator_ir.host.parse import parse as parse_host
from gyrator_ir.host.print import show as show_host
from gyrator_ir.host.verify import verify
from gyrator_ir.kernel.nodes import Kernel, TemplateKernel
from gyrator_ir.loop.nodes import (
    CondOp,
    Extern,
    Literal,
    LoopProgram,
    ScalarRead,
    SizeInput,
    Template,
    TemplateKind,
    TensorRef,
    WhileOp,
)
from gyrator_ir.loop.verify import verify as verify_loop
from gyrator_ir.provenance import Origin
from gyrator_ir.target import Target
from gyrator_ir.types import DType
from gyrator_scheduler.errors import SchedulerError
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.kernel import run_schedule
from gyrator_testing.interp.loop import run_loop


def planned(program: LoopProgram, **options: bool) -> tuple[Instruction, ...]:
    chosen = SchedulerOptions(**options)
    host = verify(plan_host(schedule(program, chosen, target()), chosen, target()))
    return host.instructions


def kinds(instructions: tuple[Instruction, ...], kind: type) -> list[Instruction]:
    return [i for i in instructions if isinstance(i, kind)]


def test_views_of_one_kind_are_made_once_and_plain_buffers_need_none() -> None:
    m = Maker()
    a = m.input("a", 8, 8)
    flipped = TensorRef(a, DType.F32, (expr(8), expr(8)), (expr(1), expr(8)), ZERO)
    for _ in range(2):
        out = m.mm(a, a, (8, 8))
        m.operations[-1] = evolve(m.operations[-1], args=(m.ref(a), flipped))
    instructions = planned(m.program(out, "b0"))
    assert len(kinds(instructions, View)) == 1
    (view,) = {i.name for i in kinds(instructions, View)}
    assert [i.args for i in kinds(instructions, ExternCall)] == [(Ref("a"), Ref(view))] * 2


def test_twins_are_views_of_their_own() -> None:
    m = Maker()
    out = m.mm(m.input("a", 8, 8), "a", (8, 8))
    twin = evolve(m.ref(out), twin=1)
    instructions = planned(evolve(m.program(out), outputs=(m.ref(out), twin, twin)))
    (view,) = kinds(instructions, View)
    assert isinstance(view, View) and (view.source, view.shape) == (out, twin.shape)
    assert instructions[-1] == Return((Ref(out), Ref(view.name), Ref(view.name)))


def test_sizes_come_from_parameters_first_and_from_tensors_else() -> None:
    m = Maker()
    s0, s1 = Sym("s0"), Sym("s1")
    x = m.input("x", s0, s1)
    program = m.program(m.pointwise("exp", x))
    instructions = planned(evolve(program, inputs=(SizeInput(s0, "n"), *program.inputs)))
    assert instructions[:2] == (BindParameter(s0, "n"), BindSize(s1, "x", 1))
    (launch,) = kinds(instructions, Launch)
    assert launch.sizes == (s0, s1)


def test_integers_that_repeat_a_size_are_checked_if_it_is_used() -> None:
    m = Maker()
    s0, s1 = Sym("s0"), Sym("s1")
    program = m.program(m.pointwise("exp", m.input("x", s0, 4)))
    sizes = [SizeInput(s, name) for s, name in ((s0, "a"), (s1, "b"), (s0, "c"), (s1, "d"))]
    instructions = planned(evolve(program, inputs=(*sizes, *program.inputs)))
    (check,) = kinds(instructions, AssertTrue)
    assert check == AssertTrue(eq(s0, Sym("s_c")), "the integer c is not s0")
    assert instructions.index(check) < instructions.index(kinds(instructions, Launch)[0])


def test_equal_kernels_are_one() -> None:
    m = Maker()
    x, y, w = m.input("x", 8, 8), m.input("y", 8, 8), m.input("w", 8, 8)
    outs = [m.mm(m.pointwise("exp", v), w, (8, 8)) for v in (x, y)]
    chosen = SchedulerOptions()
    host = plan_host(schedule(m.program(*outs), chosen, target()), chosen, target())
    assert [p.name for p in host.kernels[0].parameters] == ["p0", "p1"]
    assert len(host.kernels) == 1 and len(kinds(host.instructions, Launch)) == 2


def test_asserts_profile_ranges_and_comments_are_options() -> None:
    m = Maker()
    x = m.input("x", 8, 8)
    y = m.pointwise("exp", x)
    m.operations[-1] = evolve(m.operations[-1], origins=(0,))
    m.buffer("z", m.buffers[x].shape)
    m.operations.append(Extern("z0", "aten.sin.default", (m.ref(y),), (), ("z",)))
    program = evolve(m.program("z"), origins=(Origin("exp_1", "aten.exp.default", "f.py:3"),))
    plain = planned(program, inputs_checked=False)
    assert [i.text for i in kinds(plain, Comment)] == ["%exp_1 (f.py:3)"]
    (promise,) = kinds(plain, Conform)
    assert promise.mend is Mend.ALL and not kinds(plain, AssertNoNan)
    full = planned(program, size_asserts=True, nan_asserts=True, profile=True, comments=False)
    assert not kinds(full, Comment)
    ranges = kinds(full, ProfileRange)
    assert [r.label for r in ranges] == ["k0_exp", "z0"]
    assert any(isinstance(i, Conform) for r in ranges for i in r.body)
    assert [i.tensor for i in kinds(full, AssertNoNan)] == [y, "z"]


def sub(name: str) -> LoopProgram:
    m = Maker()
    out = m.pointwise("exp" if name == "yes" else "neg", m.input("x", 4))
    return evolve(m.program(out), name=name)


def test_control_flow_calls_subprograms() -> None:
    m = Maker()
    x, test = m.input("x", 4), m.input("test", 1)
    m.buffer("out", m.buffers[x].shape)
    m.operations.append(CondOp("c", m.ref(test), "yes", "no", (m.ref(x),), ("out",)))
    instructions = planned(evolve(m.program("out"), subprograms=(sub("yes"), sub("no"))))
    (branch,) = kinds(instructions, Branch)
    assert branch.then == (CallProgram("yes", (Ref("x"),), branch.then_values),)
    assert branch.results == ("out",)


def test_loops_carry_tensors_only() -> None:
    m = Maker()
    x = m.input("x", 4)
    m.buffer("out", m.buffers[x].shape)
    body = WhileOp("w", "yes", "no", (m.ref(x),), (), ("out",))
    m.operations.append(body)
    program = evolve(m.program("out"), subprograms=(sub("yes"), sub("no")))
    chosen = SchedulerOptions()
    host = plan_host(schedule(program, chosen, target()), chosen, target())
    (loop,) = kinds(host.instructions, Loop)
    assert loop.initial == ("x",) and loop.results == ("out",)
    wrong = evolve(program, operations=(evolve(body, carried=(Literal(1),)),))
    with pytest.raises(SchedulerError, match="GY-SCHED-002"):
        plan_host(schedule(wrong, chosen, target()), chosen, target())


def attention(m: Maker, rows: Expr | int) -> LoopProgram:
    """Two layers of attention of a tensor to itself."""
    x = m.input("x", 2, 3, rows, 4)
    for n in range(2):
        out = m.buffer(f"out{n}", m.buffers[x].shape).name
        sums = m.buffer(f"sums{n}", m.buffers[x].shape[:3]).name
        refs, results = (m.ref(x),) * 3, (m.ref(out), m.ref(sums))
        call = Extern(f"t{n}", "aten.attend.default", refs, (), (out, sums))
        attributes = (("scale", Literal(0.5)), ("causal", Literal(True)))
        m.operations.append(
            Template(f"t{n}", TemplateKind.ATTENTION, refs, results, attributes, call)
        )
        x = out
    return verify_loop(m.program(x, "sums0"))


def test_templates_that_a_target_offers_are_launched_and_equal_ones_are_one_kernel() -> None:
    offers = {d: offering(t) for d, t in target().items()}
    program = attention(Maker(), Sym("s0"))
    planned = schedule(program, SchedulerOptions(), offers)
    host = verify(plan_host(planned, SchedulerOptions(), offers))
    (kernel,) = host.kernels
    assert isinstance(kernel, TemplateKernel)
    assert [p.name for p in kernel.parameters] == ["p0", "p1", "p2"]
    launches = kinds(host.instructions, Launch)
    assert [i.tensors for i in launches] == [("x", "out0", "sums0"), ("out0", "out1", "sums1")]
    assert [i.sizes for i in launches] == [(Sym("s0"),)] * 2
    assert parse_host(show_host(host)) == host
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype(np.float32)
    want = run_loop(program, [x])
    for got in (run_schedule(planned, [x]), run_host(host, [x])):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_templates_that_a_target_lacks_are_library_calls() -> None:
    planned = schedule(attention(Maker(), 5), SchedulerOptions(), target())
    calls = [n for n in planned.nodes if isinstance(n, Extern)]
    assert [c.reason for c in calls] == ["kernels for cpu have no template of attention"] * 2
    host = verify(plan_host(planned, SchedulerOptions(), target()))
    assert not host.kernels and len(kinds(host.instructions, ExternCall)) == 2


def test_templates_that_a_kernel_language_refuses_are_library_calls() -> None:
    offers = {d: offering(t) for d, t in target().items()}

    def refuses(kernel: TemplateKernel) -> str:
        return "no room" if kernel.name == "t1" else ""

    planned = schedule(attention(Maker(), 5), SchedulerOptions(), offers, refuses=refuses)
    assert [(type(n), getattr(n, "reason", "")) for n in planned.nodes] == [
        (Template, ""), (Extern, "no room")
    ]  # fmt: skip


def offering(target: Target) -> Target:
    kinds = frozenset(TemplateKind)
    return evolve(target, capabilities=evolve(target.capabilities, templates=kinds))


def test_numbers_read_back_come_before_what_they_shape() -> None:
    m = Maker()
    x = m.input("x", 1, dtype=DType.I64)
    y = m.input("y", 8)
    u0 = Sym("u0")
    m.operations.append(ScalarRead("read", m.ref(x), u0))
    out = m.buffer("out", (u0,))
    m.operations.append(
        Extern("cut", "aten.narrow_copy.default", (m.ref(y), Const(0), Const(0), u0), (), ("out",))
    )
    z = m.pointwise("exp", out.name)
    instructions = planned(m.program(z), inputs_checked=False)
    assert isinstance(instructions[0], ReadScalar)
    assert isinstance(instructions[-1], Return)
    assert contiguous((u0,)) == out.strides and out.device == CPU


def test_sizes_that_a_call_finds_out_are_bound_before_they_are_used() -> None:
    m = Maker()
    x = m.input("x", 8)
    u0 = Sym("u0", SymKind.UNBACKED)
    chosen = m.buffer("chosen", (u0,))
    m.operations.append(Extern("find", "test.find.default", (m.ref(x),), (), (chosen.name,)))
    program = verify_loop(m.program(m.pointwise("exp", "chosen")))
    call, apart, bind, check = planned(program, inputs_checked=False)[:4]
    assert isinstance(call, ExternCall) and bind == BindSize(u0, "chosen", 0)
    assert apart == Separate(("chosen",), ("x",))
    promise = (chosen.dtype, chosen.device, chosen.shape, chosen.strides)
    assert check == Conform("chosen", *promise, Mend.ALL, "test.find.default")
    strict = planned(program, inputs_checked=False, size_asserts=True)[3]
    assert strict == Conform("chosen", *promise, Mend.NOTHING, "test.find.default")


def test_inputs_that_are_used_are_checked() -> None:
    m = Maker()
    s0 = Sym("s0", SymKind.SIZE)
    x, y = m.input("x", s0, 4), m.input("y", 8)
    m.input("unused", 8)
    m.operations.append(Extern("f", "test.fill_.default", (m.ref(y),), (), (), mutates=("y",)))
    instructions = planned(m.program(m.pointwise("exp", x)))
    checks = {i.tensor: i.mend for i in kinds(instructions, Conform)}
    assert checks == {"x": Mend.PENDING, "y": Mend.NOTHING}
    assert instructions[0] == BindSize(s0, "x", 0)


def test_a_device_without_target_is_refused() -> None:
    m = Maker()
    x = m.input("x", 4)
    program = m.program(m.pointwise("exp", x))
    with pytest.raises(SchedulerError, match="GY-SCHED-001"):
        schedule(program, SchedulerOptions(), {})


def test_schedules_keep_kernels_short_names() -> None:
    m = Maker()
    m.pointwise("exp", m.input("x", 4))
    m.operations[-1] = evolve(m.operations[-1], origins=(0,))
    program = evolve(m.program("b0"), origins=(Origin("n", "aten." + "x" * 80 + ".default"),))
    (node,) = schedule(program, SchedulerOptions(), target()).nodes
    assert isinstance(node, Kernel) and len(node.name) == 60
