"""When a stage of a compile has to be done (`Deadline`)."""

import math
import time

from attrs import frozen

from gyrator_ir.diagnostics import Diagnostic, UnsupportedError


class LateError(UnsupportedError):
    """A stage took longer than it may."""


@frozen
class Deadline:
    """When a stage has to be done. Whoever has one asks it before each step, so that a stage ends
    with the step during which its time runs out."""

    stage: str = ""
    seconds: float = math.inf
    """What the stage may take."""
    end: float = math.inf
    """By `time.monotonic`."""

    @classmethod
    def after(cls, seconds: float, stage: str) -> "Deadline":
        """Return the end of a stage that begins now."""
        return cls(stage, seconds, time.monotonic() + seconds)

    @property
    def past(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.end

    def late(self, step: str) -> Diagnostic:
        """Say that the time was over before a step."""
        return Diagnostic(
            "GY-COMPILE-003",
            f"the stage {self.stage!r} took more than {self.seconds:g} s, and has not come to "
            f"{step}",
            help="set the option `stage_seconds`, if the machine is slow or the graph is large",
        )

    def check(self, step: str) -> None:
        """Raise LateError (GY-COMPILE-003) if the time is over before a step."""
        if self.past:
            raise LateError(self.late(step))


NEVER = Deadline()
