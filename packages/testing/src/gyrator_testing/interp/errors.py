"""What the interpreters raise when a program does what no program may do."""

from gyrator_ir.diagnostics import GyratorError


class InterpreterError(GyratorError):
    """The program, or what it was given, breaks the rules of its level."""


def interpreter_error(code: str, message: str, where: str = "", help: str = "") -> InterpreterError:
    """Return (not raise) an `InterpreterError` with the given diagnostic."""
    return InterpreterError.of(code, message, where=where, help=help)
