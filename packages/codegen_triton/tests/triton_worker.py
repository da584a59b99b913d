"""A process that runs kernels in Triton's interpreter on NumPy arrays.

Triton decides when it is imported whether its functions are interpreted, so that tests, which share
a process with others, leave it to this one. Requests and answers are pickles on its pipes.
"""

import importlib.util
import pickle
import sys
from pathlib import Path
from unittest.mock import patch

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime.interpreter import (
    InterpreterBuilder,
    InterpreterOptions,
    TensorHandle,
    interpreter_builder,
)
from triton_mathlib import MathLibrary

_PLAIN_CAST = InterpreterBuilder.cast_impl


def _cast(self, src, dst_type):
    """Round `f32` to `bf16` to the nearest, as devices do; the interpreter truncates."""
    if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
        rounded = src.data.astype(ml_dtypes.bfloat16).view(np.uint16)
        return TensorHandle(rounded, dst_type.scalar)
    return _PLAIN_CAST(self, src, dst_type)


class Pointer:
    """An array that Triton's interpreter takes for a tensor in host memory."""

    def __init__(self, array, dtype):
        self.array, self.dtype = array, dtype

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def new_empty(self, *_, **__):
        return Pointer(self.array, self.dtype)

    def set_(self, storage, *_):
        self.array = storage.array

    def storage_offset(self):
        return 0

    def size(self):
        return self.array.shape

    stride = size

    def copy_(self, other):
        assert other.array is self.array


def load(path):
    """Import a file, with a mathematical library that works on a host."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.libdevice = MathLibrary(tl)
    return module


def run(modules, request):
    """Run one launch in place; return the arrays."""
    path, symbol, arrays, types, sizes, blocks = request
    if path not in modules:
        modules[path] = load(Path(path))
    module = modules[path]
    make_grid = getattr(module, f"{symbol}_grid")
    wanted = make_grid.__code__.co_varnames[: make_grid.__code__.co_argcount]
    grid = make_grid(*sizes, *(blocks[n] for n in wanted if n in blocks))
    pointers = [Pointer(a, t) for a, t in zip(arrays, types, strict=True)]
    if grid[0]:
        with np.errstate(all="ignore"), patch.object(InterpreterBuilder, "cast_impl", _cast):
            getattr(module, symbol)[grid](*pointers, *sizes, **blocks)
    return arrays


def main():
    """Answer requests until the pipe ends."""
    answers, modules = sys.stdout.buffer, {}
    # What `debug` and `sanitize_overflow` say to a compiler: checks are made, overflow wraps.
    interpreter_builder.options = InterpreterOptions(debug=True, sanitize_overflow=False)
    sys.stdout = sys.stderr
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = run(modules, request)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
