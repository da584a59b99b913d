"""Errors of the interpreters for invalid programs."""

from gyrator_ir.diagnostics import GyratorError


class InterpreterError(GyratorError):
    """The program or its arguments break the rules of its level."""


def interpreter_error(code: str, message: str, where: str = "", help: str = "") -> InterpreterError:
    """Return (not raise) an `InterpreterError` with the given diagnostic."""
    return InterpreterError.of(code, message, where=where, help=help)
