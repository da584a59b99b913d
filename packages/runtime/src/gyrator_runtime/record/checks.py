"""Recording checks."""

from collections.abc import Callable

import torch
from attrs import define

from gyrator_runtime import host
from gyrator_runtime.native.program import Conform, Const, Separate
from gyrator_runtime.outside import conform, separate
from gyrator_runtime.record.recording import Recording
from gyrator_runtime.record.values import AnySize, Handle, layout_of, plan_size


@define
class CheckInstructions(Recording):
    """What must hold when the program runs."""

    def conform(
        self,
        tensor: Handle,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        dtype: str,
        device: str,
        mend: str,
        name: str,
        what: str,
    ) -> None:
        """Make a tensor from outside what the program takes it for; see `outside.conform`."""
        layout = layout_of(shape, strides, host.DTYPES[dtype], 0)
        place, count = torch.device(device), len(shape)

        def mended(given: object, sizes: tuple[int, ...]) -> object:
            wanted = (sizes[:count], sizes[count:], layout.dtype, place)
            return conform(given, *wanted, mend, name, what)

        self.instructions.append(Conform(tensor.register, mended, layout, place))

    def separate(self, tensors: tuple[Handle, ...], others: tuple[Handle, ...]) -> None:
        """Copy those of `tensors` whose storage is that of another of them, or of `others`."""
        registers = tuple(dict.fromkeys(t.register for t in tensors))
        apart = tuple(dict.fromkeys(t.register for t in others))
        self.instructions.append(Separate(registers, apart, separate))

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
