"""Small Loop IR programs that tests schedule."""

from collections.abc import Callable, Sequence

from gyrator_ir.body.nodes import Axis, Let, Load, Reduce, ReduceKind, Statement, Store
from gyrator_ir.expr import ZERO, Const, Expr, Sym, expr, product_of, sum_of
from gyrator_ir.loop.nodes import (
    Buffer,
    Extern,
    LoopProgram,
    Operation,
    Pointwise,
    Reduction,
    TensorInput,
    TensorRef,
)
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.types import Device, DType

CPU = Device("cpu")
Shape = tuple[Expr, ...]


def target(graphs: bool = False, **numbers: int) -> dict[str, Target]:
    """Return a CPU target with these heuristics."""
    capabilities = Capabilities(dtypes=frozenset(DType), graphs=graphs)
    return {
        "cpu": Target(
            device="cpu",
            arch="test",
            kernel_backend="c++",
            capabilities=capabilities,
            heuristics=Heuristics(**numbers),
        )
    }


def contiguous(shape: Sequence[Expr]) -> Shape:
    """Return row-major strides."""
    return tuple(product_of(shape[n + 1 :]) for n in range(len(shape)))


class Maker:
    """Builds a program operation by operation, as lowering does: one operation an op."""

    def __init__(self) -> None:
        self.inputs: list[TensorInput] = []
        self.buffers: dict[str, Buffer] = {}
        self.created: list[Buffer] = []
        self.operations: list[Operation] = []

    def input(self, name: str, *shape: Expr | int, dtype: DType = DType.F32) -> str:
        sizes = tuple(expr(n) for n in shape)
        b = Buffer(name, dtype, CPU, sizes, contiguous(sizes))
        self.inputs.append(TensorInput(b))
        self.buffers[name] = b
        return name

    def buffer(self, name: str, shape: Shape, dtype: DType = DType.F32) -> Buffer:
        b = Buffer(name, dtype, CPU, shape, contiguous(shape))
        self.buffers[name] = b
        self.created.append(b)
        return b

    def at(self, name: str, index: Sequence[Expr]) -> Expr:
        """Return the address of an element, last axes of a shorter shape aligned."""
        b = self.buffers[name]
        index = index[len(index) - len(b.shape) :]
        return sum_of(
            [
                ZERO,
                *(
                    (ZERO if n is Const(1) else i) * s
                    for i, n, s in zip(index, b.shape, b.strides, strict=True)
                ),
            ]
        )

    def pointwise(
        self, op: str, *operands: str, shape: Sequence[Expr | int] | None = None, name: str = ""
    ) -> str:
        """Append `op` of broadcast operands."""
        out = name or f"b{len(self.operations)}"
        sizes = tuple(
            expr(n) for n in (shape or max((self.buffers[o].shape for o in operands), key=len))
        )
        self.buffer(out, sizes)
        axes = tuple(Axis(Sym(f"i{n}"), e) for n, e in enumerate(sizes))
        index = [a.symbol for a in axes]
        loads = tuple(Load(f"a{n}", o, self.at(o, index)) for n, o in enumerate(operands))
        let = Let("v", op, tuple(x.name for x in loads), DType.F32)
        body: tuple[Statement, ...] = (*loads, let, Store(out, self.at(out, index), "v"))
        self.operations.append(Pointwise(f"op{len(self.operations)}", axes, body))
        return out

    def view(
        self, op: str, source: str, shape: Sequence[Expr | int], order: Callable[..., Expr]
    ) -> str:
        """Append `op` of a view: `order` maps output indices to an address."""
        out = f"b{len(self.operations)}"
        sizes = tuple(expr(n) for n in shape)
        self.buffer(out, sizes)
        axes = tuple(Axis(Sym(f"i{n}"), e) for n, e in enumerate(sizes))
        index = [a.symbol for a in axes]
        body = (
            Load("a", source, order(*index)),
            Let("v", op, ("a",), DType.F32),
            Store(out, self.at(out, index), "v"),
        )
        self.operations.append(Pointwise(f"op{len(self.operations)}", axes, body))
        return out

    def store(self, destination: str, source: str) -> None:
        """Append a copy into an existing buffer of equal shape, as mutations end."""
        b = self.buffers[destination]
        axes = tuple(Axis(Sym(f"i{n}"), e) for n, e in enumerate(b.shape))
        address = self.at(destination, [a.symbol for a in axes])
        body = (Load("a", source, self.at(source, [a.symbol for a in axes])),)
        store = Store(destination, address, "a")
        self.operations.append(Pointwise(f"op{len(self.operations)}", axes, (*body, store)))

    def reduction(
        self, kind: ReduceKind, source: str, dims: Sequence[int], results: int = 1
    ) -> tuple[str, ...]:
        """Append a reduction that keeps dimensions as size 1."""
        b = self.buffers[source]
        index: list[Expr] = []
        points: list[Axis] = []
        inner: list[Axis] = []
        shape: list[Expr] = []
        for n, e in enumerate(b.shape):
            if n in dims:
                inner.append(Axis(Sym(f"r{len(inner)}"), e))
                index.append(inner[-1].symbol)
                shape.append(Const(1))
            else:
                points.append(Axis(Sym(f"i{len(points)}"), e))
                index.append(points[-1].symbol)
                shape.append(e)
        arg = kind in (ReduceKind.ARGMIN, ReduceKind.ARGMAX)
        outs = tuple(f"b{len(self.operations)}_{n}" for n in range(results))
        for o in outs:
            self.buffer(o, tuple(shape), DType.I64 if arg else DType.F32)
        names = tuple(f"m{n}" for n in range(results))
        stores = tuple(Store(o, self.at(o, index), m) for o, m in zip(outs, names, strict=True))
        load = Load("a", source, self.at(source, index))
        self.operations.append(
            Reduction(
                f"op{len(self.operations)}",
                tuple(points),
                tuple(inner),
                (load,),
                Reduce(names, kind, ("a",), DType.F32),
                stores,
            )
        )
        return outs

    def mm(self, a: str, b: str, shape: Sequence[Expr | int]) -> str:
        """Append a matrix product of two buffers as they are."""
        return self._call("mm", (a, b), tuple(expr(n) for n in shape))

    def addmm(self, c: str, a: str, b: str) -> str:
        """Append the sum of a buffer and a matrix product of two as they are."""
        return self._call("addmm", (c, a, b), self.buffers[c].shape)

    def _call(self, op: str, operands: Sequence[str], shape: Shape) -> str:
        out = f"b{len(self.operations)}"
        self.buffer(out, shape)
        self.operations.append(
            Extern(
                f"op{len(self.operations)}",
                f"aten.{op}.default",
                tuple(map(self.ref, operands)),
                (),
                (out,),
                f"aten.{op}.out",
                ("out",),
            )
        )
        return out

    def ref(self, name: str) -> TensorRef:
        """Return a whole buffer as an argument."""
        b = self.buffers[name]
        return TensorRef(name, b.dtype, b.shape, b.strides, ZERO)

    def program(self, *outputs: str) -> LoopProgram:
        """Return the program."""
        return LoopProgram(
            "main",
            tuple(self.inputs),
            (),
            tuple(self.created),
            tuple(self.operations),
            tuple(self.ref(o) for o in outputs),
        )
