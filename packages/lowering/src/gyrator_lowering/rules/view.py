"""Views emit nothing; this family holds the few that may copy or change the meaning of bits."""

from typing import Any

from gyrator_ir.expr import Cond, Const, Expr, any_of, either, eq, le
from gyrator_ir.loop.nodes import AssertCond, Extern
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import TensorValue
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
    """A view by strides; it must lie inside the storage that the program was given.

    Where that is a matter of sizes known at run time only, the program asserts it.

    Raises:
        UnsupportedError: GY-LOWER-006, where it reaches outside.
    """
    view = same_storage(b, x)
    held = b.given.get(x.buffer)
    if held is None:
        return view
    if reaches_beyond(view, held):
        raise b.unsupported(
            "GY-LOWER-006",
            "as_strided reads outside of the tensor that the graph was given",
            help="PyTorch runs the op; pass the whole tensor to the model",
        )
    if not all(type(n) is Const for v in (view, held) for n in (*v.shape, *v.strides)):
        inside = either(le(_last(view), _last(held)), _is_empty(view))
        message = "as_strided reaches outside of the tensor that the graph was given"
        b.operations.append(AssertCond(b.op_name(), inside, message, b.origin))
    return view


def _last(value: TensorValue) -> Expr:
    """Return the last element that a view touches, for strides that are not negative; less than
    the first one where it has none."""
    last = value.offset
    for size, stride in zip(value.shape, value.strides, strict=True):
        last = last + (size - 1) * stride
    return last


def _is_empty(value: TensorValue) -> Cond:
    return any_of(eq(size, 0) for size in value.shape)


def reaches_beyond(view: TensorValue, held: TensorValue) -> bool:
    """Return whether a view surely touches elements before the first or after the last of `held`,
    of the same buffer."""
    first, last = _reach(view)
    begin, end = _reach(held)
    beyond = last is not None and end is not None and last > end
    return beyond or (first is not None and begin is not None and first < begin)


def _reach(value: TensorValue) -> tuple[int | None, int | None]:
    """Return the first and last element that a view reaches, where they are known."""
    if type(value.offset) is not Const:
        return None, None
    last = value.offset.value
    for size, stride in zip(value.shape, value.strides, strict=True):
        if type(size) is not Const or type(stride) is not Const:
            return value.offset.value, None
        last += (size.value - 1) * stride.value
    return value.offset.value, last


def resolved(target: str) -> Any:
    """Return the rule of a view that conjugates or negates lazily: it is carried out at once."""

    def rule(b: LoopBuilder, x: TensorValue) -> TensorValue:
        result = b.buffer(b.exact_spec(b.node.meta["val"]))
        b.operations.append(
            Extern(
                b.op_name(),
                target,
                (x.ref,),
                (),
                (result.buffer,),
                reason="complex numbers stay in ATen",
                origins=b.origin,
            )
        )
        return result

    return rule


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.clone.default", "aten.lift_fresh_copy.default", "aten.contiguous.default")(
        clone
    )
    table.rule("aten._unsafe_view.default", "aten.lift.default", "aten.as_strided_.default")(
        same_storage
    )
    table.rule("aten.as_strided.default")(as_strided)
    table.rule("aten._conj.default")(resolved("aten.conj_physical.default"))
    table.rule("aten._neg_view.default")(resolved("aten.neg.default"))
