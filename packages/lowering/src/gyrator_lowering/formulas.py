"""Graphs of single numbers as formulas: what a template computes at each place of its scores.

A graph that flexible attention is given computes one number from a score, its place, and tensors
that it captures. It is lowered as any graph is, and formed into one body.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Statement, Store, StoreMode
from gyrator_ir.body.rewrite import defined, live, renamed, rewritten
from gyrator_ir.expr import ZERO, Expr, ShapeFacts, Sym, SymKind, le
from gyrator_ir.loop.formulas import PLACES
from gyrator_ir.loop.nodes import (
    Formula,
    Literal,
    LoopProgram,
    Pointwise,
    TensorInput,
    TensorRef,
)
from gyrator_ir.types import DType
from gyrator_lowering.builder.values import TensorValue

Lower = Callable[[GraphModule], LoopProgram]


class NoFormulaError(Exception):
    """A graph is more than a formula; the message says why."""


@frozen(kw_only=True)
class Surroundings:
    """What a formula may use."""

    lower: Lower
    facts: ShapeFacts
    extents: Mapping[Sym, Expr]
    """How many batches, heads, rows and columns there are, by `PLACES`."""


def formula(
    name: str,
    gm: GraphModule,
    given: Mapping[int, str],
    places: Sequence[int],
    captured: Sequence[Any],
    dtype: DType,
    around: Surroundings,
) -> Formula:
    """Return what a graph computes.

    Args:
        name: the formula's.
        gm: the graph.
        given: the arguments that are values, by place, and what these are called.
        places: the arguments that are the batch, head, row and column.
        captured: what the other arguments are, in order.
        dtype: what the result is converted to.
        around: what it may use.

    Raises:
        NoFormulaError: for a graph that needs more than single numbers.
    """
    program = around.lower(_in_f32(gm, given))
    values: dict[str, str] = {}
    indices: dict[str, Expr] = {}
    tensors: dict[str, TensorValue] = {}
    rest = iter(captured)
    for place, one in enumerate(program.inputs):
        if place in given:
            values[_buffer(one)] = given[place]
        elif place in places:
            indices[_buffer(one)] = PLACES[places.index(place)]
        else:
            what = next(rest)
            if isinstance(one, TensorInput) and isinstance(what, TensorValue):
                pairs = zip(
                    (*one.buffer.shape, *one.buffer.strides),
                    (*what.shape, *what.strides),
                    strict=True,
                )
                if any(mine is not theirs for mine, theirs in pairs):
                    raise NoFormulaError("a captured tensor has another layout than eager's")
                if what.stored is not what.dtype:
                    raise NoFormulaError("a captured tensor is of other bits")
                tensors[one.buffer.name] = what
            elif not isinstance(what, Expr | int):
                raise NoFormulaError(f"a captured {type(what).__name__}")
    if program.constants:
        raise NoFormulaError("a tensor is written in the graph")
    maker = _Maker(values, indices, tensors, around, dict.fromkeys(given.values(), DType.F32))
    for op in program.operations:
        maker.operation(op)
    first, *others = program.outputs
    if any(o != Literal(None) for o in others):
        raise NoFormulaError("gradients of captured tensors are wanted")
    if not isinstance(first, TensorRef) or first.shape:
        raise NoFormulaError("the result is no single number")
    result = maker.converted(maker.value(first.buffer), dtype)
    return Formula(name, tuple(given.values()), live(maker.body, (result,)), result)


def _buffer(one: Any) -> str:
    if not isinstance(one, TensorInput):
        raise NoFormulaError("an argument is no tensor")
    return one.buffer.name


def _in_f32(gm: GraphModule, given: Mapping[int, str]) -> GraphModule:
    """Return a copy of a graph whose given values are in `f32`, as eager's are."""
    copy = GraphModule(gm, torch.fx.Graph())
    results = copy.graph.graph_copy(gm.graph, {}, return_output_node=True)
    copy.graph.output(results[0] if isinstance(results, tuple) else results)
    fakes = [n.meta["val"] for n in copy.graph.nodes if n.op == "placeholder"]
    mode = next((f.fake_mode for f in fakes if isinstance(f, FakeTensor)), None)
    if mode is None:
        raise NoFormulaError("nothing is known of the graph's arguments")
    with mode:
        for place in given:
            fakes[place] = torch.empty((), dtype=torch.float32, device=fakes[place].device)
    FakeTensorProp(copy, mode).propagate_dont_convert_inputs(*fakes)
    for node, fake in zip(copy.graph.find_nodes(op="placeholder"), fakes, strict=True):
        node.meta["val"] = fake
    return copy


@define
class _Maker:
    """One body, from the operations of a program whose buffers have no dimension."""

    values: dict[str, str]
    """What buffers hold."""
    indices: dict[str, Expr]
    """Buffers that hold a place."""
    tensors: Mapping[str, TensorValue]
    around: Surroundings
    dtypes: dict[str, DType]
    body: list[Statement] = field(factory=list)
    exprs: dict[str, Expr] = field(factory=dict)
    """Values that are index expressions."""

    def value(self, buffer: str) -> str:
        """Return what a buffer holds."""
        if buffer in self.indices and buffer not in self.values:
            name = self.fresh(DType.I32)
            self.values[buffer] = name
            self.exprs[name] = self.indices[buffer]
            self.body.append(IndexValue(name, self.indices[buffer], DType.I32))
        if buffer not in self.values:
            tensor = self.tensors.get(buffer)
            if tensor is None or tensor.shape:
                raise NoFormulaError("the result is no single number")
            name = self.fresh(tensor.stored)
            self.body.append(Load(name, tensor.buffer, tensor.offset))
            return name
        return self.values[buffer]

    def fresh(self, dtype: DType) -> str:
        """Return the name of a new value."""
        name = f"v{len(self.dtypes)}"
        self.dtypes[name] = dtype
        return name

    def converted(self, name: str, dtype: DType) -> str:
        """Return a value as one of another type."""
        if self.dtypes[name] is dtype:
            return name
        new = self.fresh(dtype)
        self.body.append(Let(new, "cast", (name,), dtype))
        return new

    def operation(self, op: Any) -> None:
        """Add the statements of an operation."""
        if not isinstance(op, Pointwise) or op.axes:
            raise NoFormulaError(f"{type(op).__name__} is more than single numbers")
        names: dict[str, str] = {}
        symbols: dict[Sym, Expr] = {}
        for s in op.body:
            match s:
                case Load(name, buffer, index, mask) if buffer not in self.tensors:
                    if mask is not None or index is not ZERO:
                        raise NoFormulaError("part of a number is read")
                    names[name] = self.value(buffer)
                case Load(name, buffer, _, _):
                    tensor = self.tensors[buffer]
                    names[name] = self.fresh(tensor.stored)
                    moved = renamed(s, names, symbols)
                    moved = rewritten(moved, buffers={buffer: tensor.buffer})
                    self.body.append(_behind(moved, tensor.offset))
                case Store(buffer, _, value, mode, mask):
                    if mode is not StoreMode.SET or mask is not None:
                        raise NoFormulaError("a number is changed in place")
                    self.values[buffer] = names[value]
                case Bind(symbol, value, size):
                    known = self.exprs.get(names[value])
                    if known is not None and self._inside(known, size):
                        symbols[symbol] = known
                        continue
                    symbols[symbol] = Sym(f"t{self._binds}", SymKind.INDIRECT)
                    self.body.append(renamed(s, names, symbols))
                case Let() | Const() | IndexValue():
                    self._plain(s, names, symbols)

    def _plain(self, s: Let | Const | IndexValue, names: dict[str, str], symbols: Any) -> None:
        (name,) = defined(s)
        new = names[name] = self.fresh(s.dtype)
        moved = renamed(s, names, symbols)
        if isinstance(moved, IndexValue):
            self.exprs[new] = moved.expr
        elif isinstance(moved, Let) and moved.op == "cast" and s.dtype.is_int:
            known = self.exprs.get(moved.args[0])
            if known is not None:
                self.exprs[new] = known
        self.body.append(moved)

    @property
    def _binds(self) -> int:
        return sum(isinstance(s, Bind) for s in self.body)

    def _inside(self, e: Expr, size: Expr) -> bool:
        """Whether a place lies in [0, `size`) as it is."""
        extent = self.around.extents.get(e) if isinstance(e, Sym) else None
        return extent is not None and self.around.facts.known(le(extent, size)) is True


def _behind(load: Load, offset: Expr) -> Load:
    return Load(load.name, load.buffer, load.index + offset, load.mask)
