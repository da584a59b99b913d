"""All families together, and the host runtime that starts recordings."""

from collections.abc import Callable, Sequence

import torch
from attrs import define

from gyrator_runtime.record.checks import CheckInstructions
from gyrator_runtime.record.memory import MemoryInstructions
from gyrator_runtime.record.recording import Surroundings
from gyrator_runtime.record.sizes import SizeInstructions
from gyrator_runtime.record.structure import StructureInstructions
from gyrator_runtime.record.values import Recorded, Subprogram
from gyrator_runtime.record.work import WorkInstructions


@define
class Recorder(
    SizeInstructions,
    CheckInstructions,
    MemoryInstructions,
    WorkInstructions,
    StructureInstructions,
):
    """Collects the plan of one straight-line program: every instruction of the Wrapper IR."""


@define
class HostRuntime(Surroundings):
    """The argument of a host program's `build(rt)`."""

    def program(self, name: str, parameters: Sequence[str]) -> Recorder:
        """Start recording a program; it is called with one list, which it empties."""
        return Recorder(self, name, len(parameters), boxed=True)

    def subprogram(
        self, name: str, build: Callable[["HostRuntime"], Recorded], capture: str
    ) -> None:
        """Record a subprogram. `capture` is "allowed" where a device's graph may stand for it."""
        recorded = build(self)
        graph = self.device_graph if capture == "allowed" else None
        partition = recorded.plan if graph is None else graph(name, recorded.plan)
        self.subprograms[name] = Subprogram(recorded, partition)

    def dtype(self, name: str) -> torch.dtype:
        """Return `torch.<name>`."""
        found = getattr(torch, name)
        if not isinstance(found, torch.dtype):
            raise TypeError(f"torch.{name} is not a dtype")
        return found

    def device(self, name: str) -> torch.device:
        """Return `torch.device(name)`."""
        return torch.device(name)

    def layout(self, name: str) -> torch.layout:
        """Return `torch.<name>`."""
        found = getattr(torch, name)
        if not isinstance(found, torch.layout):
            raise TypeError(f"torch.{name} is not a layout")
        return found

    def memory_format(self, name: str) -> torch.memory_format:
        """Return `torch.<name>`."""
        found = getattr(torch, name)
        if not isinstance(found, torch.memory_format):
            raise TypeError(f"torch.{name} is not a memory format")
        return found
