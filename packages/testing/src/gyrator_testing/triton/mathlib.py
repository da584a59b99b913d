"""A CPU implementation of the device maths library, which Triton's interpreter lacks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gyrator_ir.types import DType
from gyrator_testing.interp.ops import apply

TYPES = {"fp32": DType.F32, "fp64": DType.F64}


class MathLibrary:
    """Replaces `triton.language.extra.libdevice` in interpreted kernels."""

    def __init__(self, tl: Any) -> None:
        self._tl = tl

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = {"rint": "round"}.get(name, name)

        def call(*args: Any) -> Any:
            tl = self._tl
            blocks = [a for a in args if isinstance(a, tl.tensor)]
            shape = np.broadcast_shapes(*(tuple(b.handle.data.shape) for b in blocks))
            arrays = [np.broadcast_to(b.handle.data, shape) for b in blocks]
            result = apply(op, arrays, TYPES[str(blocks[0].dtype)])
            handle = type(blocks[0].handle)(np.asarray(result), blocks[0].dtype.scalar)
            kind = tl.block_type(blocks[0].dtype.scalar, [int(n) for n in shape])
            return tl.tensor(handle, kind)

        return call
