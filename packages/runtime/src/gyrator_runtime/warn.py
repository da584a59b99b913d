"""Warnings of this package, with a category, a stable code and advice."""

import warnings

from gyrator_ir.diagnostics import Diagnostic


class GyratorWarning(UserWarning):
    """Something does not work as well as it could. Results are correct nevertheless."""


def warn(code: str, message: str, help: str = "", stacklevel: int = 3) -> None:
    """Issue a warning with a stable code. By default Python shows it once per location, which is
    the line that called the caller."""
    text = Diagnostic(code, message, help=help).render()
    warnings.warn(text, GyratorWarning, stacklevel=stacklevel)
