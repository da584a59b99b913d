"""Loops with a given trip count, `scan` and `map`: one subprogram that the host repeats.

The subprogram takes the step number and whole tensors. It reads slices of them and writes slices of
the stacked results in place, so that no step copies either.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import evolve
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, SymKind, contiguous_strides, le, product_of
from gyrator_ir.loop.nodes import (
    AssertCond,
    Input,
    LoopProgram,
    Output,
    RepeatOp,
    SizeInput,
    TensorInput,
)
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.extern import argument

STEP = Sym("s_step")
"""The step number in the subprogram."""


@frozen
class LoopContext:
    """The tensors around the graph of a loop body, which sees only slices of them."""

    count: Expr
    carried: tuple[Spec, ...]
    """The loop-carried values: the graph's first inputs and results."""
    sliced: tuple[Spec, ...]
    """Whole tensors; the graph takes one slice of each."""
    stacks: tuple[Spec | None, ...]
    """Stacked results; the graph returns one slice of each. None for a result that is not a
    tensor."""

    @property
    def sizes(self) -> tuple[Sym, ...]:
        """All symbols in these sizes, sorted."""
        symbols = set(self.count.free_symbols)
        for spec in (*self.carried, *self.sliced, *self.stacks):
            for size in () if spec is None else (*spec.shape, *spec.strides):
                symbols |= size.free_symbols
        return tuple(sorted(symbols, key=lambda s: s.name))

    def input_for(
        self, b: LoopBuilder, node: Node, position: int
    ) -> tuple[Input, TensorValue] | None:
        """Return the subprogram's input, and its view, for the graph's input at `position`; None
        for an input that is passed unchanged."""
        carried = len(self.carried)
        if position >= carried + len(self.sliced):
            return None
        spec = (*self.carried, *self.sliced)[position]
        buffer, tensor = b.existing(b.reserve(node.name), spec)
        return TensorInput(buffer), tensor if position < carried else _slice(tensor)

    def finish(
        self, b: LoopBuilder, inputs: Sequence[Input], results: Sequence[Any]
    ) -> tuple[tuple[Input, ...], tuple[Output, ...]]:
        """Store the slices; return all of the subprogram's inputs and the carried results."""
        carried = len(self.carried)
        carried_results = [
            fitted(b, _tensor(b, value), spec)
            for value, spec in zip(results, self.carried, strict=False)
        ]
        stacks: list[Input] = []
        for value, spec in zip(results[carried:], self.stacks, strict=True):
            if spec is not None:
                buffer, stack = b.existing(b.reserve("stack"), spec)
                stacks.append(TensorInput(buffer))
                b.copy_into(_slice(stack), _tensor(b, value))
        step = SizeInput(STEP, b.reserve("step"))
        sizes = (SizeInput(s, b.reserve("size")) for s in self.sizes)
        all_inputs = (step, *inputs[:carried], *sizes, *inputs[carried:], *stacks)
        return all_inputs, tuple(value.ref for value in carried_results)


Lower = Callable[[GraphModule, str, str, LoopContext | None], LoopProgram]
"""`lower(gm, name, prefix, loop)`: the prefix is the path of `gm` from the root module."""


def lower_steps(
    b: LoopBuilder, node: Node, args: Sequence[Any], region: Callable[[LoopContext], str]
) -> tuple[Any, ...]:
    """Lower a call of `scan` or `map_impl`.

    Args:
        b: the builder.
        node: the call.
        args: its arguments.
        region: lowers the call's graph to a subprogram and returns its name.

    Raises:
        UnsupportedError: GY-LOWER-011, if a step returns something that is not a tensor.
    """
    is_scan = node.target.__name__ == "scan"  # type: ignore[union-attr]
    init, slices, more = args[1:] if is_scan else ((), *args[1:])
    fakes = node.meta["val"]
    graph: Any = args[0]
    inputs = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
    if not slices or not all(isinstance(t, TensorValue) for t in (*init, *slices)):
        raise b.unsupported(
            "GY-LOWER-011", f"{node.target} over something that is not a tensor", help=BY_PYTORCH
        )
    count = slices[0].shape[0]
    if count is ZERO or any(s.kind is SymKind.UNBACKED for s in count.free_symbols):
        message = f"{node.target} needs at least one step"
        b.operations.append(AssertCond(b.op_name(), le(ONE, count), message, b.origin))
    carried = tuple(b.spec(fake) for fake in inputs[: len(init)])
    first = [fitted(b, value, spec) for value, spec in zip(init, carried, strict=True)]
    tensors = [
        _sliceable(b, value, b.spec(fake))
        for value, fake in zip(slices, inputs[len(init) :], strict=False)
    ]
    rows = tuple(_spec(b, fake) for fake in fakes[len(init) :])
    sliced = tuple(Spec(t.dtype, t.device, t.shape, t.strides) for t in tensors)
    loop = LoopContext(count, carried, sliced, rows)
    body = region(loop)
    results = [b.buffer(spec) for spec in carried]
    stacks = [None if spec is None else b.buffer(spec) for spec in rows]
    b.operations.append(
        RepeatOp(
            b.op_name(),
            count,
            body,
            tuple(value.ref for value in first),
            tuple(argument(b, value) for value in (*loop.sizes, *tensors, *more)),
            tuple(value.buffer for value in results),
            tuple(value.buffer for value in stacks if value is not None),
            b.origin,
        )
    )
    last = [fitted(b, r, b.spec(fake)) for r, fake in zip(results, fakes, strict=False)]
    return (*last, *stacks)


def fitted(b: LoopBuilder, value: TensorValue, spec: Spec) -> TensorValue:
    """Return a tensor with the layout of `spec`: itself, or a copy."""
    return value if _has_strides(value, value.strides, spec.strides) else b.copy(value, spec)


def _has_strides(value: TensorValue, strides: tuple[Expr, ...], expected: tuple[Expr, ...]) -> bool:
    sizes = value.shape[len(value.shape) - len(expected) :]
    triples = zip(sizes, strides, expected, strict=True)
    return all(size is ONE or stride is other for size, stride, other in triples)


def _sliceable(b: LoopBuilder, value: TensorValue, spec: Spec) -> TensorValue:
    """Return a tensor whose slices have the layout of `spec`."""
    if _has_strides(value, value.strides[1:], spec.strides):
        return value
    strides = (product_of(spec.shape), *spec.strides)
    return b.copy(value, Spec(value.dtype, value.device, value.shape, strides))


def _slice(tensor: TensorValue) -> TensorValue:
    offset = tensor.offset + STEP * tensor.strides[0]
    return evolve(tensor, shape=tensor.shape[1:], strides=tensor.strides[1:], offset=offset)


def _spec(b: LoopBuilder, fake: Any) -> Spec | None:
    if not isinstance(fake, torch.Tensor):
        if fake is None:
            return None
        raise b.unsupported("GY-LOWER-011", "a step returns something that is not a tensor")
    spec = b.exact_spec(fake)
    return evolve(spec, strides=contiguous_strides(spec.shape))


def _tensor(b: LoopBuilder, value: Any) -> TensorValue:
    if isinstance(value, TensorValue):
        return value
    raise b.unsupported("GY-LOWER-011", f"a step returns a {type(value).__name__}", help=BY_PYTORCH)
