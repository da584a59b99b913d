"""ctypes bindings of the C library, for Python processes without PyTorch.

They import only the standard library and attrs, and serve as a template for other languages.
"""

import ctypes as c
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self

from attrs import field

from gyrator_ir.define import frozen

__all__ = [
    "ABI", "CPU", "CUDA", "DTYPES", "Array", "Entry", "HostMemory", "Instance", "Memory",
    "Package", "RawTensor", "StandaloneError", "Value", "contiguous",
]  # fmt: skip

DTYPES = (
    "none", "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "bool", "complex64", "complex128",
)  # fmt: skip
"""Names of dtypes, indexed by their codes."""
ABI = 1
CPU, CUDA = 1, 2
"""Codes of device types. 0 is also the CPU."""


class StandaloneError(RuntimeError):
    """A function of the library failed. `status` is the name of its status code."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class RawTensor(c.Structure):
    """`gyr_tensor`."""

    _fields_ = (
        ("data", c.c_void_p), ("dtype", c.c_int32), ("ndim", c.c_int32),
        ("sizes", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)),
        ("device_type", c.c_int32), ("device_index", c.c_int32), ("owner", c.c_void_p),
    )  # fmt: skip


class _OpenOptions(c.Structure):
    _fields_ = (("expected_sha256", c.c_char_p), ("isa", c.c_char_p), ("verify", c.c_int32))


class _Symbol(c.Structure):
    _fields_ = (("name", c.c_char_p), ("least", c.c_int64), ("most", c.c_int64))


class _Size(c.Structure):
    _fields_ = (("symbol", c.c_int32), ("factor", c.c_int64), ("offset", c.c_int64))


class _Value(c.Structure):
    _fields_ = (
        ("name", c.c_char_p), ("text", c.c_char_p), ("dtype", c.c_int32), ("ndim", c.c_int32),
        ("sizes", c.POINTER(_Size)), ("written", c.c_int32),
    )  # fmt: skip


class _Entry(c.Structure):
    _fields_ = (
        ("name", c.c_char_p), ("n_inputs", c.c_size_t), ("n_outputs", c.c_size_t),
        ("n_symbols", c.c_size_t), ("inputs", c.POINTER(_Value)), ("outputs", c.POINTER(_Value)),
        ("symbols", c.POINTER(_Symbol)),
    )  # fmt: skip


@frozen
class Array:
    """A tensor as bytes. `data` starts at its first element."""

    dtype: str
    sizes: tuple[int, ...]
    data: bytearray = field(converter=bytearray)
    strides: tuple[int, ...] | None = None
    """Strides in elements; None if contiguous."""


@frozen
class Value:
    """An input, an output or a weight."""

    name: str
    text: str
    dtype: str
    written: bool


@frozen
class Entry:
    """An entry point."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    symbols: Mapping[str, tuple[int, int]]
    """Minimum and maximum of each size symbol."""


class Memory(Protocol):
    """The memory of the tensors passed to an instance."""

    def tensor(self, array: Array) -> RawTensor:
        """Return a tensor with the elements of an array, which must outlive it."""
        ...

    def read(self, address: int, length: int) -> bytes:
        """Wait for a result and return its bytes."""
        ...


class HostMemory:
    """Host memory: tensors refer to the `data` of arrays."""

    def tensor(self, array: Array) -> RawTensor:
        """Return a tensor in an array's memory."""
        return raw_tensor(array)

    def read(self, address: int, length: int) -> bytes:
        """Return bytes."""
        return c.string_at(address, length)


@frozen(eq=False)
class Package:
    """An open package. Close it, or use it as a context manager."""

    library: c.CDLL
    handle: c.c_void_p

    @classmethod
    def open(
        cls,
        path: Path | str,
        library: Path | str,
        *,
        expected_sha256: str | None = None,
        isa: str | None = None,
        verify: bool = False,
        device: int = -1,
    ) -> Self:
        """Open a package with the C library at the path `library`.

        Args:
            path: the package.
            library: the C library.
            expected_sha256: SHA-256 of the package, in hexadecimal.
            isa: highest instruction set level of kernels to use.
            verify: also check the hash of the weights.
            device: index of the GPU, for a package for GPUs; -1 for the current one.

        Raises:
            StandaloneError: when opening fails.
            OSError: when there is no such library.
        """
        loaded = _loaded(library)
        texts = (t.encode() if t is not None else None for t in (expected_sha256, isa))
        options, handle = _OpenOptions(*texts, int(verify)), c.c_void_p()
        name = str(path).encode(errors="surrogateescape")
        arguments = (name, c.byref(options), device, c.byref(handle))
        status = loaded.gyr_package_open_on(*arguments)
        _check(loaded, status)
        return cls(loaded, handle)

    def close(self) -> None:
        """Close it; instances live on."""
        self.library.gyr_package_close(self.handle)
        self.handle.value = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def isa(self) -> str:
        """The instruction set level of the kernels that run."""
        isa: bytes = self.library.gyr_package_isa(self.handle)
        return isa.decode()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entry points."""
        count = self.library.gyr_package_entries(self.handle)
        entries = [_Entry() for _ in range(count)]
        for k, raw in enumerate(entries):
            _check(self.library, self.library.gyr_package_entry(self.handle, k, c.byref(raw)))
        return tuple(
            Entry(
                e.name.decode(),
                tuple(_value(e.inputs[k]) for k in range(e.n_inputs)),
                tuple(_value(e.outputs[k]) for k in range(e.n_outputs)),
                {
                    s.name.decode(): (s.least, s.most)
                    for s in (e.symbols[k] for k in range(e.n_symbols))
                },
            )
            for e in entries
        )

    @property
    def weights(self) -> tuple[Value, ...]:
        """Descriptions of the weights."""
        weights = [_Value() for _ in range(self.library.gyr_package_weights(self.handle))]
        for k, raw in enumerate(weights):
            _check(self.library, self.library.gyr_package_weight(self.handle, k, c.byref(raw)))
        return tuple(map(_value, weights))

    def instance(self, memory: Memory | None = None) -> "Instance":
        """Return a new instance, with tensors in `memory`, by default host memory."""
        handle = c.c_void_p()
        status = self.library.gyr_instance_create(self.handle, None, c.byref(handle))
        _check(self.library, status)
        counts = [len(e.outputs) for e in self.entries]
        return Instance(self.library, handle, counts, memory or HostMemory())


@frozen(eq=False)
class Instance:
    """A model instance. Close it, or use it as a context manager."""

    library: c.CDLL
    handle: c.c_void_p
    counts: Sequence[int]
    """Number of outputs of each entry point."""
    memory: Memory = field(factory=HostMemory)

    def close(self) -> None:
        """Close it."""
        self.library.gyr_instance_close(self.handle)
        self.handle.value = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, inputs: Sequence[Array], entry: int = 0, outputs: Sequence[Array] = ()
    ) -> list[Array]:
        """Run an entry point and return its outputs. An output of None has the dtype `none`.
        Programs that write to inputs modify their `data`.

        Args:
            inputs: tensors, in the order of the signature.
            entry: index of the entry point.
            outputs: arrays whose `data` receive the first results, of a package for the CPU.

        Raises:
            StandaloneError: when the call fails.
        """
        arguments = (RawTensor * len(inputs))(*map(self.memory.tensor, inputs))
        results = (RawTensor * self.counts[entry])(*map(raw_tensor, outputs))
        with self._released(results):
            status = self.library.gyr_run(
                self.handle, entry, arguments, len(inputs), results, len(results)
            )
            _check(self.library, status)
            return [self._array(r) for r in results]

    def update(self, weights: Mapping[str, Array]) -> None:
        """Replace weights by copies of the arrays; all of them, or none on failure."""
        names = (c.c_char_p * len(weights))(*(n.encode() for n in weights))
        tensors = (RawTensor * len(weights))(*map(raw_tensor, weights.values()))
        status = self.library.gyr_instance_update(self.handle, names, tensors, len(weights))
        _check(self.library, status)

    def read(self, name: str) -> Array:
        """Return a copy of a weight."""
        results = (RawTensor * 1)()
        with self._released(results):
            status = self.library.gyr_instance_read(self.handle, name.encode(), results)
            _check(self.library, status)
            return self._array(results[0])

    @contextmanager
    def _released(self, results: "c.Array[RawTensor]") -> Iterator[None]:
        try:
            yield
        finally:
            for raw in results:
                self.library.gyr_tensor_release(c.byref(raw))

    def _array(self, raw: RawTensor) -> Array:
        sizes = tuple(raw.sizes[: raw.ndim])
        strides = tuple(raw.strides[: raw.ndim]) if raw.strides else contiguous(sizes)
        item = self.library.gyr_dtype_size(raw.dtype)
        last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        length = (last + 1) * item if math.prod(sizes) else 0
        memory = self.memory if raw.device_type > CPU else HostMemory()
        data = memory.read(raw.data, length) if length else b""
        return Array(DTYPES[raw.dtype], sizes, data, strides)


def raw_tensor(array: Array) -> RawTensor:
    """Return a tensor in the memory of an array, which must outlive it."""
    raw = RawTensor(dtype=DTYPES.index(array.dtype), ndim=len(array.sizes))
    if array.data:
        raw.data = c.addressof((c.c_char * len(array.data)).from_buffer(array.data))
    raw.sizes = (c.c_int64 * len(array.sizes))(*array.sizes)
    if array.strides is not None:
        raw.strides = (c.c_int64 * len(array.strides))(*array.strides)
    return raw


def contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(max(n, 1) for n in sizes[k + 1 :]) for k in range(len(sizes)))


def _value(raw: Any) -> Value:
    return Value(raw.name.decode(), raw.text.decode(), DTYPES[raw.dtype], bool(raw.written))


_TEXTS = ("gyr_last_error", "gyr_status_name", "gyr_package_isa")
_ARGUMENTS: Mapping[str, tuple[Any, ...]] = MappingProxyType({
    "gyr_status_name": (c.c_int32,), "gyr_dtype_size": (c.c_int32,),
    "gyr_package_open": (c.c_char_p, c.c_void_p, c.c_void_p), "gyr_package_close": (c.c_void_p,),
    "gyr_package_open_on": (c.c_char_p, c.c_void_p, c.c_int32, c.c_void_p),
    "gyr_package_isa": (c.c_void_p,), "gyr_package_entries": (c.c_void_p,),
    "gyr_package_entry": (c.c_void_p, c.c_size_t, c.c_void_p), "gyr_package_weights": (c.c_void_p,),
    "gyr_package_weight": (c.c_void_p, c.c_size_t, c.c_void_p),
    "gyr_instance_create": (c.c_void_p, c.c_void_p, c.c_void_p),
    "gyr_instance_close": (c.c_void_p,),
    "gyr_run": (c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t),
    "gyr_run_on": (
        c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t, c.c_void_p
    ),
    "gyr_tensor_release": (c.c_void_p,), "gyr_instance_read": (c.c_void_p, c.c_char_p, c.c_void_p),
    "gyr_instance_update": (c.c_void_p, c.c_void_p, c.c_void_p, c.c_size_t),
    "gyr_instance_profile": (c.c_void_p, c.c_void_p, c.c_void_p),
})  # fmt: skip
_SIZES = ("gyr_dtype_size", "gyr_package_entries", "gyr_package_weights")


def _loaded(path: Path | str) -> c.CDLL:
    loaded = c.CDLL(str(path))
    for name, arguments in _ARGUMENTS.items():
        function: Callable[..., Any] = getattr(loaded, name)
        function.argtypes = arguments  # type: ignore[attr-defined]  # of ctypes' own class
        kind = c.c_char_p if name in _TEXTS else c.c_size_t if name in _SIZES else c.c_int32
        function.restype = kind  # type: ignore[attr-defined]  # as above
    loaded.gyr_last_error.restype = c.c_char_p
    if loaded.gyr_abi_version() != ABI:
        raise StandaloneError("GYR_ERROR_MISFIT", f"{path} has another ABI version")
    return loaded


def _check(library: c.CDLL, status: int) -> None:
    if status:
        name, text = library.gyr_status_name(status), library.gyr_last_error()
        raise StandaloneError(name.decode(), text.decode(errors="replace"))
