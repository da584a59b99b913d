"""Loading of a runner: the native one if Python's headers and a compiler exist, else the pure one.

gyrunner.cpp is compiled at first use and cached. It includes Python.h but no headers of PyTorch.
"""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch._C._dynamo import guards

from gyrator_ir.define import frozen
from gyrator_ir.types import HOST
from gyrator_runtime.cache import Cache, CacheError
from gyrator_runtime.native.extension import Extension
from gyrator_runtime.native.kernels import TensorLaunch
from gyrator_runtime.native.ready import Ready, ready
from gyrator_runtime.native.recorded import Recorded
from gyrator_runtime.native.shim import RETURNING, load_shim, returning_address, version_address
from gyrator_runtime.toolchain import Toolchain
from gyrator_runtime.warn import warn

if TYPE_CHECKING:
    from gyrator_runtime.native.program import PlanProgram

WATCHERS: tuple[Callable[[], object], ...] = (
    torch._C._len_torch_dispatch_stack,
    torch._C._autograd._profiler_enabled,
)
"""Functions that return whether operators are observed: by dispatch modes, or by the profiler."""


class Plan(Protocol):
    """A callable plan. Thread-safe."""

    def __call__(self, *args: object) -> object:
        """Run the plan: `plan(*args)`, or `plan(list)` if the program is boxed."""
        ...

    def timings(self) -> list[tuple[int, int, int]]:
        """Return rows (calls, total ns, minimum ns), one per launch; empty unless the plan is
        timed."""
        ...


class Runner(Protocol):
    """Makes plans callable."""

    @property
    def name(self) -> str:
        """Either "native" or "pure"."""
        ...

    def load(self, plan: Ready) -> Plan:
        """Return an encoded plan as a callable."""
        ...

    def operator(self, target: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the quickest callable for an operator that `function` calls."""
        ...

    def unchanged(self, recorded: Recorded, indices: Sequence[int]) -> Callable[[list[Any]], bool]:
        """Return a callable that tells whether the items of a list at `indices` are the recorded
        tensors, and have not been written to since."""
        ...

    def plan(self, program: "PlanProgram") -> Plan:
        """Return `program` as a callable. ValueError if it uses a register that does not exist."""
        from gyrator_runtime.native.encode import encode  # stored plans are already encoded

        encoded = encode(program)
        return self.load(ready(encoded, tuple(encoded.consts), timed=program.timed))


@frozen
class PureRunner(Runner):
    """Runs plans in Python, and kernels through ctypes."""

    @property
    def name(self) -> str:
        """Return "pure"."""
        return "pure"

    def load(self, plan: Ready) -> Plan:
        """Return an encoded plan as a callable."""
        return _in_python(plan)

    def operator(self, target: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`."""
        return function

    def unchanged(self, recorded: Recorded, indices: Sequence[int]) -> Callable[[list[Any]], bool]:
        """Return a callable that looks at one tensor after the other in Python."""
        return lambda args: recorded.match([args[k] for k in indices])


@frozen
class NativeRunner(Runner):
    """Runs plans in the compiled extension module."""

    module: ModuleType
    data_ptr_address: int  # 0: call `Tensor.data_ptr`

    @property
    def name(self) -> str:
        """Return "native"."""
        return "native"

    def load(self, plan: Ready) -> Plan:
        """Return an encoded plan as a callable."""
        if any(isinstance(k, TensorLaunch) for k in plan.kernels):
            return _in_python(plan)
        shim = load_shim()
        native_plan = self.module.Plan(
            code=plan.code.tobytes(),
            ints=plan.ints.tobytes(),
            consts=(*plan.consts, plan.kernels),  # keeps the kernels alive
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
            key_offset=0 if shim is None else shim.fields.keys,
            storage_offset=0 if shim is None else shim.fields.storage,
            pending=0 if shim is None else shim.fields.pending,
        )
        return cast(Plan, native_plan)

    def operator(self, target: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable that calls the operator through the C ABI where that has it, and
        `function` for arguments that the ABI does not take, and for operators that are observed."""
        shim = load_shim()
        if target not in RETURNING or shim is None:
            return function
        address, wrap = returning_address(target), tensors_from_handles()
        if not address or wrap is None:
            return function
        direct: Callable[..., Any] = self.module.Operator(
            target=target,
            address=address,
            function=function,
            wrap=wrap,
            tensor_type=torch.Tensor,
            parameter_type=torch.nn.Parameter,
            watchers=WATCHERS,
            helpers=shim.helpers,
            tensor_offset=shim.tensor_offset,
            cpu=shim.devices[HOST],
        )
        return direct

    def unchanged(self, recorded: Recorded, indices: Sequence[int]) -> Callable[[list[Any]], bool]:
        """Return a callable that looks at all tensors in one loop, where PyTorch exports the
        functions for it."""
        shim, version = load_shim(), version_address()
        if shim is None or not version or not self.data_ptr_address:
            return PureRunner().unchanged(recorded, indices)
        check: Callable[[list[Any]], bool] = self.module.Unchanged(
            tensors=recorded.tensors,
            versions=recorded.versions,
            addresses=recorded.addresses,
            indices=tuple(indices),
            tensor_offset=shim.tensor_offset,
            version_address=version,
            data_ptr_address=self.data_ptr_address,
        )
        return check


def _in_python(plan: Ready) -> Plan:
    from gyrator_runtime.native.pure import PurePlan  # rarely needed

    return PurePlan(plan)


def load_runner(cache: Cache, toolchain: Toolchain | None) -> Runner:
    """Return the native runner, built if necessary, else the pure one with a warning."""
    reason = "there is no C++ compiler"
    try:
        if (module := runner_extension().find(cache)) is not None:
            return runner_of(module)
        if toolchain is not None:
            return build_native_runner(cache, toolchain)
    except (OSError, ImportError, CacheError, subprocess.SubprocessError) as error:
        reason = str(error).strip()
        if toolchain is not None:
            reason = f"by {shlex.join(toolchain.command)}: {reason}"
    return pure_runner(
        f"the native runner cannot be built ({reason})",
        "install a C++ compiler and Python's headers (Debian: apt-get install g++ python3-dev)",
    )


def pure_runner(why: str, help: str) -> PureRunner:
    """Return the pure runner, with a warning (GY-RUNTIME-001) that gives the reason."""
    warn("GY-RUNTIME-001", f"{why}; calls cost some 20 us more", help)
    return PureRunner()


def build_native_runner(cache: Cache, toolchain: Toolchain) -> NativeRunner:
    """Return the native runner from `cache`, built by `toolchain` if necessary.

    Raises:
        OSError, subprocess.SubprocessError: when it does not build.
        ImportError: when it does not load.
    """
    return runner_of(runner_extension().build(cache, toolchain))


def runner_extension() -> Extension:
    """Return the native runner's extension module, which is built for each Python version."""
    folder = Path(__file__).parent
    text = b"".join(
        (folder / name).read_bytes()
        for name in ("plan.h", "operators.h", "unchanged.h", "gyrunner.cpp")
    )
    return Extension("_gyrunner", text)


def runner_of(module: ModuleType) -> NativeRunner:
    """Return the runner of a built module."""
    return NativeRunner(module, tensor_data_ptr_address())


def tensors_from_handles() -> Callable[[list[object]], list[torch.Tensor]] | None:
    """Return PyTorch's function from capsules that hold tensors of the C ABI, which it takes over,
    to Python tensors; None if there is none."""
    # The function of the same name for one tensor does not free what its capsule holds.
    bindings: Any = getattr(torch._C, "_aoti", None)
    return getattr(bindings, "alloc_tensors_by_stealing_from_void_ptrs", None)


def tensor_data_ptr_address() -> int:
    """Return the address of PyTorch's C function `void *(PyObject *)` that computes
    `Tensor.data_ptr()` without a Python call; 0 if there is none."""
    address = getattr(guards, "_torchinductor_pyobject_tensor_data_ptr", 0)
    return address if isinstance(address, int) else 0
