"""Checks and conversions of tensors from outside of a program, and its calls without autograd.

The native runner performs the checks without Python, and calls their functions only on a mismatch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gyrator_ir.diagnostics import LayoutError

ALL, PENDING, NOTHING = "all", "pending", "nothing"
"""What may be converted: the values of `gyrator_ir.host.nodes.Mend`."""


def conform(
    value: Any,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    mend: str,
    name: str,
    what: str,
) -> torch.Tensor:
    """Return a tensor in the form that the program expects: itself, or a copy if `mend` allows it.

    Raises:
        LayoutError: when sizes differ, or anything else that must not be converted.
    """
    if isinstance(value, torch.Tensor) and tuple(value.shape) == tuple(shape):
        pending = value.is_conj() or value.is_neg()
        other = (
            value.dtype != dtype
            or value.layout is not torch.strided
            or value.device.type != device.type
            or device.index not in (None, value.device.index)
            or (value.numel() > 0 and not _strided(value, strides))
        )
        if not pending and not other:
            return value
        if mend == ALL or (mend == PENDING and not other):
            return copy_with_strides(value.detach(), strides, dtype, device)
    expected = f"{dtype} {tuple(shape)}, strides {tuple(strides)}, on {device}"
    raise LayoutError.of_tensor(name, what, value, expected)


def separate(
    tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Return the tensors, copying those that share storage with `others` or an earlier tensor."""
    storages = {_storage(other) for other in others}
    result: list[torch.Tensor] = []
    for tensor in tensors:
        own = tensor.detach().clone() if _storage(tensor) in storages else tensor
        storages.add(_storage(own))
        result.append(own)
    return tuple(result)


def _storage(tensor: Any) -> int:
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _strided(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    layout = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(n < 2 or have == want for n, have, want in layout)


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return uninitialised memory with the layout of a tensor, overlaps included."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def copy_with_strides(
    tensor: torch.Tensor,
    strides: Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return a copy of a tensor with the given strides. Elements that share memory are written
    once."""
    copy = torch.empty_strided(
        tensor.shape, tuple(strides), dtype=dtype or tensor.dtype, device=device or tensor.device
    )
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
    copy[once].copy_(tensor[once])
    return copy


def without_grad(run: Callable[[list[Any]], Sequence[Any]], values: list[Any]) -> Sequence[Any]:
    """Run a program without autograd, which the compiler has already applied."""
    if not torch.is_grad_enabled():
        return run(values)
    torch._C._set_grad_enabled(False)
    try:
        return run(values)
    finally:
        torch._C._set_grad_enabled(True)
