"""Graphs of scalars as formulas: the computation of a template for each attention score.

A graph of flexible attention computes one number from a score, its position, and captured tensors.
It is lowered like any graph, and its operations are merged into a single body.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, field
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Statement, Store, StoreMode
from gyrator_ir.body.rewrite import defined, live, renamed, rewritten
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import ZERO, Expr, ShapeFacts, Sym, SymKind, le
from gyrator_ir.loop.formulas import SCORE_INDICES
from gyrator_ir.loop.nodes import (
    Buffer,
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
    """A graph that is not a formula; the message says why."""


@frozen(kw_only=True)
class FormulaContext:
    """The context of a formula."""

    lower: Lower
    facts: ShapeFacts
    extents: Mapping[Sym, Expr]
    """The numbers of batches, heads, rows and columns, by the symbols `SCORE_INDICES`."""


def formula(
    name: str,
    gm: GraphModule,
    value_names: Mapping[int, str],
    index_positions: Sequence[int],
    captured: Sequence[Any],
    dtype: DType,
    context: FormulaContext,
) -> Formula:
    """Convert a graph to a formula.

    Args:
        name: the name of the formula.
        gm: the graph.
        value_names: names of the arguments that are values, by position.
        index_positions: positions of the arguments that are the batch, head, row and column.
        captured: the values of the other arguments, in order.
        dtype: the dtype of the result.
        context: the context of the formula.

    Raises:
        NoFormulaError: for a graph that computes more than scalars.
    """
    program = context.lower(_in_f32(gm, value_names))
    values: dict[str, str] = {}
    indices: dict[str, Expr] = {}
    tensors: dict[str, TensorValue] = {}
    rest = iter(captured)
    for position, program_input in enumerate(program.inputs):
        if position in value_names:
            values[_buffer(program_input)] = value_names[position]
        elif position in index_positions:
            indices[_buffer(program_input)] = SCORE_INDICES[index_positions.index(position)]
        else:
            value = next(rest)
            if isinstance(program_input, TensorInput) and isinstance(value, TensorValue):
                _check_captured(program_input.buffer, value)
                tensors[program_input.buffer.name] = value
            elif not isinstance(value, Expr | int):
                raise NoFormulaError(f"a captured {type(value).__name__}")
    if program.constants:
        raise NoFormulaError("the graph contains a literal tensor")
    maker = _FormulaBuilder(
        values, indices, tensors, context, dict.fromkeys(value_names.values(), DType.F32)
    )
    for op in program.operations:
        maker.operation(op)
    first, *others = program.outputs
    if any(o != Literal(None) for o in others):
        raise NoFormulaError("gradients of captured tensors are requested")
    if not isinstance(first, TensorRef) or first.shape:
        raise NoFormulaError("the result is not a scalar")
    result = maker.converted(maker.value(first.buffer), dtype)
    return Formula(name, tuple(value_names.values()), live(maker.body, (result,)), result)


def _check_captured(buffer: Buffer, value: TensorValue) -> None:
    layouts = zip((*buffer.shape, *buffer.strides), (*value.shape, *value.strides), strict=True)
    if any(size is not other for size, other in layouts):
        raise NoFormulaError("the layout of a captured tensor differs from eager's")
    if value.stored is not value.dtype:
        raise NoFormulaError("a captured tensor reinterprets the bits of another dtype")


def _buffer(program_input: Any) -> str:
    if not isinstance(program_input, TensorInput):
        raise NoFormulaError("an argument is not a tensor")
    return program_input.buffer.name


def _in_f32(gm: GraphModule, value_names: Mapping[int, str]) -> GraphModule:
    """Return a copy of a graph whose value arguments are `f32`, as in eager mode."""
    copy = GraphModule(gm, torch.fx.Graph())
    results = copy.graph.graph_copy(gm.graph, {}, return_output_node=True)
    copy.graph.output(results[0] if isinstance(results, tuple) else results)
    fakes = [n.meta["val"] for n in copy.graph.nodes if n.op == "placeholder"]
    mode = next((f.fake_mode for f in fakes if isinstance(f, FakeTensor)), None)
    if mode is None:
        raise NoFormulaError("the graph's arguments have no fake tensors")
    with mode:
        for position in value_names:
            fakes[position] = torch.empty((), dtype=torch.float32, device=fakes[position].device)
    FakeTensorProp(copy, mode).propagate_dont_convert_inputs(*fakes)
    for node, fake in zip(copy.graph.find_nodes(op="placeholder"), fakes, strict=True):
        node.meta["val"] = fake
    return copy


@define
class _FormulaBuilder:
    """Builds one body from the operations of a program whose buffers are all 0-d."""

    values: dict[str, str]
    """The names of the values of buffers."""
    indices: dict[str, Expr]
    """Buffers that hold an index."""
    tensors: Mapping[str, TensorValue]
    context: FormulaContext
    dtypes: dict[str, DType]
    body: list[Statement] = field(factory=list)
    exprs: dict[str, Expr] = field(factory=dict)
    """Values that are index expressions."""

    def value(self, buffer: str) -> str:
        """Return the name of a buffer's value."""
        if buffer in self.indices and buffer not in self.values:
            name = self.fresh(DType.I32)
            self.values[buffer] = name
            self.exprs[name] = self.indices[buffer]
            self.body.append(IndexValue(name, self.indices[buffer], DType.I32))
        if buffer not in self.values:
            tensor = self.tensors.get(buffer)
            if tensor is None or tensor.shape:
                raise NoFormulaError("the result is not a scalar")
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
        """Return a value cast to another dtype."""
        if self.dtypes[name] is dtype:
            return name
        new = self.fresh(dtype)
        self.body.append(Let(new, "cast", (name,), dtype))
        return new

    def operation(self, op: Any) -> None:
        """Add the statements of an operation."""
        if not isinstance(op, Pointwise) or op.axes:
            raise NoFormulaError(f"{type(op).__name__} is not a scalar operation")
        names: dict[str, str] = {}
        symbols: dict[Sym, Expr] = {}
        for s in op.body:
            match s:
                case Load(name, buffer, index, mask) if buffer not in self.tensors:
                    if mask is not None or index is not ZERO:
                        raise NoFormulaError("a scalar is read in part")
                    names[name] = self.value(buffer)
                case Load(name, buffer, _, _):
                    tensor = self.tensors[buffer]
                    names[name] = self.fresh(tensor.stored)
                    statement = renamed(s, names, symbols)
                    statement = rewritten(statement, buffers={buffer: tensor.buffer})
                    self.body.append(evolve(statement, index=statement.index + tensor.offset))
                case Store(buffer, _, value, mode, mask):
                    if mode is not StoreMode.SET or mask is not None:
                        raise NoFormulaError("a scalar is changed in place")
                    self.values[buffer] = names[value]
                case Bind(symbol, value, size):
                    index_expr = self.exprs.get(names[value])
                    if index_expr is not None and self._inside(index_expr, size):
                        symbols[symbol] = index_expr
                        continue
                    symbols[symbol] = Sym(f"t{self._binds}", SymKind.INDIRECT)
                    self.body.append(renamed(s, names, symbols))
                case Let() | Const() | IndexValue():
                    self._plain(s, names, symbols)

    def _plain(self, s: Let | Const | IndexValue, names: dict[str, str], symbols: Any) -> None:
        (name,) = defined(s)
        new = names[name] = self.fresh(s.dtype)
        statement = renamed(s, names, symbols)
        if isinstance(statement, IndexValue):
            self.exprs[new] = statement.expr
        elif isinstance(statement, Let) and statement.op == "cast" and s.dtype.is_int:
            index_expr = self.exprs.get(statement.args[0])
            if index_expr is not None:
                self.exprs[new] = index_expr
        self.body.append(statement)

    @property
    def _binds(self) -> int:
        return sum(isinstance(s, Bind) for s in self.body)

    def _inside(self, e: Expr, size: Expr) -> bool:
        """Return whether an index is in [0, `size`) as it is."""
        extent = self.context.extents.get(e) if isinstance(e, Sym) else None
        return extent is not None and self.context.facts.known(le(extent, size)) is True
