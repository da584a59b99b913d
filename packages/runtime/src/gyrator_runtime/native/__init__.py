"""The native runner, which executes a whole list of host instructions in one call.

`program` defines plans, `encode` translates them to words, `ready` fills in addresses and objects
of the process, and `load_runner` returns a runner that makes them callable. `pure` and
gyrunner.cpp implement the same behaviour. Running a stored plan needs neither `program` nor
`encode`.
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
from gyrator_runtime.native.recorded import Recorded

__all__ = [
    "BuiltKernel", "Checks", "DeviceLaunch", "KernelFunction", "LoadedKernel", "NativeRunner",
    "Plan", "PureRunner", "Recorded", "Runner", "build_native_runner", "load_runner",
    "pure_runner", "runner_extension", "runner_of",
]  # fmt: skip
