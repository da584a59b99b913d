"""Which ops AOTAutograd takes apart before lowering: the long tail that has no rule."""

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

from gyrator_lowering.default import default_table
from gyrator_lowering.schema import info_of
from gyrator_lowering.table import LoweringTable

Decompositions = dict[torch._ops.OpOverload, Callable[..., Any]]


def default_decompositions(table: LoweringTable | None = None) -> Decompositions:
    """Return torch's decompositions of every op that `table` has no rule for.

    Views, random ops and composite ops are left out: the first cost nothing, the second draw from
    a generator, and AOTAutograd takes the third apart by itself.

    Args:
        table: the rules that lowering will use; the default ones if not given.
    """
    rules = default_table() if table is None else table
    chosen: Decompositions = {}
    everything: Any = core_aten_decompositions()
    for op, function in everything.items():
        if not isinstance(op, torch._ops.OpOverload) or op.namespace not in ("aten", "prims"):
            continue
        if rules.find(str(op)) is not None or torch.Tag.nondeterministic_seeded in op.tags:
            continue
        if op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            continue
        if info_of(op).is_view:
            continue
        chosen[op] = function
    return chosen
