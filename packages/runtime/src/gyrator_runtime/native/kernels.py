"""Built kernels, in the forms that plans launch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from gyrator_ir.define import frozen
from gyrator_ir.modes import Failure

CheckHandler: TypeAlias = Callable[[int, tuple[object, ...], tuple[int, ...]], BaseException]
"""`handler(number, buffers, sizes)` creates the exception of a failed check. `buffers` are the
objects in the launch's registers and `sizes` its sizes, so that it can find the failing value."""


class DeviceLaunch(Protocol):
    """A kernel of a device with a queue."""

    @property
    def address(self) -> int:
        """Address of the `DeviceLaunch` block that plan.h reads; valid as long as this object."""
        ...

    def launch(self, addresses: Sequence[int | None], sizes: Sequence[int]) -> int:
        """Queue the kernel, without native code. Return 0 or the driver's error."""
        ...

    def failure(
        self, number: int, buffers: tuple[object, ...], sizes: tuple[int, ...]
    ) -> BaseException:
        """Return the exception of a launch that returned `number`: a `CheckHandler`."""
        ...


class TensorLaunch(ABC):
    """A kernel that receives tensors, on devices where addresses do not identify memory.

    Plans that launch one run in Python.
    """

    @abstractmethod
    def launch(self, tensors: Sequence[Any], offsets: Sequence[int], sizes: Sequence[int]) -> int:
        """Queue the kernel for tensors at byte offsets. Return 0, or the number of the check that
        failed."""


KernelFunction: TypeAlias = int | DeviceLaunch | TensorLaunch
"""A built kernel: the address of a function of the uniform signature, or an object that queues
it."""

Checks: TypeAlias = tuple[tuple[type[BaseException], str], ...]
"""The exceptions for a kernel's return values of 1, 2, ..."""


@frozen
class LoadedKernel:
    """A kernel that plans are linked with."""

    function: KernelFunction
    checks: Checks = ()


@frozen
class BuiltKernel:
    """The symbol and checks of a kernel in a stored plan."""

    name: str
    symbol: str
    checks: tuple[tuple[str, str], ...] = ()
    """The failures for return values of 1, 2, ...: a value of `gyrator_ir.modes.Failure`, and a
    message."""

    def loaded(self, function: KernelFunction) -> LoadedKernel:
        """Return the kernel with a function of this process."""
        checks = tuple((Failure(failure).exception, message) for failure, message in self.checks)
        return LoadedKernel(function, checks)


def check_handler(kernel: KernelFunction, name: str, checks: Checks | CheckHandler) -> CheckHandler:
    """Return the handler that creates the exception of a failed launch."""
    if not isinstance(kernel, int | TensorLaunch):
        return kernel.failure
    if callable(checks):
        return checks

    def make(number: int, _buffers: tuple[object, ...], _sizes: tuple[int, ...]) -> BaseException:
        if 1 <= number <= len(checks):
            kind, message = checks[number - 1]
            return kind(message)
        where = f" of kernel {name}" if name else ""
        return RuntimeError(f"gyrator: check {number}{where} failed")

    return make
