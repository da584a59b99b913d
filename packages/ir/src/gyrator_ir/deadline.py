"""Time limits of compile stages (`Deadline`)."""

import math
import time

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError


class LateError(UnsupportedError):
    """A stage exceeded its time limit."""


@frozen
class Deadline:
    """The time by which a stage must end. It is checked before each step of the stage, so a stage
    stops after the step in which its time runs out."""

    stage: str = ""
    seconds: float = math.inf
    """The time limit of the stage."""
    end: float = math.inf
    """The end of the stage on the `time.monotonic` clock."""

    @classmethod
    def after(cls, seconds: float, stage: str) -> "Deadline":
        """Return the deadline of a stage that starts now."""
        return cls(stage, seconds, time.monotonic() + seconds)

    @property
    def past(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.end

    def late(self, step: str) -> Diagnostic:
        """Return the diagnostic for a deadline that passed before a step."""
        return Diagnostic(
            "GY-COMPILE-003",
            f"the stage {self.stage!r} took more than {self.seconds:g} s and did not reach {step}",
            help="raise the option `stage_seconds` if the machine is slow or the graph is large",
        )

    def check(self, step: str) -> None:
        """Raise LateError (GY-COMPILE-003) if the deadline has passed before a step."""
        if self.past:
            raise LateError(self.late(step))


NEVER = Deadline()
