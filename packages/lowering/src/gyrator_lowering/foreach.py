"""Ops on lists of tensors: what torch calls `_foreach_add` is `add` on every tensor of a list.

The schema of such an op says how an element takes its arguments: an item of each list, and anything
else as it is.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import torch
from attrs import frozen
from torch._ops import OpOverload

aten = torch.ops.aten

PREFIX = "aten::_foreach_"

_RENAMED = MappingProxyType(
    {
        "maximum.Scalar": "clamp_min",
        "maximum.ScalarList": "clamp_min",
        "minimum.Scalar": "clamp_max",
        "minimum.ScalarList": "clamp_max",
        "norm.Scalar": "linalg_vector_norm",
        "zero": "zeros_like",
    }
)
"""Ops on one tensor that are called otherwise."""
_OVERLOADS: Mapping[str, str] = MappingProxyType(
    {
        **{f"{op}.{kind}": "Tensor" for op in ("add", "sub", "mul", "div")
           for kind in ("Scalar", "List", "ScalarList", "Tensor")},
        **{f"{op}.List": "Tensor" for op in ("clamp_min", "clamp_max", "lerp")},
        **{f"lerp.{kind}": "Scalar" for kind in ("Scalar", "ScalarList")},
        **{f"pow.{kind}": "Tensor_Scalar" for kind in ("Scalar", "ScalarList")},
        "pow.List": "Tensor_Tensor",
        "pow.ScalarAndTensor": "Scalar",
    }
)  # fmt: skip
"""Which overload of the op on one tensor it is, where that is not the default one."""
_LEFT = frozenset({"addcmul.Tensor", "addcdiv.Tensor"})
"""Ops that read numbers out of a tensor on the host."""


@frozen
class Element:
    """The op on one element of the lists."""

    op: OpOverload
    listed: frozenset[str]
    """Arguments of the op on lists that are lists of one item an element."""
    renamed: Mapping[str, str]
    """What the element's op calls keywords that it calls otherwise."""


@lru_cache(512)
def element_of(op: OpOverload) -> Element | None:
    """Return what an op on lists does to each element, or None for other ops."""
    schema = op._schema
    if not schema.name.startswith(PREFIX) or schema.is_mutable or not schema.returns:
        return None
    name, overload = schema.name.removeprefix(PREFIX), schema.overload_name
    full = f"{name}.{overload}" if overload else name
    if full in _LEFT:
        return None
    packet = getattr(aten, _RENAMED.get(full, name), None)
    one = None if packet is None else getattr(packet, _OVERLOADS.get(full, "default"), None)
    if not isinstance(one, OpOverload):
        return None
    listed = frozenset(a.name for a in schema.arguments if str(a.type).startswith("List["))
    by_keyword = [a.name for a in one._schema.arguments if a.kwarg_only]
    renamed = {"scalars": "value"} if by_keyword == ["value"] else {}
    return Element(one, listed, MappingProxyType(renamed))
