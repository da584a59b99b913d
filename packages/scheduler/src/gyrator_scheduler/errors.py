"""Errors of this package."""

from collections.abc import Mapping

from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.target import Target
from gyrator_ir.types import Device


class SchedulerError(GyratorError):
    """A program that cannot be scheduled."""


def target_for(device: Device, targets: Mapping[str, Target]) -> Target:
    """Return the target of a device.

    Raises:
        SchedulerError: GY-SCHED-001, when there is none.
    """
    target = targets.get(device.type)
    if target is None:
        device_types = ", ".join(sorted(targets)) or "none"
        raise SchedulerError.of(
            "GY-SCHED-001",
            f"no target is known for the device {device}",
            help=f"pass a target for {device.type!r}; known: {device_types}",
        )
    return target
