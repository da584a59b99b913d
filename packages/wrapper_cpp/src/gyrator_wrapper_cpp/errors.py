"""Errors for programs that this wrapper does not support."""

from gyrator_ir.diagnostics import UnsupportedError

_HELP = {
    "GY-WCPP-001": "add the op's schema to `CppWrapper(schemas=...)`",
    "GY-WCPP-002": "pass arguments that match the schema",
    "GY-WCPP-003": "use `CppWrapper(fallback=True)` and the hook `call_op`, or another wrapper",
    "GY-WCPP-005": "use another wrapper",
}


def refusal(code: str, message: str, where: str = "") -> UnsupportedError:
    """Return the error for a program that this wrapper does not support."""
    return UnsupportedError.of(code, message, where=where, help=_HELP[code])
