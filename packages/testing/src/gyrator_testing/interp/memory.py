"""Flat storages, and strided views of them."""

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.lib.stride_tricks import as_strided

from gyrator_ir.loop.nodes import Buffer, TensorRef
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import DTYPES, NUMPY, Array, poisoned
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.index import Environment, integer


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements a strided tensor spans, from its first to its last one."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def span(buffer: Buffer, env: Environment) -> int:
    """Return how many elements a buffer's storage spans."""
    shape = [integer(n, env) for n in buffer.shape]
    return span_of(shape, [integer(s, env) for s in buffer.strides])


def created(buffer: Buffer, env: Environment) -> Array:
    """Return new flat storage for a buffer, full of poison."""
    return poisoned(buffer.dtype, span(buffer, env))


def parts(storage: Array) -> Array:
    """Return a flat storage as bodies address it: real and imaginary parts of complex elements in
    turn, sharing memory."""
    dtype = DTYPES[storage.dtype]
    return storage.view(NUMPY[dtype.part]) if dtype.is_complex else storage


def flat(array: Array, name: str) -> Array:
    """Return the memory of a strided array, first to last element, as a flat array sharing it.

    Raises:
        InterpreterError: GY-INTERP-002, for strides that are no multiples of the element's size,
            or negative.
    """
    steps = []
    for n, s in zip(array.shape, array.strides, strict=True):
        if n > 1 and (s < 0 or s % array.itemsize):
            raise InterpreterError.of("GY-INTERP-002", f"{name!r} has strides {array.strides}")
        steps.append(s // array.itemsize if n > 1 else 0)
    return as_strided(array, (span_of(array.shape, steps),), (array.itemsize,))


def bound(array: object, buffer: Buffer, env: Environment) -> Array:
    """Return the flat memory of an argument for a buffer, after checks of its type and layout.

    Strides of dimensions of size 1, and all strides of an empty tensor, may be anything.

    Raises:
        InterpreterError: GY-INTERP-002, when the argument is not what the buffer declares.
    """
    if not isinstance(array, np.ndarray):
        raise InterpreterError.of(
            "GY-INTERP-002", f"{buffer.name!r} wants an array, got {type(array).__name__}"
        )
    if array.dtype != NUMPY[buffer.dtype]:
        raise InterpreterError.of(
            "GY-INTERP-002", f"{buffer.name!r} is {buffer.dtype}, got an array of {array.dtype}"
        )
    shape = tuple(integer(n, env) for n in buffer.shape)
    if array.shape != shape:
        raise InterpreterError.of(
            "GY-INTERP-002", f"{buffer.name!r} has shape {shape}, got {array.shape}"
        )
    strides = tuple(integer(s, env) * array.itemsize for s in buffer.strides)
    differ = any(n > 1 and a != b for n, a, b in zip(shape, strides, array.strides, strict=True))
    if differ and 0 not in shape:
        raise InterpreterError.of(
            "GY-INTERP-002", f"{buffer.name!r} has strides of {strides} bytes, got {array.strides}"
        )
    return flat(array, buffer.name)


@frozen
class Layout:
    """Sizes and strides in elements of `dtype`, and the offset from the start of a storage."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def layout(ref: TensorRef, env: Environment) -> Layout:
    """Return the layout that a reference says."""
    return Layout(
        ref.dtype,
        tuple(integer(n, env) for n in ref.shape),
        tuple(integer(s, env) for s in ref.strides),
        integer(ref.offset, env),
    )


def view(storage: Array, where: Layout, name: str) -> Array:
    """Return a strided view of a flat storage, which may hold another type (a bit view).

    Raises:
        InterpreterError: GY-INTERP-003, when the view does not lie inside the storage.
    """
    target = NUMPY[where.dtype]
    whole = storage
    if storage.dtype != target:
        raw = storage.view(np.uint8)
        whole = raw[: raw.size // target.itemsize * target.itemsize].view(target)
    size = span_of(where.shape, where.strides)
    if size and not 0 <= where.offset <= whole.size - size:
        raise InterpreterError.of(
            "GY-INTERP-003",
            f"a view of {name!r} from {where.offset} over {size} elements leaves its {whole.size}",
        )
    start = whole[where.offset :] if size else whole[:0]
    return as_strided(start, where.shape, tuple(s * target.itemsize for s in where.strides))
