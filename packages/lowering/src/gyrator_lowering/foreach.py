"""Ops on lists of tensors: torch's `_foreach_add` is `add` on every tensor of a list.

The schema of such an op says how each element's op gets its arguments: one item of each list, and
everything else unchanged.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import torch
from torch._ops import OpOverload

from gyrator_ir.define import frozen

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
"""Single-tensor ops with another name."""
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
"""The overload of the single-tensor op, if it is not the default one."""
_UNEXPANDED = frozenset({"addcmul.Tensor", "addcdiv.Tensor"})
"""Ops that read scalars from a tensor on the host; they are not expanded."""


@frozen
class Element:
    """The op that a list op applies to each element."""

    op: OpOverload
    listed: frozenset[str]
    """Arguments of the list op that are lists with one item for each element."""
    renamed: Mapping[str, str]
    """Keywords of the list op that have another name in the element's op."""


@lru_cache(512)
def element_of(op: OpOverload) -> Element | None:
    """Return the op that a list op applies to each element, or None for other ops."""
    schema = op._schema
    if not schema.name.startswith(PREFIX) or schema.is_mutable or not schema.returns:
        return None
    name, overload = schema.name.removeprefix(PREFIX), schema.overload_name
    full = f"{name}.{overload}" if overload else name
    if full in _UNEXPANDED:
        return None
    packet = getattr(aten, _RENAMED.get(full, name), None)
    single = None if packet is None else getattr(packet, _OVERLOADS.get(full, "default"), None)
    if not isinstance(single, OpOverload):
        return None
    listed = frozenset(a.name for a in schema.arguments if str(a.type).startswith("List["))
    by_keyword = [a.name for a in single._schema.arguments if a.kwarg_only]
    renamed = {"scalars": "value"} if by_keyword == ["value"] else {}
    return Element(single, listed, MappingProxyType(renamed))
