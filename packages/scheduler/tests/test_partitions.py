"""What device graphs capture is planned once, in the schedule; the host program follows it."""

from collections.abc import Callable

import numpy as np
import pytest
from attrs import evolve
from scheduler_programs import CPU, Maker, target

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import Sym
from gyrator_ir.host.nodes import CallPartition, Capture, HostProgram
from gyrator_ir.host.parse import parse as parse_host
from gyrator_ir.host.print import show as show_host
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.kernel.nodes import Partition
from gyrator_ir.kernel.parse import parse
from gyrator_ir.kernel.print import show
from gyrator_ir.kernel.verify import verify
from gyrator_ir.loop.nodes import CallOp, DeviceCopy, Extern, LoopProgram
from gyrator_ir.types import Device
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.loop import run_loop

GPU = Device("gpu", 1)
TARGETS = target(graphs=True) | {"gpu": evolve(target(graphs=True)["cpu"], device="gpu")}
WAITS = "it waits for its device"


def planned(
    program: LoopProgram, targets: dict = TARGETS, **options: bool
) -> tuple[tuple[Partition, ...], HostProgram]:
    """Return the partitions and the host program, which means what the program means."""
    chosen = SchedulerOptions(device_graphs=True, **options)
    result = verify(schedule(program, chosen, targets))
    assert parse(show(result)) == result
    host = verify_host(plan_host(result, chosen, targets))
    assert parse_host(show_host(host)) == host
    called = [i.program for i in host.instructions if isinstance(i, CallPartition)]
    assert called == [p.name for p in host.subprograms if p.capture is not None]
    if all(not e.free_symbols for i in program.inputs for e in i.buffer.shape):
        rng = np.random.default_rng(0)
        shapes = [tuple(e.value for e in i.buffer.shape) for i in program.inputs]
        inputs = [rng.uniform(0.1, 1, s).astype(np.float32) for s in shapes]
        actual = [g.copy() for g in inputs]
        for want, got in zip(run_loop(program, inputs), run_host(host, actual), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
        np.testing.assert_array_equal(actual, inputs)
    return result.partitions, host


def products(m: Maker, x: str, count: int) -> str:
    for _ in range(count):
        x = m.pointwise("tanh", m.mm(x, x, (4, 4)))
    return x


def waiting(m: Maker, x: str) -> str:
    """Append a call that no graph can hold."""
    out = m.mm(x, x, (4, 4))
    m.operations[-1] = evolve(m.operations[-1], uncaptured=WAITS)
    return out


def test_a_program_of_one_device_is_one_graph() -> None:
    m = Maker()
    x, y = m.input("x", 4, 4), m.input("y", 4, 4)
    z = products(m, x, 2)
    m.store(y, z)
    parts, host = planned(m.program(z))
    assert parts == (Partition(0, 4, CPU),)
    assert host.capture == Capture(CPU, (1,)) and not host.subprograms and host.home is None
    parts, host = planned(m.program(z), graph_parts=False)
    assert parts == (Partition(0, 4, CPU),) and host.capture is not None
    assert not schedule(m.program(z), SchedulerOptions(), TARGETS).partitions


def test_a_call_that_waits_divides_a_program() -> None:
    m = Maker()
    x = m.input("x", 4, 4)
    out = products(m, waiting(m, products(m, x, 2)), 2)
    parts, host = planned(m.program(out))
    assert parts == (Partition(0, 4, CPU), Partition(4, 5, None, WAITS), Partition(5, 9, CPU))
    assert host.capture is None and [p.capture for p in host.subprograms] == [Capture(CPU)] * 2
    parts, host = planned(m.program(out), graph_parts=False)
    assert all(p.device is None and p.reason for p in parts) and not host.subprograms


def test_a_tensor_of_the_host_stays_outside_and_all_else_is_one_graph() -> None:
    """A copy to the device waits; what needs it, and what does not, is brought together."""
    m = Maker()
    x, i = m.input("x", 4, 4), m.input("i", 4, 4)
    out = products(m, x, 1)
    m.buffer("there", m.buffers[i].shape)
    m.operations.append(DeviceCopy("move", m.ref(i), "there"))
    out = products(m, m.pointwise("add", out, "there"), 1)
    program = m.program(out)
    moved = {b: GPU for b in m.buffers if b != i}
    put = lambda b: evolve(b, device=moved.get(b.name, CPU))  # noqa: E731
    program = evolve(
        program,
        inputs=tuple(evolve(inputs, buffer=put(inputs.buffer)) for inputs in program.inputs),
        buffers=tuple(map(put, program.buffers)),
    )
    (outside, inside), host = planned(program)
    assert outside == Partition(0, 1, None, "it copies from one device to another")
    assert (inside.device, inside.end) == (GPU, 5) and host.home == GPU
    assert [(p.capture, p.home) for p in host.subprograms] == [(Capture(GPU), GPU)]


def one_node(m: Maker, x: str) -> str:
    return products(m, waiting(m, m.pointwise("exp", x)), 2)


def sized_argument(m: Maker, x: str) -> str:
    """A call that takes a size, though all its tensors have constant ones."""
    m.buffer("n", (Sym("s0"),))
    m.operations.append(Extern("op0", "aten.arange.default", (Sym("s0"),), (), ("n",)))
    out = m.mm(x, x, (4, 4))
    m.operations[-1] = evolve(m.operations[-1], kwargs=(("beta", Sym("s0")),))
    return products(m, out, 1)


@pytest.mark.parametrize(
    ("grow", "reason"),
    [
        (one_node, "a graph of one kernel or call saves nothing"),
        (sized_argument, "its sizes change from call to call"),
    ],
)
def test_why_nodes_stay_outside(grow: Callable[[Maker, str], str], reason: str) -> None:
    m = Maker()
    x = m.input("x", 4, 4)
    if grow is sized_argument:
        m.input("sized", Sym("s0"))
    parts, host = planned(m.program(grow(m, x)))
    assert (parts[0].device, parts[0].reason) == (None, reason)
    assert parts[-1].device == CPU and len(host.subprograms) == 1


def test_why_nothing_is_captured() -> None:
    m = Maker()
    program = m.program(products(m, m.input("x", 4, 4), 2))
    (only,), host = planned(program, nan_asserts=True)
    assert only == Partition(0, 4, None, "the host checks results for NaN")
    (only,), host = planned(program, target(graphs=False))
    assert only == Partition(0, 4, None, "cpu has no device graphs") and host.capture is None


def test_programs_inside_of_programs_are_not_divided() -> None:
    inner = Maker()
    region = evolve(inner.program(products(inner, inner.input("a", 4, 4), 2)), name="region")
    m = Maker()
    x = products(m, m.input("x", 4, 4), 1)
    m.buffer("r", m.buffers[x].shape)
    m.operations.append(CallOp("call", "region", (m.ref(x),), ("r",)))
    (total,) = m.reduction(ReduceKind.SUM, products(m, "r", 1), (0, 1))
    parts, host = planned(evolve(m.program(total), subprograms=(region,)))
    assert [p.reason for p in parts if p.device is None] == ["it calls a program"]
    assert [p.name for p in host.subprograms if p.capture is None] == ["region"]
