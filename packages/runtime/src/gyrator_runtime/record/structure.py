"""Recording what nests: contexts, branches, loops, subprograms."""

from collections.abc import Callable
from typing import Any

from attrs import define

from gyrator_runtime import host
from gyrator_runtime.record.recording import Recording
from gyrator_runtime.record.values import AnySize, Handle, Recorded, Size


@define
class StructureInstructions(Recording):
    """Instructions that hold other recordings."""

    def with_context(
        self,
        context: Callable[[], Any],
        body: Callable[..., Recorded],
        captured: tuple[Handle | AnySize, ...],
    ) -> tuple[Handle | Size, ...]:
        """Record `body` apart; run it inside a context manager, made anew each time."""
        inner = self._nested(body, captured)

        def run(*args: object) -> object:
            with context():
                return inner.plan(*args)

        return self._results(run, captured, inner.integers)

    def with_device(
        self, device: str, body: Callable[..., Recorded], captured: tuple[Any, ...]
    ) -> tuple[Handle | Size, ...]:
        """Run `body` with a device current."""
        return self.with_context(lambda: host.device_guard(device), body, captured)

    def profile_range(
        self, label: str, body: Callable[..., Recorded], captured: tuple[Any, ...]
    ) -> tuple[Handle | Size, ...]:
        """Run `body` in a named range of the profiler."""
        return self.with_context(lambda: host.profile_range(label), body, captured)

    def branch(
        self,
        condition: Handle | tuple[Callable[..., bool], tuple[AnySize, ...]],
        then: Callable[..., Recorded],
        otherwise: Callable[..., Recorded],
        captured: tuple[Any, ...],
    ) -> tuple[Handle | Size, ...]:
        """Run one of two bodies."""
        yes, no = self._nested(then, captured), self._nested(otherwise, captured)
        if isinstance(condition, Handle):
            inputs: tuple[Any, ...] = (condition,)
            test: Callable[..., bool] = bool
        else:
            test, inputs = condition
        n = len(inputs)

        def run(*args: object) -> object:
            return (yes if test(*args[:n]) else no).plan(*args[n:])

        return self._results(run, (*inputs, *captured), yes.integers)

    def loop(
        self,
        condition: Callable[..., Recorded],
        body: Callable[..., Recorded],
        initial: tuple[Any, ...],
        captured: tuple[Any, ...],
    ) -> tuple[Handle | Size, ...]:
        """Replace the carried values by what `body` gives, while `condition` gives true."""
        test, step = (self._nested(f, (*initial, *captured)) for f in (condition, body))
        n = len(initial)

        def run(*args: object) -> object:
            carried: Any = args[:n]
            rest = args[n:]
            while test.plan(*carried, *rest)[0]:  # type: ignore[index]
                carried = step.plan(*carried, *rest)
            return carried

        return self._results(run, (*initial, *captured), step.integers)

    def call_program(self, program: str, args: tuple[Any, ...]) -> tuple[Handle | Size, ...]:
        """Run a subprogram."""
        inner = self.rt.subprograms[program].recorded
        return self._results(lambda *a: inner.plan(list(a)), args, inner.integers)

    def call_partition(self, program: str, args: tuple[Any, ...]) -> tuple[Handle | Size, ...]:
        """Run a subprogram that a device's graph may stand for."""
        called = self.rt.subprograms[program]
        run = called.partition
        return self._results(lambda *a: run(list(a)), args, called.recorded.integers)
