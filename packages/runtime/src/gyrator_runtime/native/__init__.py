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
    Layout,
    Move,
    Operate,
    PlanProgram,
    Reg,
    Return,
    Size,
    SizeArg,
    SizeProgram,
    TensorArg,
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
    "Layout",
    "Move",
    "NativeRunner",
    "Operate",
    "Plan",
    "PlanProgram",
    "PureRunner",
    "Reg",
    "Return",
    "Runner",
    "Size",
    "SizeArg",
    "SizeProgram",
    "TensorArg",
    "build_native_runner",
    "launch_of",
    "load_runner",
]
