"""What a pass is, and how a list of them runs."""

from collections.abc import Callable
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from attrs import frozen

M = TypeVar("M")


class Pass(Protocol[M]):
    """A frozen attrs class whose fields are its options; pure: program in, program out."""

    name: ClassVar[str]

    def run(self, program: M, /) -> M:
        """Return a new program, or the very same object when nothing changed."""
        ...


@frozen
class Step:
    """What a tracer learns of one pass: enough to print, diff, bisect or time it."""

    name: str
    before: object
    after: object

    @property
    def changed(self) -> bool:
        """Whether the pass returned another object than it was given."""
        return self.before is not self.after


def ignore(step: Step) -> None:
    """The default tracer."""


@frozen
class Pipeline(Generic[M]):
    """Passes in order. A value: build it, print it, hand it over; there is no global one."""

    passes: tuple[Pass[M], ...]
    verifier: Callable[[M], M]
    verify: Literal["ends", "each"] = "ends"

    def run(self, program: M, trace: Callable[[Step], None] = ignore) -> M:
        """Verify, run every pass, verify."""
        program = self.verifier(program)
        for p in self.passes:
            before, program = program, p.run(program)
            trace(Step(p.name, before, program))
            if self.verify == "each":
                self.verifier(program)
        return self.verifier(program)
