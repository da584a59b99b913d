"""Getting a runner: the native one where Python's headers and a compiler are, else the pure one.

gyrunner.cpp is compiled at first use and kept in the cache. It includes Python.h and nothing of
torch.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from attrs import frozen

from gyrator_runtime.cache import Cache, CacheError
from gyrator_runtime.native.extension import Extension
from gyrator_runtime.native.kernels import TensorLaunch
from gyrator_runtime.native.pure import PurePlan
from gyrator_runtime.native.ready import Ready, ready
from gyrator_runtime.native.shim import load_shim
from gyrator_runtime.toolchain import Toolchain
from gyrator_runtime.warn import warn

if TYPE_CHECKING:
    from gyrator_runtime.native.program import PlanProgram

WATCHERS: tuple[Callable[[], object], ...] = (
    torch._C._len_torch_dispatch_stack,
    torch._C._autograd._profiler_enabled,
)
"""What tells whether somebody wants to see every operator: dispatch modes, and the profiler."""


class Plan(Protocol):
    """A plan that can be called, from many threads at once."""

    def __call__(self, *args: object) -> object:
        """Run it: `plan(*args)`, or `plan(list)` where the program is boxed."""
        ...

    def timings(self) -> list[tuple[int, int, int]]:
        """Rows (calls, total ns, least ns), one a launch; empty unless the plan is timed."""
        ...


class Runner(Protocol):
    """Makes plans callable."""

    @property
    def name(self) -> str:
        """Either "native" or "pure"."""
        ...

    def load(self, plan: Ready) -> Plan:
        """Return a plan in words as a callable."""
        ...

    def plan(self, program: "PlanProgram") -> Plan:
        """Return `program` as a callable. ValueError where it names a register it lacks."""
        ...


@frozen
class PureRunner:
    """Runs plans in Python, kernels through ctypes."""

    @property
    def name(self) -> str:
        """Return "pure"."""
        return "pure"

    def load(self, plan: Ready) -> Plan:
        """Return a plan in words as a callable."""
        return PurePlan(plan)

    def plan(self, program: "PlanProgram") -> Plan:
        """Return `program` as a callable."""
        return self.load(_words(program))


@frozen
class NativeRunner:
    """Runs plans in the compiled extension."""

    module: ModuleType
    data_ptr_address: int  # 0: ask each tensor by its method

    @property
    def name(self) -> str:
        """Return "native"."""
        return "native"

    def load(self, plan: Ready) -> Plan:
        """Return a plan in words as a callable."""
        if any(isinstance(k, TensorLaunch) for k in plan.kernels):
            return PurePlan(plan)
        shim = load_shim()
        made = self.module.Plan(
            code=plan.code.tobytes(),
            ints=plan.ints.tobytes(),
            consts=(*plan.consts, plan.kernels),  # kernels live as long as the plan
            checks=plan.handlers,
            n_args=plan.n_args,
            n_regs=plan.n_regs,
            boxed=plan.boxed,
            timed=plan.timed,
            tensor_type=torch.Tensor,
            parameter_type=torch.nn.Parameter,
            data_ptr_address=self.data_ptr_address,
            watchers=WATCHERS,
            helpers=() if shim is None else shim.helpers,
            tensor_offset=0 if shim is None else shim.tensor_offset,
            key_offset=0 if shim is None else shim.inside.keys,
            storage_offset=0 if shim is None else shim.inside.storage,
            pending=0 if shim is None else shim.inside.pending,
        )
        return cast(Plan, made)

    def plan(self, program: "PlanProgram") -> Plan:
        """Return `program` as a callable."""
        return self.load(_words(program))


def _words(program: "PlanProgram") -> Ready:
    from gyrator_runtime.native.encode import encode  # stored plans are in words already

    encoded = encode(program)
    return ready(encoded, tuple(encoded.consts), timed=program.timed)


def load_runner(cache: Cache, toolchain: Toolchain | None) -> Runner:
    """Return the native runner, built if need be, else the pure one after one warning."""
    reason = "there is no C++ compiler"
    try:
        if (module := runner_extension().find(cache)) is not None:
            return runner_of(module)
        if toolchain is not None:
            return build_native_runner(cache, toolchain)
    except (OSError, ImportError, CacheError, subprocess.SubprocessError) as error:
        reason = str(error).strip()
    return pure_runner(
        f"the native runner cannot be built ({reason})",
        "install a C++ compiler and Python's headers (Debian: apt-get install g++ python3-dev)",
    )


def pure_runner(why: str, help: str) -> PureRunner:
    """Return the pure runner, with one warning (GY-RUNTIME-001) that says what it stands in for."""
    warn("GY-RUNTIME-001", f"{why}; calls cost some 20 us more", help)
    return PureRunner()


def build_native_runner(cache: Cache, toolchain: Toolchain) -> NativeRunner:
    """Return the native runner from `cache`, built by `toolchain` where it is not there yet.

    Raises OSError or subprocess.SubprocessError where it does not build, ImportError where it
    does not load.
    """
    return runner_of(runner_extension().build(cache, toolchain))


def runner_extension() -> Extension:
    """Return the native runner as a module that is built for each Python."""
    folder = Path(__file__).parent
    text = b"".join((folder / name).read_bytes() for name in ("plan.h", "gyrunner.cpp"))
    return Extension("_gyrunner", text)


def runner_of(module: ModuleType) -> NativeRunner:
    """Return the runner that a built module holds."""
    return NativeRunner(module, tensor_data_ptr_address())


def tensor_data_ptr_address() -> int:
    """Address of the C function `void *(PyObject *)` that torch exports, or 0 without one.

    torch 2.13 offers it as an int in `torch._C._dynamo.guards`, as it has since 2.1; it reads
    `Tensor.data_ptr()` with no Python call.
    """
    guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    address = getattr(guards, "_torchinductor_pyobject_tensor_data_ptr", 0)
    return address if isinstance(address, int) else 0
