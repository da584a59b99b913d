"""Tensors from outside of a program, checked against what the program takes them for.

The native runner does the checks without Python, and comes here only for what differs.
"""

from collections.abc import Sequence
from typing import Any

import torch

from gyrator_ir.diagnostics import LayoutError

ALL, PENDING, NOTHING = "all", "pending", "nothing"
"""What may be mended: the values of `gyrator_ir.host.nodes.Mend`."""


def conform(
    given: Any,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    mend: str,
    name: str,
    what: str,
) -> torch.Tensor:
    """Return a tensor as the program takes it: itself, or a copy as far as `mend` allows that.

    LayoutError where sizes differ, or anything else that may not be mended.
    """
    if isinstance(given, torch.Tensor) and tuple(given.shape) == tuple(shape):
        pending = given.is_conj() or given.is_neg()
        other = (
            given.dtype != dtype
            or given.layout is not torch.strided
            or given.device.type != device.type
            or device.index not in (None, given.device.index)
            or (given.numel() > 0 and not _strided(given, strides))
        )
        if not pending and not other:
            return given
        if mend == ALL or (mend == PENDING and not other):
            return laid_out(given.detach(), strides, dtype, device)
    expected = f"{dtype} {tuple(shape)}, strides {tuple(strides)}, on {device}"
    raise LayoutError.of_tensor(name, what, given, expected)


def separate(
    tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Return the tensors, copied where one of `others`, or one before, has their storage."""
    seen = {_storage(other) for other in others}
    result: list[torch.Tensor] = []
    for tensor in tensors:
        own = tensor.detach().clone() if _storage(tensor) in seen else tensor
        seen.add(_storage(own))
        result.append(own)
    return tuple(result)


def _storage(tensor: Any) -> int:
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _strided(given: torch.Tensor, strides: Sequence[int]) -> bool:
    layout = zip(given.shape, given.stride(), strides, strict=True)
    return all(n < 2 or have == want for n, have, want in layout)


def laid_out(
    given: torch.Tensor,
    strides: Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Copy a tensor into these strides. Elements that share memory are written once."""
    made = torch.empty_strided(
        given.shape, tuple(strides), dtype=dtype or given.dtype, device=device or given.device
    )
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
    made[once].copy_(given[once])
    return made
