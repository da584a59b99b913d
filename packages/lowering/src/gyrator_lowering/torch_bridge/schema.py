"""The dispatcher's schema of an overload, in the form that lowering needs."""

from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

from gyrator_ir.define import frozen


@frozen
class OpInfo:
    """Properties of one overload."""

    name: str
    """`aten.add.Tensor`."""
    arguments: tuple[str, ...]
    """Names of all arguments, in schema order."""
    views: tuple[int | None, ...]
    """For each result that aliases an argument without writing to it, the argument's position."""
    results_written: tuple[int | None, ...]
    """For each result that is an argument written in place, the argument's position."""
    writes: tuple[int, ...]
    """Positions of the arguments that the op writes to."""
    returns: int
    """The number of results."""
    uncaptured: str
    """Why a call of the op cannot be captured in a device graph; empty if it can."""

    @property
    def is_view(self) -> bool:
        """Whether all results are views of arguments, and nothing is written."""
        return bool(self.views) and None not in self.views and not self.writes


_UNCAPTURED = (
    ("cudagraph_unsafe", "PyTorch says that no graph can hold it"),
    ("data_dependent_output", "the host reads what it computes"),
    ("dynamic_output_shape", "values decide the sizes of its results"),
)
"""torch's tags (not all in every version) of ops that device graphs cannot capture, and the
reasons."""


@frozen
class OutForm:
    """The `out=` overload of an op, which writes its results into given tensors."""

    name: str
    """`aten.add.out`."""
    arguments: tuple[str, ...]
    """The keyword argument of each result."""


_INTO_MEMORY = frozenset(
    """
    sum mean prod linalg_vector_norm logsumexp cumsum cumprod _softmax _log_softmax
    _softmax_backward_data _log_softmax_backward_data
    """.split()
)
"""Ops, beside pointwise ones, that write only their results into `out=` tensors. Some others use
these for temporaries, or resize them."""


@lru_cache(4096)
def out_form(op: torch._ops.OpOverload, device: str) -> OutForm | None:
    """Return the `out=` overload of an op, if it has a kernel of its own on the device, rather than
    one that copies the functional op's result."""
    schema = op._schema
    if torch.Tag.pointwise not in op.tags and str(op).split(".")[1] not in _INTO_MEMORY:
        return None
    if schema.is_mutable:
        return None
    if any(str(r.type) != "Tensor" or r.alias_info is not None for r in schema.returns):
        return None
    packet = op.overloadpacket
    key = torch._C._dispatch_key_for_device(device)
    signature = [(a.name, str(a.type)) for a in schema.arguments]
    for overload in packet.overloads():
        other = getattr(packet, overload)._schema
        outs = [a.name for a in other.arguments if a.is_out]
        other_signature = [(a.name, str(a.type)) for a in other.arguments if not a.is_out]
        if len(outs) != len(schema.returns) or not outs or other_signature != signature:
            continue
        name = f"{other.name}.{other.overload_name}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return OutForm(name.replace("::", "."), tuple(outs))
    return None


@lru_cache(4096)
def info_of(op: torch._ops.OpOverload) -> OpInfo:
    """Return the properties of an overload. They depend on the op alone, so caching is safe."""
    schema = op._schema
    sets: dict[str, int] = {}
    writes: list[int] = []
    wildcard: int | None = None
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is not None:
            if "*" in alias.after_set and not alias.is_write:
                wildcard = position
            for name in alias.before_set:
                sets[name] = position
            if alias.is_write:
                writes.append(position)
    views: list[int | None] = []
    written: list[int | None] = []
    for result in schema.returns:
        alias = result.alias_info
        base = next((sets[n] for n in alias.before_set if n in sets), None) if alias else None
        if base is None and wildcard is not None and str(result.type) == "List[Tensor]":
            base = wildcard
        is_write = alias is not None and alias.is_write
        views.append(None if is_write else base)
        written.append(base if is_write else None)
    return OpInfo(
        name=str(op),
        arguments=tuple(a.name for a in schema.arguments),
        views=tuple(views),
        results_written=tuple(written),
        writes=tuple(writes),
        returns=len(schema.returns),
        uncaptured=_uncaptured(op),
    )


def writes(node: Node) -> bool:
    """Return whether a node writes to memory that other nodes read."""
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(info_of(node.target).writes)
    return getattr(node.target, "__name__", "").startswith("triton_kernel_wrapper_mutation")


def named_arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by name, with defaults filled in; without a schema, positional
    ones by their position."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {**{str(k): v for k, v in enumerate(node.args)}, **node.kwargs}
    passed = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    return {a.name: passed.get(a.name, a.default_value) for a in schema.arguments}


def _uncaptured(op: torch._ops.OpOverload) -> str:
    tags = {str(tag).rpartition(".")[2] for tag in op.tags}
    return next((why for tag, why in _UNCAPTURED if tag in tags), "")
