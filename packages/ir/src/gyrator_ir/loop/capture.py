"""Reasons why calls cannot be captured in device graphs."""

from collections.abc import Mapping
from types import MappingProxyType

from gyrator_ir.loop import nodes

_UNCAPTURED: Mapping[type, str] = MappingProxyType(
    {
        nodes.CollectiveCall: "other processes take part in it",
        nodes.CollectiveWait: "it waits for other processes",
        nodes.DeviceCopy: "it copies from one device to another",
        nodes.ScalarRead: "the host reads a number",
        nodes.AssertCond: "the host checks sizes",
        nodes.CondOp: "the host chooses between programs",
        nodes.WhileOp: "the host decides when it ends",
        nodes.RepeatOp: "the host repeats a program",
        nodes.CallOp: "it calls a program",
    }
)


def uncaptured(call: nodes.CallOperation) -> str:
    """Return why a call cannot be captured in a device graph, or an empty string if it can."""
    return call.uncaptured if isinstance(call, nodes.Extern) else _UNCAPTURED.get(type(call), "")
