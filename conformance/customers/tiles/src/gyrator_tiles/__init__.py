"""A tile language: PyTorch functions as programs over tiles of points, run by NumPy.

It takes Gyrator's lowering and leaves the rest: Loop IR in, its own text out.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_ir.body.nodes import Axis, Let, Load, ReduceKind, Store
from gyrator_ir.body.nodes import Const as Literal
from gyrator_ir.expr import Const, Expr, Sym, compile_python
from gyrator_ir.loop.nodes import LoopProgram, Pointwise, Reduction, TensorInput, TensorRef
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.types import DType
from gyrator_lowering import LoweringOptions, lower

__all__ = ["TileError", "TileProgram", "compile_tiles"]

Array = np.ndarray[Any, Any]

OPS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "exp": np.exp, "tanh": np.tanh, "sqrt": np.sqrt, "maximum": np.maximum, "where": np.where,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "gt": np.greater, "lt": np.less, "le": np.less_equal,
})  # fmt: skip
FOLDS: Mapping[ReduceKind, Callable[..., Any]] = MappingProxyType(
    {ReduceKind.SUM: np.sum, ReduceKind.MAX: np.max, ReduceKind.MIN: np.min}
)


class TileError(Exception):
    """The function needs something that tiles do not have."""


@frozen
class TileProgram:
    """A function in the tile language. Call it with arrays."""

    program: LoopProgram
    tile: int
    """Points that run together."""

    @property
    def text(self) -> str:
        """The program as lines: one `tile` a loop, its steps below it."""
        lines = []
        for op in self.program.operations:
            assert isinstance(op, Pointwise | Reduction)
            space = " x ".join(f"{a.symbol.name} < {a.extent!r}" for a in op.axes) or "one point"
            lines.append(f"tile {op.name} over {space} by {self.tile}")
            for s in op.body:
                match s:
                    case Load(name, buffer, index):
                        lines.append(f"  {name} = {buffer}[{index!r}]")
                    case Let(name, verb, args):
                        lines.append(f"  {name} = {verb}({', '.join(args)})")
                    case Literal(name, value):
                        lines.append(f"  {name} = {value}")
                    case Store(buffer, index, value):
                        lines.append(f"  {buffer}[{index!r}] = {value}")
            if isinstance(op, Reduction):
                folded = " x ".join(f"{a.symbol.name} < {a.extent!r}" for a in op.inner)
                found = f"{op.reduce.kind.value}({op.reduce.args[0]}) over {folded}"
                lines.append(f"  {op.reduce.names[0]} = {found}")
                lines += [f"  {s.buffer}[{s.index!r}] = {s.value}" for s in op.stores]
        return "\n".join(lines) + "\n"

    def __call__(self, *arrays: Array) -> list[Array]:
        """Run it on contiguous `float32` arrays of the shapes that it was compiled for."""
        memory: dict[str, Array] = {}
        for given, array in zip(self.program.inputs, arrays, strict=True):
            assert isinstance(given, TensorInput)
            memory[given.buffer.name] = np.ascontiguousarray(array).reshape(-1)
        for b in self.program.buffers:
            memory[b.name] = np.empty(_count(b.shape), np.float32)
        for op in self.program.operations:
            assert isinstance(op, Pointwise | Reduction)
            points = _count([a.extent for a in op.axes])
            for start in range(0, points, self.tile):
                _run(op, np.arange(start, min(start + self.tile, points)), memory)
        results = []
        for out in self.program.outputs:
            assert isinstance(out, TensorRef)
            results.append(memory[out.buffer].reshape([_number(n) for n in out.shape]))
        return results


def compile_tiles(
    function: Callable[..., Any], *examples: torch.Tensor, tile: int = 32
) -> TileProgram:
    """Compile a function of `float32` tensors for the shapes of `examples`.

    Raises:
        TileError: The function does more than elementwise work and simple folds.
    """
    graph = make_fx(function, tracing_mode="fake")(*examples)
    device = examples[0].device.type
    target = Target(
        device=device,
        arch="tiles",
        kernel_backend="tiles",
        capabilities=Capabilities(dtypes=frozenset({DType.F32, DType.BOOL})),
    )
    program = lower(graph, LoweringOptions(), {device: target})
    for op in program.operations:
        if not isinstance(op, Pointwise | Reduction):
            raise TileError(f"{op.name} is a {type(op).__name__}, for which there are no tiles")
        if isinstance(op, Reduction) and op.reduce.kind not in FOLDS:
            raise TileError(f"{op.name} folds by {op.reduce.kind.value}, which tiles do not have")
        for s in op.body:
            known = isinstance(s, Literal) or (isinstance(s, Let) and s.op in OPS)
            if not known and not (isinstance(s, Load | Store) and s.mask is None):
                raise TileError(f"{op.name} has a step that tiles do not have: {s}")
    return TileProgram(program, tile)


def _run(op: Pointwise | Reduction, points: Array, memory: dict[str, Array]) -> None:
    """Run one tile: points go down, what is folded goes across."""
    inner = op.inner if isinstance(op, Reduction) else ()
    places = _spread(op.axes, points, (-1, 1))
    places |= _spread(inner, np.arange(_count([a.extent for a in inner])), (1, -1))
    values: dict[str, Any] = {}

    def address(index: Expr) -> Any:
        symbols = sorted(index.free_symbols, key=lambda s: s.name)
        (found,) = compile_python((index,), symbols)(*(places[s] for s in symbols))
        return found

    def store(s: Store) -> None:
        where = np.broadcast_to(address(s.index), (len(points), 1))
        memory[s.buffer][where] = values[s.value]

    for step in op.body:
        match step:
            case Load(name, buffer, index):
                values[name] = memory[buffer][address(index)]
            case Let(name, verb, args):
                values[name] = OPS[verb](*(values[a] for a in args))
            case Literal(name, value):
                values[name] = np.float32(value)
            case Store():
                store(step)
    if isinstance(op, Reduction):
        shape = (len(points), _count([a.extent for a in inner]))
        whole = np.broadcast_to(values[op.reduce.args[0]], shape)
        values[op.reduce.names[0]] = FOLDS[op.reduce.kind](whole, axis=1, keepdims=True)
        for s in op.stores:
            store(s)


def _spread(axes: Sequence[Axis], linear: Array, shape: tuple[int, int]) -> dict[Sym, Array]:
    """Return the position along each axis of each linear position."""
    found: dict[Sym, Array] = {}
    for axis in reversed(axes):
        extent = _number(axis.extent)
        found[axis.symbol], linear = (linear % extent).reshape(shape), linear // extent
    return found


def _count(shape: Sequence[Expr]) -> int:
    return int(np.prod([_number(n) for n in shape], dtype=np.int64))


def _number(size: Expr) -> int:
    if not isinstance(size, Const):
        raise TileError(f"tiles have fixed sizes, not {size!r}")
    return size.value
