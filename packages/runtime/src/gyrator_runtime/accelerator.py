"""Devices that torch drives through one module each, such as `torch.cuda` or `torch.xpu`.

One class serves them all; a `DeviceFacts` says in what they differ.
"""

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from attrs import frozen

from gyrator_runtime.device import (
    Allocator,
    DeviceError,
    DeviceInterface,
    DeviceProperties,
    MemoryInfo,
)


@frozen(kw_only=True)
class DeviceFacts:
    """What the common interface cannot ask a kind of device."""

    type: str
    """As `torch.device` spells it."""
    architecture: Callable[[Any], str]
    """The architecture's name, of torch's properties of a device."""
    graphs: bool = False
    """torch's module offers `CUDAGraph` and `graph`."""


class AcceleratorDevice(DeviceInterface):
    """All devices of one type that torch drives."""

    def __init__(self, facts: DeviceFacts) -> None:
        self._facts = facts
        self._module: Any = torch.get_device_module(facts.type)

    @property
    def type(self) -> str:
        """Return the type as torch spells it."""
        return self._facts.type

    def count(self) -> int:
        """How many there are; 0 where torch or the driver lacks support."""
        return int(self._module.device_count()) if self._module.is_available() else 0

    def properties(self, index: int = 0) -> DeviceProperties:
        """Facts about device `index`; DeviceError where there is none."""
        self._check(index)
        found = self._module.get_device_properties(index)
        cores = getattr(found, "multi_processor_count", 0) or getattr(found, "gpu_eu_count", 1)
        return DeviceProperties(
            found.name, self._facts.architecture(found), int(cores), int(found.total_memory)
        )

    def memory(self, index: int = 0) -> MemoryInfo:
        """Memory of device `index`; `used` is what torch's allocator holds."""
        self._check(index)
        free, total = self._module.mem_get_info(index)
        return MemoryInfo(total, free, self._module.memory_reserved(index))

    def allocator(self) -> Allocator:
        """Return torch's quick entry where it has one, else `torch.empty_strided`."""
        guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        quick: Any = getattr(guards, f"_empty_strided_{self.type}", None)
        if quick is not None:
            return cast(Allocator, quick)

        def allocate(
            size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
        ) -> torch.Tensor:
            return torch.empty_strided(size, stride, dtype=dtype, device=self.type)

        return allocate

    def guard(self, index: int) -> contextlib.AbstractContextManager[object]:
        """Make device `index` the current one for the length of a block."""
        self._check(index)
        return cast(contextlib.AbstractContextManager[object], self._module.device(index))

    def synchronize(self, index: int = 0) -> None:
        """Wait until device `index` is idle."""
        self._module.synchronize(index)

    def supports_graphs(self) -> bool:
        """Whether a run can be captured and replayed."""
        return self._facts.graphs

    def capturing(self) -> bool:
        """Whether work of the current stream is being captured now."""
        return self._facts.graphs and bool(self._module.is_current_stream_capturing())

    def queue(self, index: int = 0) -> int:
        """Return the number of the current stream."""
        return int(self._module.current_stream(index).stream_id)

    def graph_pool(self) -> object:
        """Return torch's handle of a new pool of memory."""
        return self._module.graph_pool_handle() if self._facts.graphs else None

    def capture(
        self, run: Callable[[], None], *, warm: bool = True, pool: object = None
    ) -> Callable[[], None]:
        """Capture `run` on a stream of its own, and return what replays it.

        Memory that the run allocates belongs to the graph and is overwritten by every replay.
        """
        if not self._facts.graphs:
            return super().capture(run, warm=warm, pool=pool)
        module = self._module
        stream = module.current_stream()
        own = _capturing_stream(module, stream.device_index)
        if warm:
            own.wait_stream(stream)
            with module.stream(own):
                run()
            stream.wait_stream(own)
        graph = module.CUDAGraph()
        self._clear_workspaces()
        try:
            with module.graph(graph, pool=pool, stream=own, capture_error_mode="thread_local"):
                run()
        except RuntimeError:
            self._leave_capture(stream)
            raise
        finally:
            self._clear_workspaces()
        return cast(Callable[[], None], graph.replay)

    def _clear_workspaces(self) -> None:
        """Drop what torch keeps for the products of each stream: graphs that shared it could not
        replay side by side, and it would never leave the pool of the first of them."""
        clear = getattr(torch._C, f"_{self.type}_clearCublasWorkspaces", None)
        if clear is not None:
            clear()

    def _leave_capture(self, stream: Any) -> None:
        """Undo what torch leaves behind where a capture fails: its stream, and a generator that
        takes all later random numbers for parts of a graph."""
        self._module.set_stream(stream)
        generator = self._module.default_generators[stream.device_index]
        generator.graphsafe_set_state(generator.clone_state())

    def _check(self, index: int) -> None:
        if not 0 <= index < self.count():
            raise DeviceError.of("GY-DEVICE-001", f"there is no device {self.type}:{index}")


@cache
def _capturing_stream(module: Any, index: int) -> Any:
    """Return the stream that captures device `index`, the same one in the whole process.

    torch keeps memory for each stream that computed products. What it captures with, where it is
    given none, is a stream of whichever device was captured first.
    """
    return module.Stream(index)
