"""What the dispatcher's schema says of an overload, in the form that lowering asks for."""

from functools import lru_cache

import torch
from attrs import frozen


@frozen
class OpInfo:
    """Facts of one overload."""

    name: str
    """`aten.add.Tensor`."""
    arguments: tuple[str, ...]
    """Names of all arguments in the order of the schema."""
    views: tuple[int | None, ...]
    """For each result that aliases an argument without writing to it, the argument's place."""
    results_written: tuple[int | None, ...]
    """For each result that is an argument written in place, the argument's place."""
    writes: tuple[int, ...]
    """Places of the arguments that the op writes to."""
    returns: int
    """Number of results."""
    uncaptured: str
    """Why no device graph can hold a call of the op; empty where one can."""

    @property
    def is_view(self) -> bool:
        """Whether all results are views of arguments, and nothing is written."""
        return bool(self.views) and None not in self.views and not self.writes


_UNCAPTURED = (
    ("cudagraph_unsafe", "PyTorch says that no graph can hold it"),
    ("data_dependent_output", "the host reads what it computes"),
    ("dynamic_output_shape", "values decide the sizes of its results"),
)
"""What torch's tags of an op, of which a version may lack some, say of device graphs."""


@frozen
class OutForm:
    """The overload of an op that writes its results into given tensors."""

    name: str
    """`aten.add.out`."""
    arguments: tuple[str, ...]
    """The keyword of each result."""


_INTO_MEMORY = frozenset(
    """
    sum mean prod linalg_vector_norm logsumexp cumsum cumprod _softmax _log_softmax
    _softmax_backward_data _log_softmax_backward_data
    """.split()
)
"""Ops beside pointwise ones that write nothing but their results into given memory: some others
take it for their temporaries, and resize it."""


@lru_cache(4096)
def out_form(op: torch._ops.OpOverload, device: str) -> OutForm | None:
    """Return the form with `out=` arguments of an op that has a kernel of its own on a device, not
    one that copies what the op returns."""
    schema = op._schema
    if torch.Tag.pointwise not in op.tags and str(op).split(".")[1] not in _INTO_MEMORY:
        return None
    if schema.is_mutable:
        return None
    if any(str(r.type) != "Tensor" or r.alias_info is not None for r in schema.returns):
        return None
    packet = op.overloadpacket
    key = torch._C._dispatch_key_for_device(device)
    given = [(a.name, str(a.type)) for a in schema.arguments]
    for overload in packet.overloads():
        other = getattr(packet, overload)._schema
        outs = [a.name for a in other.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in other.arguments if not a.is_out]
        if len(outs) != len(schema.returns) or not outs or rest != given:
            continue
        name = f"{other.name}.{other.overload_name}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return OutForm(name.replace("::", "."), tuple(outs))
    return None


@lru_cache(4096)
def info_of(op: torch._ops.OpOverload) -> OpInfo:
    """Return the facts of an overload. A pure function of the op: the cache holds no meaning."""
    schema = op._schema
    sets: dict[str, int] = {}
    writes: list[int] = []
    wildcard: int | None = None
    for place, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is not None:
            if "*" in alias.after_set and not alias.is_write:
                wildcard = place
            for name in alias.before_set:
                sets[name] = place
            if alias.is_write:
                writes.append(place)
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


def _uncaptured(op: torch._ops.OpOverload) -> str:
    tags = {str(tag).rpartition(".")[2] for tag in op.tags}
    return next((why for tag, why in _UNCAPTURED if tag in tags), "")
