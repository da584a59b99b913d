"""The device of a package that runs on an accelerator, with its kernels and graphs.

It needs a PyTorch built for the device, and the device's driver.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from attrs import field

from gyrator_ir.define import frozen
from gyrator_runtime.accelerator import AcceleratorDevice, DeviceFacts
from gyrator_runtime.build import BuildError
from gyrator_runtime.graphs import GraphMemory, GraphReplay
from gyrator_runtime.host import device_guard, with_current_device
from gyrator_runtime.package.errors import misfit
from gyrator_runtime.triton.architecture import compute_capability
from gyrator_runtime.triton.driver import Driver, names_here, open_driver
from gyrator_runtime.triton.launch import DeviceKernel, launches

Run = Callable[[list[Any]], Any]


@frozen(eq=False)
class Accelerated:
    """A device and its driver."""

    device: torch.device
    arch: str
    driver: Driver
    _interface: AcceleratorDevice
    _memory: GraphMemory = field(factory=GraphMemory)
    _lock: Any = field(factory=Lock)

    @classmethod
    def of(cls, path: Path, kind: str, index: int | None) -> "Accelerated":
        """Return a device of type `kind`, by default the current one.

        Raises:
            PackageError: GY-PACKAGE-004, when this process has no such device.
        """
        current, names = torch.accelerator.current_accelerator(), names_here()
        if current is None or current.type != kind or names is None:
            why = f"it runs on {kind}, for which torch {torch.__version__} is not built"
            raise misfit(path, why, "install a torch that is, or build a package for the CPU")
        count = torch.accelerator.device_count()
        if not count:
            why = f"it runs on {kind}, and there is no driver or no device of that type"
            raise misfit(path, why, "check the driver, or build a package for the CPU")
        number = torch.accelerator.current_device_index() if index is None else index
        if not 0 <= number < count:
            why = f"there is no {kind}:{number}; there are {count} of them"
            raise misfit(path, why, "name an existing device")
        facts = DeviceFacts(type=kind, architecture=compute_capability, graphs=True)
        interface = AcceleratorDevice(facts)
        try:
            driver = open_driver(names)
        except BuildError as error:
            raise misfit(path, error.diagnostic.message, "check the device's driver") from error
        arch = interface.properties(number).arch
        return cls(torch.device(kind, number), arch, driver, interface)

    def kernels(
        self, path: Path, data: bytes, symbols: Sequence[str]
    ) -> Mapping[str, DeviceKernel]:
        """Load the kernels in a library with the driver, and return them by symbol.

        Raises:
            PackageError: GY-PACKAGE-004, when the driver rejects one.
        """
        kernels = launches(self.driver, data, symbols)
        try:
            with device_guard(self.device):
                self.driver.enter_context()
                for kernel in kernels.values():
                    kernel.load()
        except BuildError as error:
            diagnostic = error.diagnostic
            help = "update the driver, or compile the package for this architecture"
            raise misfit(path, f"{diagnostic.message} ({diagnostic.where})", help) from error
        return kernels

    def part(self, plan: Run, mutated: Sequence[int] | None) -> Run:
        """Return a plan that replays a captured graph if possible.

        Args:
            plan: the plan.
            mutated: indices of the arguments that it writes to; None if it must not be captured.
        """
        if mutated is None:
            return plan
        replay = GraphReplay(
            plan, self._interface, frozenset(mutated), self.device.index, self._memory
        )

        def run(args: list[Any]) -> Any:
            with self._lock:  # graphs share memory
                return replay(args)

        return run

    def current(self, plan: Run) -> Run:
        """Return a plan that makes the device current while it runs."""
        return with_current_device(plan, self.device.index)
