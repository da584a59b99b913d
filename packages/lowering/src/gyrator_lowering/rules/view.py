"""Views emit no operations; this family has the few that may copy or reinterpret bits."""

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
    """A copy with eager's strides."""
    return b.copy(x, b.out)


def same_storage(b: LoopBuilder, x: TensorValue, *_: Any) -> TensorValue:
    """A view that the schema does not declare as one, to hide it from autograd."""
    base = b.node.args[0]
    return b.view_of(x, base.meta["val"], b.node.meta["val"])  # type: ignore[union-attr]


def as_strided(
    b: LoopBuilder, x: TensorValue, size: Any, stride: Any, offset: Any = None
) -> TensorValue:
    """A view by strides, which must be within the memory of the program's tensor.

    If that depends on symbolic sizes, the program asserts it.

    Raises:
        UnsupportedError: GY-LOWER-006, if the view extends beyond that memory.
    """
    view = same_storage(b, x)
    whole = b.external.get(x.buffer) or b.planar.get(x.buffer) or _whole_buffer(b, x.buffer)
    if whole is None:
        return view
    if surely_out_of_bounds(view, whole):
        raise b.unsupported(
            "GY-LOWER-006",
            "as_strided reads outside of the tensor that it is given",
            help="PyTorch runs the op; pass the whole tensor to the model",
        )
    if not all(type(n) is Const for v in (view, whole) for n in (*v.shape, *v.strides)):
        within = both(le(_last(view), _last(whole)), negate(_is_empty(whole)))
        inside = either(within, _is_empty(view))
        message = "as_strided reaches outside of the tensor that it is given"
        b.operations.append(AssertCond(b.op_name(), inside, message, b.origin))
    return view


def _whole_buffer(b: LoopBuilder, name: str) -> TensorValue | None:
    """Return the view of all of a buffer of the program, if it has been created already."""
    buffer = b.buffers.get(name)
    if buffer is None:
        return None
    dtype, device = buffer.dtype, buffer.device
    return TensorValue(name, dtype, device, buffer.shape, buffer.strides, ZERO, dtype.part)


def _last(value: TensorValue) -> Expr:
    """Return the last element of a view with non-negative strides; less than the first if it is
    empty."""
    last = value.offset
    for size, stride in zip(value.shape, value.strides, strict=True):
        last = last + (size - 1) * stride
    return last


def _is_empty(value: TensorValue) -> Cond:
    return any_of(eq(size, 0) for size in value.shape)


def surely_in_bounds(view: TensorValue, whole: TensorValue, facts: ShapeFacts) -> bool:
    """Return whether a view provably has no element before the first or after the last of `whole`,
    a view of the same buffer."""
    inside = le(whole.offset, view.offset), le(_last(view), _last(whole))
    return all(facts.known(c) is True for c in inside) or facts.known(_is_empty(view)) is True


def surely_out_of_bounds(view: TensorValue, whole: TensorValue) -> bool:
    """Return whether a view provably has elements before the first or after the last of `whole`, a
    view of the same buffer."""
    if ZERO in view.shape:
        return False
    first, last = _static_bounds(view)
    begin, end = _static_bounds(whole)
    beyond = last is not None and end is not None and last > end
    return beyond or (first is not None and begin is not None and first < begin)


def _static_bounds(value: TensorValue) -> tuple[int | None, int | None]:
    """Return the first and last element of a view, or None for unknown ones; for an empty view the
    last is less than the first."""
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
    """A lazily negated view, which is computed at once."""
    return materialized(b, x, lambda y, out: b.pointwise(lambda ops, at: -ops.get(y, at), out))


def materialized(
    b: LoopBuilder, x: TensorValue, make: Callable[[TensorValue, Spec], TensorValue]
) -> TensorValue:
    """Return `make` of a tensor, with the strides of the node's result. Axes along which the result
    is expanded have size 1 during the computation."""
    spec = b.exact_spec(b.node.meta["val"])
    is_expanded = [stride is ZERO for stride in spec.strides]
    shape = tuple(ONE if s else n for n, s in zip(spec.shape, is_expanded, strict=True))
    compact = make(evolve(x, shape=shape), evolve(spec, shape=shape))
    return evolve(compact, shape=spec.shape)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.clone.default", "aten.lift_fresh_copy.default")(clone)
    table.rule("aten._unsafe_view.default", "aten.lift.default", "aten.as_strided_.default")(
        same_storage
    )
    table.rule("aten.as_strided.default")(as_strided)
    table.rule("aten._neg_view.default")(negated)
