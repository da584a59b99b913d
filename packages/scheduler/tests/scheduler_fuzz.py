"""Random programs in the form that lowering gives them, and how to compare their meanings."""

import random

import numpy as np
from scheduler_programs import Maker, target

from gyrator_ir.body.nodes import (
    Axis,
    Bind,
    IndexValue,
    Let,
    Load,
    ReduceKind,
    ScanKind,
    ScanStep,
    SortStep,
    Store,
    StoreMode,
)
from gyrator_ir.body.nodes import Const as ConstValue
from gyrator_ir.expr import Const, Expr, Sym
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.kernel.verify import verify as verify_schedule
from gyrator_ir.loop.nodes import LoopProgram, Pointwise, Scan, Scatter, Sort
from gyrator_ir.loop.verify import verify as verify_loop
from gyrator_ir.types import DType
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.kernel import run_schedule
from gyrator_testing.interp.loop import run_loop

UNARY = ("neg", "abs", "sqrt", "exp", "sigmoid", "tanh", "floor")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
KINDS = (
    ReduceKind.SUM, ReduceKind.MAX, ReduceKind.MIN, ReduceKind.PROD, ReduceKind.ARGMAX,
    ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX,
)  # fmt: skip
RESULTS = {ReduceKind.WELFORD: 3, ReduceKind.ONLINE_SOFTMAX: 2}


class Fuzzer(Maker):
    """Grows a random program."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.values: list[str] = []
        n = self.random.choice([3, 4, 6])
        m = self.random.choice([1, 2, 5])
        k = self.random.choice([4, 8])
        self.shape = (m, n, k)
        for name in "xyz":
            self.values.append(self.input(name, *self.shape))
        self.values.append(self.input("row", n, 1))
        self.values.append(self.input("column", 1, 1, k))
        self.frozen: set[str] = set()

    def pick(self) -> str:
        """Return a value, a recent one more often."""
        if self.random.random() < 0.6:
            return self.random.choice(self.values[-4:])
        return self.random.choice(self.values)

    def full(self) -> str:
        """Return a value of three dimensions."""
        return self.random.choice([v for v in self.values if len(self.buffers[v].shape) == 3][-5:])

    def grow(self) -> None:
        """Append one operation."""
        choice = self.random.random()
        if choice < 0.3:
            self.values.append(self.pointwise(self.random.choice(UNARY), self.pick()))
        elif choice < 0.62:
            a, b = self.pick(), self.pick()
            op = self.random.choice(BINARY)
            self.values.append(self.pointwise(op, a, b, shape=self.broadcast(a, b)))
        elif choice < 0.85:
            self.fold()
        elif choice < 0.89:
            self.reverse()
        elif choice < 0.92:
            self.transpose()
        elif choice < 0.94:
            self.scan()
        elif choice < 0.96:
            self.sort()
        elif choice < 0.98:
            self.gather()
        else:
            self.mutate()

    def broadcast(self, a: str, b: str) -> tuple[Expr, ...]:
        """Return the common shape of two values."""
        shapes = [self.buffers[v].shape for v in (a, b)]
        rank = max(len(s) for s in shapes)
        padded = [(Const(1),) * (rank - len(s)) + s for s in shapes]
        return tuple(p if q is Const(1) else q for p, q in zip(*padded, strict=True))

    def fold(self) -> None:
        """Append a reduction."""
        source = self.full()
        dims = self.random.choice([(2,), (2,), (0,), (1,), (1, 2), (0, 1), (0, 2), (0, 1, 2)])
        kind = self.random.choice(KINDS)
        result = self.reduction(kind, source, dims, RESULTS.get(kind, 1))
        self.values.extend(f for f in result if self.buffers[f].dtype is DType.F32)
        self.outputs_too = [f for f in result if self.buffers[f].dtype is not DType.F32]

    def reverse(self) -> None:
        """Append a flip along the last dimension."""
        source = self.full()
        b = self.buffers[source]
        s, last = b.strides, b.shape[2]
        self.values.append(
            self.view("neg", source, b.shape, lambda i, j, k: i * s[0] + j * s[1] + (last - 1 - k))
        )

    def transpose(self) -> None:
        """Append a transposition of two dimensions, with a reshape back."""
        source = self.full()
        b = self.buffers[source]
        n, k = b.shape[1], b.shape[2]

        def address(i: Expr, j: Expr, m: Expr) -> Expr:
            flat = j * k + m
            return i * b.strides[0] + (flat % n) * b.strides[1] + (flat // n) * b.strides[2]

        self.values.append(self.view("abs", source, b.shape, address))

    def line(self) -> tuple[str, str, tuple[Axis, ...], list[Expr]]:
        source = self.full()
        out = f"b{len(self.operations)}"
        b = self.buffers[source]
        self.buffer(out, b.shape)
        axes = tuple(
            Axis(Sym(name), e) for name, e in zip(("i0", "i1", "r0"), b.shape, strict=True)
        )
        return source, out, axes, [a.symbol for a in axes]

    def scan(self) -> None:
        """Append a running sum or maximum."""
        source, out, axes, index = self.line()
        kind = self.random.choice([ScanKind.SUM, ScanKind.MAX])
        step = ScanStep(("s",), kind, ("a",), DType.F32, self.random.random() < 0.3)
        load = Load("a", source, self.at(source, index))
        store = Store(out, self.at(out, index), "s")
        self.operations.append(Scan(f"op{out}", axes[:2], axes[2], (load,), step, (store,)))
        self.values.append(out)

    def sort(self) -> None:
        """Append a sort; its positions are thrown away."""
        source, out, axes, index = self.line()
        step = SortStep(("s", "p"), ("a",), DType.F32, self.random.random() < 0.5)
        load = Load("a", source, self.at(source, index))
        store = Store(out, self.at(out, index), "s")
        self.operations.append(Sort(f"op{out}", axes[:2], axes[2], (load,), step, (store,)))
        self.values.append(out)

    def gather(self) -> None:
        """Append a read at computed positions along dimension 1."""
        source, out, axes, index = self.line()
        b = self.buffers[source]
        axes = (*axes[:2], Axis(Sym("i2"), axes[2].extent))
        index = [a.symbol for a in axes]
        t = Sym("t0")
        body = (
            IndexValue("n", (index[1] * 2 + 1) % b.shape[1], DType.I64),
            Bind(t, "n", b.shape[1]),
            Load("a", source, self.at(source, [index[0], t, index[2]])),
            Let("v", "neg", ("a",), DType.F32),
            Store(out, self.at(out, index), "v"),
        )
        self.operations.append(Pointwise(f"op{out}", axes, body))
        self.values.append(out)

    def mutate(self) -> None:
        """Add to an input in place, or scatter into it."""
        name = self.random.choice("xyz")
        source = self.full()
        b = self.buffers[name]
        axes = tuple(Axis(Sym(f"i{n}"), e) for n, e in enumerate(b.shape))
        index = [a.symbol for a in axes]
        load = Load("a", source, self.at(source, index))
        if self.random.random() < 0.5:
            body = (
                load,
                ConstValue("c", 0.5, DType.F32),
                Let("v", "mul", ("a", "c"), DType.F32),
                Store(name, self.at(name, index), "v"),
            )
            self.operations.append(Pointwise(f"op{len(self.operations)}", axes, body))
        elif source != name:
            t = Sym("t0")
            body2 = (
                load,
                IndexValue("n", index[1] // 2, DType.I64),
                Bind(t, "n", b.shape[1]),
                Store(name, self.at(name, [index[0], t, index[2]]), "a", StoreMode.ADD),
            )
            self.operations.append(Scatter(f"op{len(self.operations)}", axes, body2))


def random_program(seed: int, size: int) -> LoopProgram:
    """Return a random program of about `size` operations."""
    maker = Fuzzer(seed)
    for _ in range(size):
        maker.grow()
    created = [b.name for b in maker.created]
    outputs = maker.random.sample(created, min(len(created), 1 + len(created) // 4))
    if created and created[-1] not in outputs:
        outputs.append(created[-1])
    return maker.program(*outputs)


def inputs_of(program: LoopProgram, seed: int) -> list[np.ndarray]:
    """Return random inputs."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(e.value for e in i.buffer.shape) for i in program.inputs]
    return [rng.uniform(0.1, 1.0, s).astype(np.float32) for s in shapes]


def same(a: object, b: object) -> None:
    """Assert that two results are equal up to the rounding that reassociation may change."""
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-4, equal_nan=True)


def check(
    program: LoopProgram,
    seed: int,
    options: SchedulerOptions,
    graphs: bool = False,
    **numbers: int,
) -> None:
    """Assert that a program, its schedule and its host program mean the same, mutations too."""
    inputs = inputs_of(program, seed)
    targets = target(graphs, **numbers)
    verify_loop(program)
    scheduled = verify_schedule(schedule(program, options, targets))
    host = verify_host(plan_host(scheduled, options, targets))
    states = []
    for run, subject in ((run_loop, program), (run_schedule, scheduled), (run_host, host)):
        actual = [g.copy() for g in inputs]
        with np.errstate(all="ignore"):
            results = run(subject, actual)
        states.append([np.array(r) for r in results] + actual)
    for other in states[1:]:
        for expected, got in zip(states[0], other, strict=True):
            same(got, expected)
