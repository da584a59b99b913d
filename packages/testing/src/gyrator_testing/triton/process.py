"""A client for the process that interprets Triton kernels."""

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gyrator_ir.types import BYTE_FLOATS, DType
from gyrator_testing.interp.dtypes import Array

TYPES = {
    DType.F64: "float64", DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16",
    DType.I64: "int64", DType.I32: "int32", DType.I16: "int16", DType.I8: "int8",
    DType.U64: "uint64", DType.U32: "uint32", DType.U16: "uint16", DType.U8: "uint8",
    DType.BOOL: "bool",
} | dict.fromkeys(BYTE_FLOATS, "uint8")  # fmt: skip
"""The interpreter's names of dtypes."""


class InterpretedError(RuntimeError):
    """A kernel raised an exception, such as a failed index check. The text is `Type: message`."""


class TritonInterpreter:
    """A process that runs Triton kernels in Triton's interpreter, without a device.

    It starts on construction, and ends with `close` or with this process.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gyrator_testing.triton.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"TRITON_INTERPRET": "1"},
        )

    def run(
        self,
        path: Path | str,
        symbol: str,
        arrays: Sequence[Array],
        types: Sequence[DType],
        sizes: Sequence[int],
        blocks: Mapping[str, int],
        grid: Sequence[int],
    ) -> None:
        """Run one launch on flat arrays, in place.

        Args:
            path: the file that defines the kernel.
            symbol: the kernel's name there.
            arrays: the buffers, in the order of its parameters.
            types: their dtypes.
            sizes: the integers that follow the buffers.
            blocks: the constants of a configuration, `XBLOCK` and the like.
            grid: the number of programs along each dimension.

        Raises:
            InterpretedError: the kernel raised an exception.
        """
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None and answers is not None
        names = [TYPES[t] for t in types]
        request = (str(path), symbol, list(arrays), names, list(sizes), blocks, tuple(grid))
        pickle.dump(request, pipe)
        pipe.flush()
        answer: Any = pickle.load(answers)
        if isinstance(answer, str):
            raise InterpretedError(answer)
        for array, result in zip(arrays, answer, strict=True):
            array[...] = result

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(timeout=60)
