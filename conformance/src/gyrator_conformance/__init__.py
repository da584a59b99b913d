"""Gyrator's conformance suite: models on targets and host languages, held to one standard.

Public: `Profile`, `Excuse` and `Reason`, by which a target declares what it cannot do.
"""

from gyrator_conformance.cells import Excuse, Reason
from gyrator_conformance.profiles import Profile

__all__ = ["Excuse", "Profile", "Reason"]
