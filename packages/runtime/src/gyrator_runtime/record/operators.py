"""Operators that write into their first tensor, as instructions that need no Python."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gyrator_runtime import host
from gyrator_runtime.native.program import Layout, Operate, TensorArg
from gyrator_runtime.native.shim import OPERATORS, load_shim, operator_address
from gyrator_runtime.record.values import Handle


def operate(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Operate | None:
    """Return the instruction for a call, or None where the operator has to be called in Python."""
    out = kwargs.get("out")
    shim = load_shim()
    if target not in OPERATORS or shim is None or not isinstance(out, Handle):
        return None
    numbers = {k: v for k, v in kwargs.items() if k != "out"}
    known = OPERATORS[target][1]
    plain = all(k in known and type(v) in (int, float) for k, v in numbers.items())
    tensors = (out, *args)
    if not plain or out.dtype not in shim.dtypes or not all(isinstance(t, Handle) for t in tensors):
        return None
    address = operator_address(target, torch.device(out.device).type) if out.device else 0
    if not address:
        return None
    return Operate(
        _in_python(host.extern(target), tuple(t.layout for t in tensors), numbers),
        tuple(TensorArg(t.register, t.layout) for t in tensors),
        address,
        tuple(float(numbers.get(k, 1)) for k in known),
    )


def _in_python(
    function: Callable[..., Any], layouts: tuple[Layout | None, ...], numbers: Mapping[str, Any]
) -> Callable[[tuple[Any, ...], tuple[int, ...]], object]:
    def call(objects: tuple[Any, ...], sizes: tuple[int, ...]) -> object:
        tensors = []
        at = 0
        for tensor, layout in zip(objects, layouts, strict=True):
            if layout is None:
                tensors.append(tensor)
                continue
            n = len(layout.sizes)
            offset, shape, strides = sizes[at], sizes[at + 1 :][:n], sizes[at + 1 + n :][:n]
            tensors.append(host.over_storage(tensor, shape, strides, layout.dtype, offset))
            at += 1 + 2 * n
        out, *rest = tensors
        return function(*rest, out=out, **numbers)

    return call
