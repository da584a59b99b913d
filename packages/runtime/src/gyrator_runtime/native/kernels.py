"""Built kernels, as plans launch them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from attrs import frozen

CheckHandler: TypeAlias = Callable[[int, tuple[object, ...], tuple[int, ...]], BaseException]
"""`handler(number, buffers, sizes)` makes the exception of a failed check: `buffers` are the
objects in the launch's registers and `sizes` its numbers, so that it can look for the value."""


class DeviceLaunch(Protocol):
    """How a kernel gets onto a device that has a queue of its own."""

    @property
    def address(self) -> int:
        """Of the `DeviceLaunch` block that plan.h reads; valid as long as this object."""
        ...

    def launch(self, addresses: Sequence[int | None], sizes: Sequence[int]) -> int:
        """Do the same without native code: queue it; return 0 or the driver's error."""
        ...

    def failure(
        self, number: int, buffers: tuple[object, ...], sizes: tuple[int, ...]
    ) -> BaseException:
        """Return the exception of a launch that gave `number`: a `CheckHandler`."""
        ...


class TensorLaunch(ABC):
    """A kernel that is handed tensors, for their addresses do not say where they are.

    Plans that launch one run in Python.
    """

    @abstractmethod
    def launch(self, tensors: Sequence[Any], offsets: Sequence[int], sizes: Sequence[int]) -> int:
        """Queue it for tensors, from so many bytes after their first elements; return 0, or the
        number of the check that failed."""


KernelFunction: TypeAlias = int | DeviceLaunch | TensorLaunch
"""A built kernel: the address of a function of the uniform signature, or what queues it."""

Checks: TypeAlias = tuple[tuple[type[BaseException], str], ...]
"""What a kernel's return of 1, 2, ... raises."""


@frozen
class LoadedKernel:
    """A kernel that plans are linked with."""

    function: KernelFunction
    checks: Checks = ()


_EXCEPTIONS: Mapping[str, type[BaseException]] = {
    kind.__name__: kind for kind in (IndexError, RuntimeError)
}
"""By the values of `gyrator_ir.source.Failure`."""


@frozen
class BuiltKernel:
    """How a launch of a stored plan finds its kernel."""

    name: str
    symbol: str
    checks: tuple[tuple[str, str], ...] = ()
    """What a return of 1, 2, ... raises: a value of `gyrator_ir.source.Failure`, and a message."""

    def loaded(self, function: KernelFunction) -> LoadedKernel:
        """Return the kernel that a function of this process computes."""
        checks = tuple((_EXCEPTIONS[failure], message) for failure, message in self.checks)
        return LoadedKernel(function, checks)


def check_handler(kernel: KernelFunction, name: str, checks: Checks | CheckHandler) -> CheckHandler:
    """Return what makes the exception of a launch that fails."""
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
