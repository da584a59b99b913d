"""Errors of the FX wrapper."""

from gyrator_ir.diagnostics import GyratorError


class FxWrapperError(GyratorError):
    """A host program that cannot be converted to a graph here, or an unknown graph compiler."""


def fx_error(number: int, message: str, where: str = "", help: str = "") -> FxWrapperError:
    """Return (not raise) the error GY-FX-`number`."""
    return FxWrapperError.of(f"GY-FX-{number:03}", message, where=where, help=help)
