"""Gyrator's conformance suite: models on all targets and host languages, checked against one
standard.

Public: `Profile`, `Excuse` and `Reason`, with which a target declares its limitations.
"""

from gyrator_conformance.cells import Excuse, Reason
from gyrator_conformance.profiles import Profile

__all__ = ["Excuse", "Profile", "Reason"]
