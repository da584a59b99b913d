"""Addresses of libtorch's C ABI: operators that plans call without Python and the dispatcher.

The functions are declared in torch/csrc/inductor/aoti_torch/c/shim.h and the generated headers next
to it, a stable ABI. They take pointers to `at::Tensor`. A Python tensor object contains one, whose
offset is determined by searching sample objects for `Tensor._cdata`, so that no header of PyTorch
is needed.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TypeVar

import torch

from gyrator_ir.define import frozen
from gyrator_ir.types import HOST, DType

K = TypeVar("K")

HELPERS = (
    "aoti_torch__reinterpret_tensor", "aoti_torch_create_tensor_from_blob",
    "aoti_torch_delete_tensor_object", "aoti_torch_get_data_ptr", "aoti_torch_get_dtype",
    "aoti_torch_get_device_type", "aoti_torch_get_device_index", "aoti_torch_grad_mode_is_enabled",
    "aoti_torch_grad_mode_set_enabled", "aoti_torch_get_dim", "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
)  # fmt: skip
"""Helper functions for the native runner, in the order in which it takes their addresses."""

DTYPES: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float64: "float64",
        torch.float32: "float32",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
    }
)
"""Dtypes of operators called through the ABI: those that cannot have a pending conjugation."""

OPERATORS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "aten.mm.out": ("mm_out", ()),
        "aten.bmm.out": ("bmm_out", ()),
        "aten.addmm.out": ("addmm_out", ("beta", "alpha")),
        "aten.baddbmm.out": ("baddbmm_out", ("beta", "alpha")),
    }
)
"""Operators called through the ABI: name in the ABI, and keyword arguments that are numbers, with
default 1. All other arguments are tensors; `out` is the first."""

RETURNING: Mapping[str, str] = MappingProxyType(
    {
        "mkldnn._convolution_pointwise.default": "mkldnn__convolution_pointwise",
        "mkldnn._convolution_pointwise.binary": "mkldnn__convolution_pointwise_binary",
        "mkldnn._convolution_transpose_pointwise.default": (
            "mkldnn__convolution_transpose_pointwise"
        ),
        "mkldnn._linear_pointwise.default": "_linear_pointwise",
        "mkl._mkl_linear.default": "_mkl_linear",
    }
)
"""Operators on CPUs that return a new tensor, called through the ABI, where they have these names.
operators.h has the function of each."""


@frozen
class Shim:
    """Addresses of the helpers, offsets in tensors, and codes of dtypes and devices."""

    helpers: tuple[int, ...]
    tensor_offset: int
    """Byte offset of the `at::Tensor` in a Python tensor object."""
    dtypes: Mapping[torch.dtype, int]
    every_dtype: Mapping[torch.dtype, int]
    """Codes of all dtypes that the ABI has."""
    devices: Mapping[str, int]
    """Codes of the device types that the ABI has."""
    fields: "TensorFields"


@frozen
class TensorFields:
    """Offsets of fields in a tensor (`Tensor._cdata`) that the C ABI does not expose; 0 if
    unknown."""

    keys: int
    """Byte offset of the set of dispatch keys."""
    storage: int
    """Byte offset of the pointer to its storage."""
    pending: int
    """Dispatch key bits of a pending conjugation or negation."""


@cache
def load_shim() -> Shim | None:
    """Return the C ABI of this process's PyTorch; None if a part of it is missing."""
    library = ctypes.CDLL(torch._C.__file__)
    helpers = tuple(_address(library, name) for name in HELPERS)
    offset = _tensor_offset()
    if not all(helpers) or not offset:
        return None
    codes = {t: getattr(library, f"aoti_torch_dtype_{name}")() for t, name in DTYPES.items()}
    every = _codes(library, "dtype", {getattr(torch, d.full_name): d.full_name for d in DType})
    devices = _codes(library, "device_type", {d: d for d in (HOST, *_accelerators())})
    return Shim(
        helpers,
        offset,
        MappingProxyType(codes),
        MappingProxyType(every),
        MappingProxyType(devices),
        _tensor_fields(),
    )


def _codes(library: ctypes.CDLL, kind: str, names: Mapping[K, str]) -> dict[K, int]:
    functions = {
        k: getattr(library, f"aoti_torch_{kind}_{name}", None) for k, name in names.items()
    }
    return {k: code() for k, code in functions.items() if code is not None}


def _accelerators() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator()
    return () if accelerator is None else (accelerator.type,)


def device_words(device: torch.device) -> tuple[int, int]:
    """Return a device's type and index in the ABI's encoding: -1 for an unknown type, and for any
    index."""
    shim = load_shim()
    kind = -1 if shim is None else shim.devices.get(device.type, -1)
    return kind, -1 if device.type == HOST or device.index is None else device.index


@cache
def operator_address(target: str, device: str) -> int:
    """Return the address of an operator for a device type; 0 if the ABI has none."""
    name, _ = OPERATORS[target]
    return _address(ctypes.CDLL(torch._C.__file__), f"aoti_torch_{device}_{name}")


@cache
def returning_address(target: str) -> int:
    """Return the address of one of `RETURNING`; 0 if this PyTorch lacks it."""
    return _address(ctypes.CDLL(torch._C.__file__), f"aoti_torch_{HOST}_{RETURNING[target]}")


@cache
def version_address() -> int:
    """Return the address of libtorch's C++ function that computes `Tensor._version`, which takes
    the address of an `at::Tensor`; 0 if this PyTorch has none of that name."""
    return _address(ctypes.CDLL(torch._C.__file__), "_ZNK2at10TensorBase8_versionEv")


def _address(library: ctypes.CDLL, name: str) -> int:
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _tensor_offset() -> int:
    """Return the offset of the `at::Tensor` in a Python tensor object; 0 if it is ambiguous."""
    offsets = set(range(0, torch.Tensor.__basicsize__, ctypes.sizeof(ctypes.c_void_p)))
    for sample in (torch.empty(0), torch.empty(1), torch.nn.Parameter(torch.empty(2))):
        offsets = {
            p
            for p in offsets
            if ctypes.c_size_t.from_address(id(sample) + p).value == sample._cdata
        }
    return offsets.pop() if len(offsets) == 1 else 0


def _tensor_fields() -> TensorFields:
    """Find the offsets of tensor fields by searching sample tensors for values known from Python.

    The search stops at the first match, which is within the size of a tensor.
    """
    key_set, key = torch._C.DispatchKeySet, torch._C.DispatchKey
    pending = key_set(key.Conjugate).raw_repr() | key_set(key.Negative).raw_repr()
    plain, small = torch.empty(3), torch.nn.Parameter(torch.empty(2))
    lazy = torch.empty(2, 3, dtype=torch.complex64).conj()
    samples = (plain, small, lazy, torch.empty(4)._neg_view(), torch.empty(1, dtype=torch.int64))
    keys = _word(samples, lambda t: torch._C._dispatch_keys(t).raw_repr())
    storage = _word(samples, lambda t: t.untyped_storage()._cdata)
    return TensorFields(keys, storage, pending)


def _word(tensors: Sequence[torch.Tensor], value: Callable[[torch.Tensor], int]) -> int:
    word = ctypes.sizeof(ctypes.c_void_p)
    for place in range(word, _MAX_WORDS * word, word):
        first = tensors[0]
        if ctypes.c_uint64.from_address(first._cdata + place).value != value(first):
            continue
        if all(ctypes.c_uint64.from_address(t._cdata + place).value == value(t) for t in tensors):
            return place
    return 0


_MAX_WORDS = 24
"""Search limit: smaller than a tensor in any supported PyTorch version."""
