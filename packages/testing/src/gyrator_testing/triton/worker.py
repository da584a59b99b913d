"""A process that runs kernels in Triton's interpreter on NumPy arrays.

Triton decides on import whether functions are interpreted, so programs that also compile kernels
interpret them in this process. Requests and answers are pickles on its pipes.
"""

import importlib.util
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import (
    InterpreterBuilder,
    InterpreterOptions,
    TensorHandle,
    interpreter_builder,
)

from gyrator_testing.interp.dtypes import Array
from gyrator_testing.triton.mathlib import MathLibrary

_PLAIN_CAST = InterpreterBuilder.cast_impl


def _cast(self: Any, src: Any, dst_type: Any) -> Any:
    """Round `f32` to the nearest `bf16`, as devices do; the interpreter truncates."""
    if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
        rounded = src.data.astype(ml_dtypes.bfloat16).view(np.uint16)
        return TensorHandle(rounded, dst_type.scalar)
    return _PLAIN_CAST(self, src, dst_type)


_PLAIN_DOT = InterpreterBuilder.create_dot


def _dot(self: Any, a: Any, b: Any, d: Any, *more: Any) -> Any:
    """Multiply the values of `bf16` blocks; the interpreter multiplies their bit patterns."""
    return _PLAIN_DOT(self, _valued(a), _valued(b), d, *more)


def _valued(block: Any) -> Any:
    if block.dtype.scalar != tl.bfloat16:
        return block
    return TensorHandle(block.data.view(ml_dtypes.bfloat16).astype(np.float32), tl.float32)


_PLAIN_ATOMIC = InterpreterBuilder.create_atomic_rmw


def _atomic(self: Any, op: Any, *blocks: Any) -> Any:
    """Materialise broadcast blocks; the interpreter reads beyond their end."""
    pointers, values, mask, *rest = blocks
    whole = (TensorHandle(np.ascontiguousarray(b.data), b.dtype) for b in (pointers, values, mask))
    return _PLAIN_ATOMIC(self, op, *whole, *rest)


_PLAIN_PATCH = interpreter._patch_lang_tensor


def _patch_tensor(tensor: Any, scope: Any) -> None:
    """Let scalars, which are arrays of one element, bound loops; Triton 3.6 leaves their conversion
    to NumPy, whose version 2.4 refuses it."""
    _PLAIN_PATCH(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


class _Pointer:
    """An array that Triton's interpreter accepts as a tensor in host memory."""

    def __init__(self, array: Array, dtype: str) -> None:
        self.array, self.dtype = array, dtype

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> "_Pointer":
        return self

    def cpu(self) -> "_Pointer":
        return self

    def new_empty(self, *_: Any, **__: Any) -> "_Pointer":
        return _Pointer(self.array, self.dtype)

    def set_(self, storage: "_Pointer", *_: Any) -> None:
        self.array = storage.array

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    stride = size

    def copy_(self, other: "_Pointer") -> None:
        assert other.array is self.array


def load(path: Path) -> ModuleType:
    """Import a file with the CPU implementation of the maths library."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["libdevice"] = MathLibrary(tl)
    return module


def run(modules: dict[str, ModuleType], request: tuple[Any, ...]) -> list[Array]:
    """Run one launch in place; return the arrays."""
    path, symbol, arrays, types, sizes, blocks, grid = request
    if path not in modules:
        modules[path] = load(Path(path))
    module = modules[path]
    pointers = [_Pointer(a, t) for a, t in zip(arrays, types, strict=True)]
    if grid[0]:
        patches: dict[str, Any] = {
            "cast_impl": _cast, "create_dot": _dot, "create_atomic_rmw": _atomic,
        }  # fmt: skip
        with (
            np.errstate(all="ignore"),
            patch.multiple(InterpreterBuilder, **patches),
            patch.object(interpreter, "_patch_lang_tensor", _patch_tensor),
        ):
            getattr(module, symbol)[grid](*pointers, *sizes, **blocks)
    return list(arrays)


def main() -> None:
    """Answer requests until the pipe is closed."""
    answers = sys.stdout.buffer
    modules: dict[str, ModuleType] = {}
    # What `debug` and `sanitize_overflow` say to a compiler: checks are made, overflow wraps.
    interpreter_builder.options = InterpreterOptions(debug=True, sanitize_overflow=False)
    sys.stdout = sys.stderr
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = run(modules, request)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
