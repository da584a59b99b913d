"""Errors of the FX wrapper."""

import torch

from gyrator_ir.diagnostics import GyratorError, LayoutError


class FxWrapperError(GyratorError):
    """A host program that cannot become a graph in this process, or a compiler not found."""


class NanError(GyratorError, AssertionError):
    """A buffer holds NaN or infinity while NaN checks are on."""


def layout_error(name: str, what: str, given: object, expected: str) -> LayoutError:
    """Return the error of what was `given` for a parameter or as a result of the op `what`."""
    found = f"a {type(given).__name__}"
    if isinstance(given, torch.Tensor):
        pending = " conjugated" * given.is_conj() + " negated" * given.is_neg()
        strides = f", strides {given.stride()}" if given.layout is torch.strided else ""
        found = f"{given.dtype}{pending} {tuple(given.shape)}{strides}, on {given.device}"
    return LayoutError.of_tensor(name, what, found, expected)


def fx_error(number: int, message: str, where: str = "", help: str = "") -> FxWrapperError:
    """Return (not raise) the error GY-FX-`number`."""
    return FxWrapperError.of(f"GY-FX-{number:03}", message, where=where, help=help)
