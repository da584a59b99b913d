"""Collectives of process groups: one operation starts them, another waits for them."""

from typing import Any

from gyrator_ir.loop.nodes import CollectiveCall, CollectiveWait
from gyrator_lowering.builder.program import LoopBuilder, each
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.extern import argument
from gyrator_lowering.table import TableBuilder
from gyrator_lowering.torch_bridge.schema import info_of

STARTS = (
    "all_reduce", "all_reduce_coalesced", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
    "all_to_all_single", "broadcast",
)  # fmt: skip


def start(b: LoopBuilder, *args: Any, **kwargs: Any) -> Any:
    """Start a collective; its results are valid after a wait."""
    info = info_of(b.node.target)
    arguments = [*args, *(kwargs[name] for name in info.arguments[len(args) :] if name in kwargs)]
    fake = b.node.meta["val"]
    single = not isinstance(fake, (list, tuple))
    values = [b.buffer(b.exact_spec(f)) for f in ([fake] if single else fake)]
    b.operations.append(
        CollectiveCall(
            b.op_name(),
            info.name,
            tuple(argument(b, a) for a in arguments),
            tuple(v.buffer for v in values),
            origins=b.origin,
        )
    )
    return values[0] if single else values


def wait(b: LoopBuilder, x: TensorValue) -> TensorValue:
    """Wait for the collective that fills a tensor."""
    for value in each(x):
        b.operations.append(CollectiveWait(b.op_name(), value.buffer, b.origin))
    return x


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for op in STARTS:
        table.rule(f"_c10d_functional.{op}.default")(start)
    table.rule("_c10d_functional.wait_tensor.default")(wait)
