"""Views emit nothing; this family holds the few that may copy or change the meaning of bits."""

from collections.abc import Callable
from typing import Any

from attrs import evolve

from gyrator_ir.expr import (
    ONE,
    ZERO,
    Cond,
    Const,
    Expr,
    ShapeFacts,
    any_of,
    both,
    either,
    eq,
    le,
    negate,
)
from gyrator_ir.loop.nodes import AssertCond
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.table import TableBuilder


def clone(b: LoopBuilder, x: TensorValue, **_: Any) -> TensorValue:
    """A copy with the strides that eager gives it."""
    return b.copy(x, b.out)


def same_storage(b: LoopBuilder, x: TensorValue, *_: Any) -> TensorValue:
    """A view that the schema does not declare as one, since autograd must not know."""
    given = b.node.args[0]
    return b.view_of(x, given.meta["val"], b.node.meta["val"])  # type: ignore[union-attr]


def as_strided(
    b: LoopBuilder, x: TensorValue, size: Any, stride: Any, offset: Any = None
) -> TensorValue:
    """A view by strides; it must lie inside the tensor that the program was given or has made.

    Where that is a matter of sizes known at run time only, the program asserts it.

    Raises:
        UnsupportedError: GY-LOWER-006, where it reaches outside.
    """
    view = same_storage(b, x)
    held = b.given.get(x.buffer) or b.apart.get(x.buffer) or _made(b, x.buffer)
    if held is None:
        return view
    if reaches_beyond(view, held):
        raise b.unsupported(
            "GY-LOWER-006",
            "as_strided reads outside of the tensor that it is given",
            help="PyTorch runs the op; pass the whole tensor to the model",
        )
    if not all(type(n) is Const for v in (view, held) for n in (*v.shape, *v.strides)):
        within = both(le(_last(view), _last(held)), negate(_is_empty(held)))
        inside = either(within, _is_empty(view))
        message = "as_strided reaches outside of the tensor that it is given"
        b.operations.append(AssertCond(b.op_name(), inside, message, b.origin))
    return view


def _made(b: LoopBuilder, name: str) -> TensorValue | None:
    """Return the whole of a buffer of the program, if that has been made already."""
    found = b.buffers.get(name)
    if found is None:
        return None
    dtype, device = found.dtype, found.device
    return TensorValue(name, dtype, device, found.shape, found.strides, ZERO, dtype.part)


def _last(value: TensorValue) -> Expr:
    """Return the last element that a view touches, for strides that are not negative; less than
    the first one where it has none."""
    last = value.offset
    for size, stride in zip(value.shape, value.strides, strict=True):
        last = last + (size - 1) * stride
    return last


def _is_empty(value: TensorValue) -> Cond:
    return any_of(eq(size, 0) for size in value.shape)


def lies_within(view: TensorValue, held: TensorValue, facts: ShapeFacts) -> bool:
    """Return whether a view surely touches no element before the first or after the last of
    `held`, of the same buffer."""
    inside = le(held.offset, view.offset), le(_last(view), _last(held))
    return all(facts.known(c) is True for c in inside) or facts.known(_is_empty(view)) is True


def reaches_beyond(view: TensorValue, held: TensorValue) -> bool:
    """Return whether a view surely touches elements before the first or after the last of `held`,
    of the same buffer."""
    if ZERO in view.shape:
        return False
    first, last = _reach(view)
    begin, end = _reach(held)
    beyond = last is not None and end is not None and last > end
    return beyond or (first is not None and begin is not None and first < begin)


def _reach(value: TensorValue) -> tuple[int | None, int | None]:
    """Return the first and last element that a view reaches, where they are known; of an empty
    one the last comes before the first."""
    if type(value.offset) is not Const:
        return None, None
    last = value.offset.value
    if ZERO in value.shape:
        return last, last - 1
    for size, stride in zip(value.shape, value.strides, strict=True):
        if type(size) is not Const or type(stride) is not Const:
            return value.offset.value, None
        last += (size.value - 1) * stride.value
    return value.offset.value, last


def negated(b: LoopBuilder, x: TensorValue) -> TensorValue:
    """A view whose elements are negated when they are read: they are at once."""
    return materialised(b, x, lambda y, out: b.pointwise(lambda ops, at: -ops.get(y, at), out))


def materialised(
    b: LoopBuilder, x: TensorValue, make: Callable[[TensorValue, Spec], TensorValue]
) -> TensorValue:
    """Return what `make` makes of a tensor, in a form that has the strides of the node's result;
    axes along which that repeats itself have one element there."""
    seen = b.exact_spec(b.node.meta["val"])
    still = [stride is ZERO for stride in seen.strides]
    shape = tuple(ONE if s else n for n, s in zip(seen.shape, still, strict=True))
    made = make(evolve(x, shape=shape), evolve(seen, shape=shape))
    return evolve(made, shape=seen.shape)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.clone.default", "aten.lift_fresh_copy.default", "aten.contiguous.default")(
        clone
    )
    table.rule("aten._unsafe_view.default", "aten.lift.default", "aten.as_strided_.default")(
        same_storage
    )
    table.rule("aten.as_strided.default")(as_strided)
    table.rule("aten._neg_view.default")(negated)
