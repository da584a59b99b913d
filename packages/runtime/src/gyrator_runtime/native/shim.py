"""libtorch's C ABI by address: operators that plans call without Python and without the dispatcher.

The functions are those of torch/csrc/inductor/aoti_torch/c/shim.h and of the generated headers
beside it, which torch keeps stable. They take pointers to `at::Tensor`; a Python tensor object
holds one, and where in the object is found by looking at one (`Tensor._cdata` says what to look
for), so no header of torch is read.
"""

import ctypes
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import torch
from attrs import frozen

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


@cache
def load_shim() -> Shim | None:
    """Return the ABI of this process's torch; None for a torch that lacks a part of it."""
    library = ctypes.CDLL(torch._C.__file__)
    helpers = tuple(_address(library, name) for name in HELPERS)
    offset = _tensor_offset()
    if not all(helpers) or not offset:
        return None
    codes = {t: getattr(library, f"aoti_torch_dtype_{name}")() for t, name in DTYPES.items()}
    return Shim(helpers, offset, MappingProxyType(codes))


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
