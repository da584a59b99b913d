"""Passes over FX graphs, before lowering: named, pure where it matters, each can be left out.

A pass is a function from a `GraphModule` to whether it changed the graph, in place. `PASSES` names
them in the order in which they run.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch.fx import GraphModule

from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.cse import cse
from gyrator_lowering.fx_passes.expand_foreach import expand_foreach
from gyrator_lowering.fx_passes.inline_higher_order import inline_higher_order
from gyrator_lowering.fx_passes.linear_calls import Product, Quicker, linear_calls
from gyrator_lowering.fx_passes.move_indices import move_indices
from gyrator_lowering.fx_passes.numbers import (
    hold_inputs,
    hold_numbers,
    hold_results,
    resolve_results,
)
from gyrator_lowering.fx_passes.pad_products import kernel_products, pad_products
from gyrator_lowering.fx_passes.planes_last import planes_last
from gyrator_lowering.fx_passes.remove_noop import remove_noop
from gyrator_lowering.fx_passes.replace_random import replace_random
from gyrator_lowering.fx_passes.restride_outputs import Strides, restride_outputs
from gyrator_lowering.fx_passes.split_bias import split_bias
from gyrator_lowering.fx_passes.split_cross_entropy import split_cross_entropy
from gyrator_lowering.fx_passes.split_norms import split_norms
from gyrator_lowering.options import LoweringOptions

GraphPass = Callable[[GraphModule], bool]

NO_TARGETS: Mapping[str, Target] = MappingProxyType({})
NO_STRIDES: Mapping[int, Strides] = MappingProxyType({})

JOINT_PASSES: Mapping[str, GraphPass] = MappingProxyType(
    {"replace_random": replace_random, "remove_noop": remove_noop, "move_indices": move_indices}
)
"""Passes over a joint graph (or the forward graph of inference), before it is partitioned."""

RECOMPUTING_PASSES: Mapping[str, GraphPass] = MappingProxyType(
    {"split_norms": split_norms, "split_cross_entropy": split_cross_entropy}
)
"""Passes over a joint graph whose partitioner may compute pointwise ops twice."""

PASSES: Mapping[str, GraphPass] = MappingProxyType(
    {
        "inline_higher_order": inline_higher_order,
        "expand_foreach": expand_foreach,
        "hold_numbers": hold_numbers,
        "remove_noop": remove_noop,
        "cse": cse,
    }
)
"""Passes over a graph that is about to be lowered."""


def passes_for(
    targets: Mapping[str, Target], quicker: Quicker | None = None
) -> Mapping[str, GraphPass]:
    """Return the passes over a graph that is about to be lowered for some targets: `PASSES`, and
    those that suit calls to the targets' libraries. `quicker` knows what oneDNN computes quicker.
    """
    for_libraries: dict[str, GraphPass] = {
        "split_bias": lambda gm: split_bias(gm, targets),
        "pad_products": lambda gm: pad_products(gm, targets),
    }
    passes = {**for_libraries, **PASSES}
    if quicker is not None:
        passes["linear_calls"] = lambda gm: linear_calls(gm, targets, quicker)
    return passes


def run_passes(
    gm: GraphModule, passes: Mapping[str, GraphPass], without: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Run passes in order, except those named in `without`; return the names of what changed."""
    changed = tuple(name for name, one in passes.items() if name not in without and one(gm))
    if changed:
        gm.graph.lint()
        gm.recompile()
    return changed


def prepare_joint(
    gm: GraphModule,
    options: LoweringOptions,
    without: frozenset[str] = frozenset(),
    targets: Mapping[str, Target] = NO_TARGETS,
    recomputing: bool = False,
    strides: Mapping[int, Strides] = NO_STRIDES,
) -> tuple[str, ...]:
    """Run `JOINT_PASSES` as `options` ask, and `planes_last` for these targets.

    `strides` are eager's of the graph's results, by place.

    `fallback_random` keeps ATen's random ops. `recomputing` says that a partitioner comes next
    which may compute pointwise ops again: `RECOMPUTING_PASSES` run, too.
    """
    skipped = without | {"replace_random"} if options.fallback_random else without
    passes: dict[str, GraphPass] = {"restride_outputs": lambda gm: restride_outputs(gm, strides)}
    passes |= {**JOINT_PASSES, "planes_last": lambda gm: planes_last(gm, targets)}
    if recomputing:
        passes |= RECOMPUTING_PASSES
    return run_passes(gm, passes, skipped)


__all__ = [
    "JOINT_PASSES",
    "PASSES",
    "RECOMPUTING_PASSES",
    "GraphPass",
    "Product",
    "Quicker",
    "cse",
    "expand_foreach",
    "hold_inputs",
    "hold_numbers",
    "hold_results",
    "inline_higher_order",
    "kernel_products",
    "linear_calls",
    "move_indices",
    "pad_products",
    "passes_for",
    "planes_last",
    "prepare_joint",
    "remove_noop",
    "replace_random",
    "resolve_results",
    "restride_outputs",
    "run_passes",
    "split_bias",
    "split_cross_entropy",
    "split_norms",
]
