"""Loops of a known number of steps, `scan` and `map`: one subprogram that the host repeats.

The subprogram takes the number of the step and whole tensors. It reads slices of them and writes
slices of stacked results in place, so that no step copies either.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch.fx import GraphModule, Node

from gyrator_ir.expr import ONE, ZERO, Expr, Sym, SymKind, le
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
from gyrator_lowering.builder.program import Body, LoopBuilder
from gyrator_lowering.builder.values import Spec, TensorValue, contiguous_strides
from gyrator_lowering.rules.extern import argument

STEP = Sym("s_step")
"""The number of the step, in the subprogram."""


@frozen
class Around:
    """What the graph of a step does not say: the tensors that its slices are of."""

    count: Expr
    carried: tuple[Spec, ...]
    """What each step replaces: the graph's first inputs and results."""
    sliced: tuple[Spec, ...]
    """Whole tensors; the graph takes a slice of each."""
    stacks: tuple[Spec | None, ...]
    """Whole results, of each of which the graph gives a slice; None where it gives no tensor."""

    @property
    def sizes(self) -> tuple[Sym, ...]:
        """The symbols of all that, in order."""
        symbols = set(self.count.free_symbols)
        for spec in (*self.carried, *self.sliced, *self.stacks):
            for size in () if spec is None else (*spec.shape, *spec.strides):
                symbols |= size.free_symbols
        return tuple(sorted(symbols, key=lambda s: s.name))

    def given(self, b: LoopBuilder, node: Node, place: int) -> tuple[Input, TensorValue] | None:
        """Return the subprogram's input for one of the graph's, and what that is; None for one
        that is as the graph says."""
        carried = len(self.carried)
        if place >= carried + len(self.sliced):
            return None
        spec = (*self.carried, *self.sliced)[place]
        buffer, whole = b.existing(b.reserve(node.name), spec)
        return TensorInput(buffer), whole if place < carried else _slice(whole)

    def finish(
        self, b: LoopBuilder, inputs: Sequence[Input], results: Sequence[Any]
    ) -> tuple[tuple[Input, ...], tuple[Output, ...]]:
        """Store slices; return the subprogram's inputs, in order, and what it carries on."""
        carried = len(self.carried)
        kept = [
            fitted(b, _tensor(b, value), spec)
            for value, spec in zip(results, self.carried, strict=False)
        ]
        stacks: list[Input] = []
        for value, spec in zip(results[carried:], self.stacks, strict=True):
            if spec is not None:
                buffer, whole = b.existing(b.reserve("stack"), spec)
                stacks.append(TensorInput(buffer))
                b.pointwise_into(_slice(whole), _reader(_tensor(b, value)))
        step = SizeInput(STEP, b.reserve("step"))
        sizes = (SizeInput(s, b.reserve("size")) for s in self.sizes)
        every = (step, *inputs[:carried], *sizes, *inputs[carried:], *stacks)
        return every, tuple(value.ref for value in kept)


Lower = Callable[[GraphModule, str, str, Around | None], LoopProgram]
"""`lower(gm, name, prefix, around)`: the prefix is the path of `gm` from the root module."""


def lower_steps(
    b: LoopBuilder, node: Node, args: Sequence[Any], region: Callable[[Around], str]
) -> tuple[Any, ...]:
    """Lower a call of `scan` or `map_impl`.

    Args:
        b: what is built.
        node: the call.
        args: its arguments.
        region: gives the name of the subprogram that is made of the call's graph.

    Raises:
        UnsupportedError: GY-LOWER-011, where a step gives something that is no tensor.
    """
    is_scan = node.target.__name__ == "scan"  # type: ignore[union-attr]
    init, slices, more = args[1:] if is_scan else ((), *args[1:])
    fakes = node.meta["val"]
    graph: Any = args[0]
    inputs = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
    if not slices or not all(isinstance(t, TensorValue) for t in (*init, *slices)):
        raise b.unsupported(
            "GY-LOWER-011", f"{node.target} over something that is no tensor", help=BY_PYTORCH
        )
    count = slices[0].shape[0]
    if count is ZERO or any(s.kind is SymKind.UNBACKED for s in count.free_symbols):
        said = f"{node.target} needs at least one step"
        b.operations.append(AssertCond(b.op_name(), le(ONE, count), said, b.origin))
    carried = tuple(b.spec(fake) for fake in inputs[: len(init)])
    first = [fitted(b, value, spec) for value, spec in zip(init, carried, strict=True)]
    whole = [
        _sliceable(b, value, b.spec(fake))
        for value, fake in zip(slices, inputs[len(init) :], strict=False)
    ]
    rows = tuple(_spec(b, fake) for fake in fakes[len(init) :])
    sliced = tuple(Spec(t.dtype, t.device, t.shape, t.strides) for t in whole)
    around = Around(count, carried, sliced, rows)
    body = region(around)
    results = [b.buffer(spec) for spec in carried]
    stacks = [None if spec is None else b.buffer(spec) for spec in rows]
    b.operations.append(
        RepeatOp(
            b.op_name(),
            count,
            body,
            tuple(value.ref for value in first),
            tuple(argument(b, value) for value in (*around.sizes, *whole, *more)),
            tuple(value.buffer for value in results),
            tuple(value.buffer for value in stacks if value is not None),
            b.origin,
        )
    )
    last = [fitted(b, r, b.spec(fake)) for r, fake in zip(results, fakes, strict=False)]
    return (*last, *stacks)


def fitted(b: LoopBuilder, value: TensorValue, spec: Spec) -> TensorValue:
    """Return a tensor laid out as `spec` says: a copy, where the tensor is not."""
    return value if _lies(value, value.strides, spec.strides) else b.copy(value, spec)


def _lies(value: TensorValue, strides: tuple[Expr, ...], wanted: tuple[Expr, ...]) -> bool:
    sizes = value.shape[len(value.shape) - len(wanted) :]
    rows = zip(sizes, strides, wanted, strict=True)
    return all(size is ONE or mine is theirs for size, mine, theirs in rows)


def _sliceable(b: LoopBuilder, value: TensorValue, spec: Spec) -> TensorValue:
    """Return a tensor whose slices are laid out as `spec` says."""
    if _lies(value, value.strides[1:], spec.strides):
        return value
    step: Expr = ONE
    for size in spec.shape:
        step = step * size
    return b.copy(value, Spec(value.dtype, value.device, value.shape, (step, *spec.strides)))


def _slice(whole: TensorValue) -> TensorValue:
    offset = whole.offset + STEP * whole.strides[0]
    return evolve(whole, shape=whole.shape[1:], strides=whole.strides[1:], offset=offset)


def _spec(b: LoopBuilder, fake: Any) -> Spec | None:
    if not isinstance(fake, torch.Tensor):
        if fake is None:
            return None
        raise b.unsupported("GY-LOWER-011", "a step gives something that is no tensor")
    found = b.exact_spec(fake)
    return evolve(found, strides=contiguous_strides(found.shape))


def _reader(value: TensorValue) -> Body:
    return lambda ops, index: ops.get(value, index)


def _tensor(b: LoopBuilder, value: Any) -> TensorValue:
    if isinstance(value, TensorValue):
        return value
    raise b.unsupported("GY-LOWER-011", f"a step gives a {type(value).__name__}", help=BY_PYTORCH)
