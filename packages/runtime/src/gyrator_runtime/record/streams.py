"""Recording streams, events and collectives."""

from collections.abc import Callable
from typing import Any

from attrs import define

from gyrator_runtime import host
from gyrator_runtime.native.program import Const, Reg
from gyrator_runtime.record.recording import Recording
from gyrator_runtime.record.values import Handle, Recorded, Size


@define
class StreamInstructions(Recording):
    """Order of work on devices that run beside the host."""

    def stream(self, device: str, current: bool) -> Handle:
        """Return the caller's stream of a device, or a new one."""
        return self._call(host.stream, (Const(device), Const(current)))

    def event(self, device: str) -> Handle:
        """Return a new event of a device."""
        return self._call(host.event, (Const(device),))

    def record_event(self, event: Handle, stream: Handle) -> None:
        """Record an event on a stream."""
        args = (Reg(event.register), Reg(stream.register))
        self._call(host.record_event, args, result=False)

    def wait_event(self, event: Handle, stream: Handle) -> None:
        """Make a stream wait for an event."""
        self._call(host.wait_event, (Reg(event.register), Reg(stream.register)), result=False)

    def with_stream(
        self, stream: Handle, body: Callable[..., Recorded], captured: tuple[Any, ...]
    ) -> tuple[Handle | Size, ...]:
        """Run `body` with a stream current."""
        inner = self._nested(body, captured)

        def run(current: Any, *args: object) -> object:
            with host.stream_guard(current):
                return inner.plan(*args)

        return self._results(run, (stream, *captured), inner.integers)

    def wait_collective(self, tensor: Handle) -> None:
        """Wait for the collective that fills a tensor."""
        function = host.extern("_c10d_functional.wait_tensor.default")
        self._call(function, (self._reg(tensor),), result=False)
