"""Views emit nothing; this family holds the few that may copy or change the meaning of bits."""

from typing import Any

from gyrator_ir.loop.nodes import Extern
from gyrator_lowering.build import LoopBuilder
from gyrator_lowering.table import TableBuilder
from gyrator_lowering.values import TensorValue


def clone(b: LoopBuilder, x: TensorValue, **_: Any) -> TensorValue:
    """A copy with the strides that eager gives it."""
    return b.copy(x, b.out)


def same_storage(b: LoopBuilder, x: TensorValue, *_: Any) -> TensorValue:
    """A view that the schema does not declare as one, since autograd must not know."""
    given = b.node.args[0]
    return b.view_of(x, given.meta["val"], b.node.meta["val"])  # type: ignore[union-attr]


def resolved(target: str) -> Any:
    """Return the rule of a view that conjugates or negates lazily: it is carried out at once."""

    def rule(b: LoopBuilder, x: TensorValue) -> TensorValue:
        result = b.buffer(b.exact_spec(b.node.meta["val"]))
        b.operations.append(
            Extern(
                b.op_name(), target, (x.ref,), (), (result.buffer,),
                reason="complex numbers stay in ATen", origins=b.origin,
            )
        )
        return result

    return rule


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.clone.default", "aten.lift_fresh_copy.default", "aten.contiguous.default")(
        clone
    )
    table.rule(
        "aten._unsafe_view.default", "aten.lift.default", "aten.as_strided_.default"
    )(same_storage)
    table.rule("aten._conj.default")(resolved("aten.conj_physical.default"))
    table.rule("aten._neg_view.default")(resolved("aten.neg.default"))
