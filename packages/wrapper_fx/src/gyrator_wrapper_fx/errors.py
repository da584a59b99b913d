"""Errors of the FX wrapper."""

import torch

from gyrator_ir.diagnostics import Diagnostic, GyratorError


class FxWrapperError(GyratorError):
    """A host program that cannot become a graph in this process, or a compiler not found."""


class NanError(GyratorError, AssertionError):
    """A buffer holds NaN or infinity while NaN checks are on."""


class LayoutError(GyratorError, AssertionError):
    """A tensor from outside of a program is not what the program takes it for."""


def layout_error(name: str, what: str, given: object, expected: str) -> LayoutError:
    """Return the error of a parameter `name` (GY-RUNTIME-090), or of a result of the op `what`
    (GY-RUNTIME-091)."""
    found = f"a {type(given).__name__}"
    if isinstance(given, torch.Tensor):
        pending = " conjugated" * given.is_conj() + " negated" * given.is_neg()
        strides = f", strides {given.stride()}" if given.layout is torch.strided else ""
        found = f"{given.dtype}{pending} {tuple(given.shape)}{strides}, on {given.device}"
    if what:
        return LayoutError(
            Diagnostic(
                "GY-RUNTIME-091",
                f"{what} returned {found} where its meta function says {expected}",
                where=name,
                help="correct the op's meta (fake) function, or what the op returns",
            )
        )
    return LayoutError(
        Diagnostic(
            "GY-RUNTIME-090",
            f"the input {name} is {found}; the program was compiled for {expected}",
            where=name,
            help="pass what the program was compiled for, or compile it for this",
        )
    )


def fx_error(number: int, message: str, where: str = "", help: str = "") -> FxWrapperError:
    """Return (not raise) the error GY-FX-`number`."""
    return FxWrapperError(Diagnostic(f"GY-FX-{number:03}", message, where=where, help=help))
