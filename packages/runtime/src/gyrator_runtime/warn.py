"""The one way this package warns: a category that can be filtered, a code, and the next step."""

import warnings

from gyrator_ir.diagnostics import Diagnostic


class GyratorWarning(UserWarning):
    """Something does not work as well as it could; the results are right all the same."""


def warn(code: str, message: str, help: str = "") -> None:
    """Warn with a stable code. Python shows a text once per place by default."""
    text = Diagnostic(code, message, help=help).render()
    warnings.warn(text, GyratorWarning, stacklevel=3)
