"""The pipelines of FX graphs: over joint graphs, and over graphs that are about to be lowered.

A pass changes a `GraphModule` in place and returns whether it did.
"""

from collections.abc import Mapping
from typing import Protocol

from attrs import evolve
from torch.fx import GraphModule

from gyrator_ir.modes import Numerics
from gyrator_ir.passes import Level, Off, Pipeline, when
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.call_attention import CallAttention
from gyrator_lowering.fx_passes.channels_last import ChannelsLast, ImageConvolution, Layouts
from gyrator_lowering.fx_passes.chunk_losses import ChunkLosses
from gyrator_lowering.fx_passes.cse import Cse
from gyrator_lowering.fx_passes.expand_foreach import ExpandForeach
from gyrator_lowering.fx_passes.fold_norms import FoldNorms
from gyrator_lowering.fx_passes.hold_numbers import (
    HoldNumbers,
    hold_inputs,
    hold_results,
    resolve_results,
)
from gyrator_lowering.fx_passes.inline_higher_order import NO_TARGETS, InlineHigherOrder
from gyrator_lowering.fx_passes.move_indices import MoveIndices
from gyrator_lowering.fx_passes.products.activations import NOTHING, Activation
from gyrator_lowering.fx_passes.products.linear_calls import LinearCalls, Product, Quicker
from gyrator_lowering.fx_passes.products.pack_weights import NotPacked, Packed, Packing, PackWeights
from gyrator_lowering.fx_passes.products.pad_products import PadProducts
from gyrator_lowering.fx_passes.products.quantized_calls import (
    Convolution,
    Integers,
    QuantizedCalls,
)
from gyrator_lowering.fx_passes.products.split_bias import SplitBias
from gyrator_lowering.fx_passes.products.split_product_bias import SplitProductBias
from gyrator_lowering.fx_passes.remove_noop import RemoveNoop
from gyrator_lowering.fx_passes.replace_random import ReplaceRandom
from gyrator_lowering.fx_passes.restride_outputs import NO_STRIDES, RestrideOutputs, Strides
from gyrator_lowering.fx_passes.split_cross_entropy import SplitCrossEntropy
from gyrator_lowering.fx_passes.split_norms import SplitNorms
from gyrator_lowering.fx_passes.whole_formulas import WholeFormulas
from gyrator_lowering.fx_text import KIND, parse, show
from gyrator_lowering.options import LoweringOptions


def _runnable(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


FX = Level("fx", GraphModule, show, _runnable, parse, KIND, in_place=True)
"""ATen graphs that are about to be lowered."""
JOINT = evolve(FX, name="joint")
"""Joint graphs before they are partitioned, and whole graphs of inference."""


class Libraries(Packing, Layouts, Protocol):
    """What knows the libraries of a machine."""


def joint_pipeline(
    options: LoweringOptions,
    targets: Mapping[str, Target] = NO_TARGETS,
    recomputing: bool = False,
    strides: Mapping[int, Strides] = NO_STRIDES,
    frozen: bool = False,
    libraries: Libraries | None = None,
) -> Pipeline[GraphModule]:
    """Return the passes over a joint graph, in order.

    Args:
        options: `fallback_random` keeps ATen's random ops; `numerics` may leave out the passes
            after which results have other bits.
        targets: by device type.
        recomputing: a partitioner comes next which may compute pointwise ops again.
        strides: eager's of the graph's results, by place.
        frozen: some inputs are known, those that are marked so.
        libraries: what knows those that are called; None where none is, and everything stays as
            it lies.
    """
    exact = options.numerics is Numerics.BITWISE
    fast = options.numerics is Numerics.FAST
    packing = libraries if frozen else None
    passes = (
        RestrideOutputs(strides),
        when(exact, WholeFormulas()),
        when(not exact and not options.fallback_random, ReplaceRandom()),
        RemoveNoop(),
        MoveIndices(),
        when(frozen and not exact, FoldNorms()),
        when(not exact, ChannelsLast.of(targets, packing is not None, libraries)),
        when(packing is not None, QuantizedCalls.of(targets, packing)),
        when(packing is not None, PackWeights.of(targets, packing or NotPacked(), fast)),
        when(not exact and recomputing, SplitNorms()),
        when(not exact and recomputing, SplitCrossEntropy()),
        when(not exact and recomputing, ChunkLosses()),
        when(recomputing, Cse(joint=True)),
    )
    return Pipeline(JOINT, passes)


def fx_pipeline(
    targets: Mapping[str, Target] = NO_TARGETS,
    quicker: Quicker | None = None,
    exact: bool = False,
    kernels: Mapping[str, Target] = NO_TARGETS,
) -> Pipeline[GraphModule]:
    """Return the passes over a graph that is about to be lowered, in order.

    Those that suit calls of libraries go by `targets`, which has the devices whose libraries are
    called; `quicker` knows what oneDNN computes quicker. `exact` leaves results their bits, if
    there are no targets. `kernels` has the devices whose templates flexible attention may be.
    """
    passes = (
        CallAttention.of(targets),
        SplitBias.of(targets),
        PadProducts.of(targets),
        InlineHigherOrder(whole=exact, targets=kernels),
        ExpandForeach(),
        HoldNumbers(),
        RemoveNoop(),
        Cse(),
        Off(LinearCalls()) if quicker is None else LinearCalls.of(targets, quicker),
        SplitProductBias.of(targets),
    )
    return Pipeline(FX, passes)


__all__ = [
    "FX",
    "JOINT",
    "NOTHING",
    "Activation",
    "CallAttention",
    "ChannelsLast",
    "ChunkLosses",
    "Convolution",
    "Cse",
    "ExpandForeach",
    "FoldNorms",
    "HoldNumbers",
    "ImageConvolution",
    "InlineHigherOrder",
    "Integers",
    "Layouts",
    "Libraries",
    "LinearCalls",
    "MoveIndices",
    "PackWeights",
    "Packed",
    "Packing",
    "PadProducts",
    "Product",
    "QuantizedCalls",
    "Quicker",
    "RemoveNoop",
    "ReplaceRandom",
    "RestrideOutputs",
    "SplitBias",
    "SplitCrossEntropy",
    "SplitNorms",
    "SplitProductBias",
    "WholeFormulas",
    "fx_pipeline",
    "hold_inputs",
    "hold_results",
    "joint_pipeline",
    "resolve_results",
]
