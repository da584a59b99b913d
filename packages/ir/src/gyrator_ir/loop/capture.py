"""Reasons why calls cannot be captured in device graphs."""

from collections.abc import Mapping
from types import MappingProxyType

from gyrator_ir.loop.nodes import (
    AssertCond,
    CallOp,
    CallOperation,
    CollectiveCall,
    CollectiveWait,
    CondOp,
    DeviceCopy,
    Extern,
    RepeatOp,
    ScalarRead,
    WhileOp,
)

_UNCAPTURED: Mapping[type, str] = MappingProxyType(
    {
        CollectiveCall: "other processes take part in it",
        CollectiveWait: "it waits for other processes",
        DeviceCopy: "it copies from one device to another",
        ScalarRead: "the host reads a number",
        AssertCond: "the host checks sizes",
        CondOp: "the host chooses between programs",
        WhileOp: "the host decides when it ends",
        RepeatOp: "the host repeats a program",
        CallOp: "it calls a program",
    }
)


def uncaptured(call: CallOperation) -> str:
    """Return why a call cannot be captured in a device graph, or an empty string if it can."""
    return call.uncaptured if isinstance(call, Extern) else _UNCAPTURED.get(type(call), "")
