"""Devices with a PyTorch device module, such as `torch.cuda` or `torch.xpu`.

One class implements them all; `DeviceFacts` describes their differences.
"""

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch

from gyrator_ir.define import frozen
from gyrator_runtime.device import DeviceInterface, DeviceProperties, MemoryInfo


@frozen(kw_only=True)
class DeviceFacts:
    """Properties of a device type that PyTorch's device modules do not expose."""

    type: str
    """The device type as in `torch.device`."""
    architecture: Callable[[Any], str]
    """Returns the architecture's name from PyTorch's device properties."""
    graphs: bool = False
    """Whether the device module has `CUDAGraph` and `graph`."""


class AcceleratorDevice(DeviceInterface):
    """All devices of one type that PyTorch supports."""

    def __init__(self, facts: DeviceFacts) -> None:
        self._facts = facts
        self._module: Any = torch.get_device_module(facts.type)

    @property
    def type(self) -> str:
        """The device type as in `torch.device`."""
        return self._facts.type

    def count(self) -> int:
        """Return the number of devices; 0 without support by PyTorch or the driver."""
        return int(self._module.device_count()) if self._module.is_available() else 0

    def properties(self, index: int = 0) -> DeviceProperties:
        """Return the properties of device `index`. DeviceError if there is none."""
        self._check(index)
        properties = self._module.get_device_properties(index)
        cores = getattr(properties, "multi_processor_count", 0) or getattr(
            properties, "gpu_eu_count", 1
        )
        return DeviceProperties(
            properties.name,
            self._facts.architecture(properties),
            int(cores),
            int(properties.total_memory),
        )

    def memory(self, index: int = 0) -> MemoryInfo:
        """Return the memory of device `index`. `used` is the memory of PyTorch's allocator."""
        self._check(index)
        free, total = self._module.mem_get_info(index)
        return MemoryInfo(total, free, self._module.memory_reserved(index))

    def guard(self, index: int) -> contextlib.AbstractContextManager[object]:
        """Make device `index` current for the duration of a block."""
        self._check(index)
        return cast(contextlib.AbstractContextManager[object], self._module.device(index))

    def synchronize(self, index: int = 0) -> None:
        """Wait until device `index` is idle."""
        self._module.synchronize(index)

    def supports_graphs(self) -> bool:
        """Return whether a run can be captured and replayed."""
        return self._facts.graphs

    def capturing(self) -> bool:
        """Return whether work on the current stream is being captured."""
        return self._facts.graphs and bool(self._module.is_current_stream_capturing())

    def queue(self, index: int = 0) -> int:
        """Return the number of the current stream."""
        return int(self._module.current_stream(index).stream_id)

    def graph_pool(self) -> object:
        """Return PyTorch's handle of a new memory pool."""
        return self._module.graph_pool_handle() if self._facts.graphs else None

    def capture(
        self, run: Callable[[], None], *, warm: bool = True, pool: object = None
    ) -> Callable[[], None]:
        """Capture `run` on a separate stream, and return a function that replays it.

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
        """Free the matmul workspaces that PyTorch keeps for each stream. Graphs that share one
        cannot be replayed concurrently, and it would stay in the pool of the first graph."""
        clear = getattr(torch._C, f"_{self.type}_clearCublasWorkspaces", None)
        if clear is not None:
            clear()

    def _leave_capture(self, stream: Any) -> None:
        """Restore the state that PyTorch leaves behind after a failed capture: the current stream,
        and the generator, which would treat all later random numbers as part of a graph."""
        self._module.set_stream(stream)
        generator = self._module.default_generators[stream.device_index]
        generator.graphsafe_set_state(generator.clone_state())


@cache
def _capturing_stream(module: Any, index: int) -> Any:
    """Return the stream for captures on device `index`, one per process.

    PyTorch keeps a workspace for each stream that has run a matmul. Its default capture stream
    belongs to whichever device was captured first.
    """
    return module.Stream(index)
