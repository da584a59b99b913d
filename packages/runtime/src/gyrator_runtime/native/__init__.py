"""The native runner: whole lists of host instructions in one call.

`program` is what a plan does, `load_runner` makes it callable; `pure` and gyrunner.cpp are the two
implementations of one behaviour.
"""

from gyrator_runtime.native.load import (
    NativeRunner,
    Plan,
    PureRunner,
    Runner,
    build_native_runner,
    load_runner,
)
from gyrator_runtime.native.program import (
    Buffer,
    Call,
    Const,
    DeviceLaunch,
    Drop,
    GetItem,
    Instruction,
    IntTuple,
    KernelFunction,
    Launch,
    Move,
    PlanProgram,
    Reg,
    Return,
    Size,
    SizeArg,
    SizeProgram,
    launch_of,
)

__all__ = [
    "Buffer",
    "Call",
    "Const",
    "DeviceLaunch",
    "Drop",
    "GetItem",
    "Instruction",
    "IntTuple",
    "KernelFunction",
    "Launch",
    "Move",
    "NativeRunner",
    "Plan",
    "PlanProgram",
    "PureRunner",
    "Reg",
    "Return",
    "Runner",
    "Size",
    "SizeArg",
    "SizeProgram",
    "build_native_runner",
    "launch_of",
    "load_runner",
]
