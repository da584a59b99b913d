"""Recording checks."""

from collections.abc import Callable

from attrs import define

from gyrator_runtime import host
from gyrator_runtime.native.program import Const
from gyrator_runtime.record.recording import Recording
from gyrator_runtime.record.values import AnySize, Handle, plan_size, size_tuple


@define
class CheckInstructions(Recording):
    """What must hold when the program runs."""

    def assert_size_stride(
        self,
        tensor: Handle,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        what: str,
    ) -> None:
        """Raise AssertionError unless sizes and strides are these."""
        args = (self._reg(tensor), size_tuple(shape), size_tuple(strides), Const(what))
        self._call(host.assert_size_stride, args, result=False)

    def assert_alignment(self, tensor: Handle, alignment: int) -> None:
        """Raise AssertionError unless the data pointer is a multiple of `alignment` bytes."""
        self._call(host.assert_alignment, (self._reg(tensor), alignment), result=False)

    def assert_no_nan(self, tensor: Handle, what: str) -> None:
        """Raise AssertionError if a floating-point tensor holds NaN or infinity."""
        self._call(host.check_nan, (self._reg(tensor), Const(what)), result=False)

    def assert_true(
        self, test: Callable[..., bool], symbols: tuple[AnySize, ...], message: str
    ) -> None:
        """Raise RuntimeError unless a condition on sizes holds."""

        def check(*values: int) -> None:
            if not test(*values):
                raise RuntimeError(message)

        self._call(check, tuple(plan_size(s) for s in symbols), result=False)
