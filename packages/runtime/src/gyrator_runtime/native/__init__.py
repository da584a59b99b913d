"""The native runner: whole lists of host instructions in one call.

`program` is what a plan does, `encode` writes it in words, `ready` fills in what the process knows,
`load_runner` makes it callable; `pure` and gyrunner.cpp are the two implementations of one
behaviour. Starting with a stored plan takes none of `program` and `encode`.
"""

from gyrator_runtime.native.kernels import (
    BuiltKernel,
    Checks,
    DeviceLaunch,
    KernelFunction,
    LoadedKernel,
)
from gyrator_runtime.native.load import (
    NativeRunner,
    Plan,
    PureRunner,
    Runner,
    build_native_runner,
    load_runner,
    pure_runner,
    runner_extension,
    runner_of,
)

__all__ = [
    "BuiltKernel",
    "Checks",
    "DeviceLaunch",
    "KernelFunction",
    "LoadedKernel",
    "NativeRunner",
    "Plan",
    "PureRunner",
    "Runner",
    "build_native_runner",
    "load_runner",
    "pure_runner",
    "runner_extension",
    "runner_of",
]
