"""Errors of the interpreters for invalid programs."""

from gyrator_ir.diagnostics import GyratorError


class InterpreterError(GyratorError):
    """The program or its arguments break the rules of its level."""
