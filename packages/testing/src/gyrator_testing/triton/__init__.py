"""Triton's interpreter in a separate process, for kernels on NumPy arrays."""

from gyrator_testing.triton.process import TYPES, InterpretedError, TritonInterpreter

__all__ = ["TYPES", "InterpretedError", "TritonInterpreter"]
