"""libtorch's C ABI by address: operators that plans call without Python and without the dispatcher.

The functions are those of torch/csrc/inductor/aoti_torch/c/shim.h and of the generated headers
beside it, which torch keeps stable. They take pointers to `at::Tensor`; a Python tensor object
holds one, and where in the object is found by looking at one (`Tensor._cdata` says what to look
for), so no header of torch is read.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TypeVar

import torch
from attrs import frozen

from gyrator_ir.types import HOST, DType

K = TypeVar("K")

HELPERS = (
    "aoti_torch__reinterpret_tensor",
    "aoti_torch_create_tensor_from_blob",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_grad_mode_is_enabled",
    "aoti_torch_grad_mode_set_enabled",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
)
"""What the native runner needs besides operators, in the order in which it takes the addresses."""

DTYPES: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float64: "float64",
        torch.float32: "float32",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
    }
)
"""Element types of operators that are called here: those without a bit for a pending conjugate."""

OPERATORS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "aten.mm.out": ("mm_out", ()),
        "aten.bmm.out": ("bmm_out", ()),
        "aten.addmm.out": ("addmm_out", ("beta", "alpha")),
        "aten.baddbmm.out": ("baddbmm_out", ("beta", "alpha")),
    }
)
"""Operators that are called here: name in the ABI, and keywords that are numbers (1 if absent).
All others of their arguments are tensors; the one called `out` comes first."""


@frozen
class Shim:
    """Addresses of the helpers, and how tensors and element types are told."""

    helpers: tuple[int, ...]
    tensor_offset: int
    """Byte offset of the `at::Tensor` in a tensor object."""
    dtypes: Mapping[torch.dtype, int]
    every_dtype: Mapping[torch.dtype, int]
    """All element types that the ABI can tell."""
    devices: Mapping[str, int]
    """Device types that the ABI can tell."""
    inside: "Inside"


@frozen
class Inside:
    """Where in a tensor (`Tensor._cdata`) torch keeps what its C ABI does not tell; 0: unknown."""

    keys: int
    """Byte offset of the set of dispatch keys."""
    storage: int
    """Byte offset of the pointer to its storage."""
    pending: int
    """Keys of a tensor whose conjugation or negation is still to be done."""


@cache
def load_shim() -> Shim | None:
    """Return the ABI of this process's torch; None for a torch that lacks a part of it."""
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
        _inside(),
    )


def _codes(library: ctypes.CDLL, kind: str, names: Mapping[K, str]) -> dict[K, int]:
    found = {k: getattr(library, f"aoti_torch_{kind}_{name}", None) for k, name in names.items()}
    return {k: code() for k, code in found.items() if code is not None}


def _accelerators() -> tuple[str, ...]:
    found = torch.accelerator.current_accelerator()
    return () if found is None else (found.type,)


def device_words(device: torch.device) -> tuple[int, int]:
    """Return a device's type and number as the ABI tells them; -1 for a type that it cannot tell,
    and for any number."""
    shim = load_shim()
    kind = -1 if shim is None else shim.devices.get(device.type, -1)
    return kind, -1 if device.type == HOST or device.index is None else device.index


@cache
def operator_address(target: str, device: str) -> int:
    """Return the address of an operator for a device type; 0 where the ABI has none."""
    name, _ = OPERATORS[target]
    return _address(ctypes.CDLL(torch._C.__file__), f"aoti_torch_{device}_{name}")


def _address(library: ctypes.CDLL, name: str) -> int:
    found = getattr(library, name, None)
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0


def _tensor_offset() -> int:
    """Return where a tensor object keeps its tensor; 0 if one place does not serve all."""
    places = set(range(0, torch.Tensor.__basicsize__, ctypes.sizeof(ctypes.c_void_p)))
    for seen in (torch.empty(0), torch.empty(1), torch.nn.Parameter(torch.empty(2))):
        places = {
            p for p in places if ctypes.c_size_t.from_address(id(seen) + p).value == seen._cdata
        }
    return places.pop() if len(places) == 1 else 0


def _inside() -> Inside:
    """Look for the words of some tensors that hold what Python says of them.

    A tensor is larger than what is read of it, which ends at the first word that fits.
    """
    key_set, key = torch._C.DispatchKeySet, torch._C.DispatchKey
    pending = key_set(key.Conjugate).raw_repr() | key_set(key.Negative).raw_repr()
    plain, small = torch.empty(3), torch.nn.Parameter(torch.empty(2))
    lazy = torch.empty(2, 3, dtype=torch.complex64).conj()
    seen = (plain, small, lazy, torch.empty(4)._neg_view(), torch.empty(1, dtype=torch.int64))
    keys = _word(seen, lambda t: torch._C._dispatch_keys(t).raw_repr())
    storage = _word(seen, lambda t: t.untyped_storage()._cdata)
    return Inside(keys, storage, pending)


def _word(tensors: Sequence[torch.Tensor], value: Callable[[torch.Tensor], int]) -> int:
    word = ctypes.sizeof(ctypes.c_void_p)
    for place in range(word, _MOST_WORDS * word, word):
        first = tensors[0]
        if ctypes.c_uint64.from_address(first._cdata + place).value != value(first):
            continue
        if all(ctypes.c_uint64.from_address(t._cdata + place).value == value(t) for t in tensors):
            return place
    return 0


_MOST_WORDS = 24
"""How far to look: fewer words than a tensor has in any torch that is supported."""
