"""The pipelines of FX passes: over joint graphs, and over graphs about to be lowered.

A pass changes a `GraphModule` in place and returns whether it did.
"""

from collections.abc import Mapping
from typing import Protocol

from attrs import evolve
from torch.fx import GraphModule

from gyrator_ir.modes import Numerics
from gyrator_ir.passes import Level, Pipeline, when
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.attention.call_attention import CallAttention
from gyrator_lowering.fx_passes.attention.share_key_heads import ShareKeyHeads
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
from gyrator_lowering.fx_passes.layouts.channels_last import ChannelsLast, ImageConvolution, Layouts
from gyrator_lowering.fx_passes.layouts.raise_convolutions import RaiseConvolutions
from gyrator_lowering.fx_passes.layouts.restride_outputs import NO_STRIDES, RestrideOutputs, Strides
from gyrator_lowering.fx_passes.layouts.row_major import RowMajor
from gyrator_lowering.fx_passes.move_indices import MoveIndices
from gyrator_lowering.fx_passes.narrow_pool_indices import NarrowPoolIndices
from gyrator_lowering.fx_passes.products.linear_calls import LinearCalls, Product, Quicker
from gyrator_lowering.fx_passes.products.multiply_pixels import MultiplyPixels
from gyrator_lowering.fx_passes.products.pack_weights import Packed, Packing, PackWeights
from gyrator_lowering.fx_passes.products.pad_products import PadProducts
from gyrator_lowering.fx_passes.products.post_ops import NOTHING, Activation
from gyrator_lowering.fx_passes.products.quantized_calls import (
    Convolution,
    Integers,
    QuantizedCalls,
)
from gyrator_lowering.fx_passes.products.split_bias import SplitBias
from gyrator_lowering.fx_passes.products.split_depthwise_gradients import SplitDepthwiseGradients
from gyrator_lowering.fx_passes.products.split_product_bias import SplitProductBias
from gyrator_lowering.fx_passes.products.winograd import (
    Multiplying,
    Winograd,
    convolved,
    transformed_weight,
)
from gyrator_lowering.fx_passes.replace_random import ReplaceRandom
from gyrator_lowering.fx_passes.split_cross_entropy import SplitCrossEntropy
from gyrator_lowering.fx_passes.split_hardswish import SplitHardswish
from gyrator_lowering.fx_passes.split_norms import SplitNorms
from gyrator_lowering.fx_passes.split_softmax import SplitSoftmax
from gyrator_lowering.fx_passes.split_thresholds import SplitThresholds
from gyrator_lowering.fx_passes.views.remove_noop import RemoveNoop
from gyrator_lowering.fx_passes.views.replay_views import NO_ALIASES, ReplayViews
from gyrator_lowering.fx_passes.views.wrap_borders import WrapBorders
from gyrator_lowering.fx_passes.whole_formulas import WholeFormulas
from gyrator_lowering.fx_text import KIND, parse, show
from gyrator_lowering.options import LoweringOptions


def _runnable(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


FX = Level("fx", GraphModule, show, _runnable, parse, KIND, in_place=True)
"""ATen graphs about to be lowered."""
JOINT = evolve(FX, name="joint")
"""Joint graphs before they are partitioned, and whole inference graphs."""


class Libraries(Packing, Layouts, Multiplying, Protocol):
    """Measurements of a machine's libraries."""


def joint_pipeline(
    options: LoweringOptions,
    targets: Mapping[str, Target] = NO_TARGETS,
    recomputing: bool = False,
    strides: Mapping[int, Strides] = NO_STRIDES,
    frozen: bool = False,
    libraries: Libraries | None = None,
    packs: bool = True,
    aliases: Mapping[int, int] = NO_ALIASES,
) -> Pipeline[GraphModule]:
    """Return the passes over a joint graph, in order.

    Args:
        options: `fallback_random` keeps ATen's random ops; `numerics` may exclude passes that
            change the bits of results.
        targets: by device type.
        recomputing: a partitioner that may recompute pointwise ops runs next.
        strides: eager's strides of the graph's results, by index.
        frozen: the inputs marked as known are constants.
        libraries: measurements of the libraries that are called; None if there are none, which
            leaves all layouts unchanged.
        packs: known weights may be converted to layouts private to a library.
        aliases: the argument that a result of the graph is a view of, both by index.
    """
    exact = options.numerics is Numerics.BITWISE
    fast = options.numerics is Numerics.FAST
    packing = libraries if frozen and packs else None
    passes = (
        ReplayViews(aliases),
        RestrideOutputs(strides),
        when(exact, WholeFormulas()),
        when(not exact and not options.fallback_random, ReplaceRandom()),
        RemoveNoop(),
        MoveIndices(),
        when(frozen and not exact, FoldNorms()),
        when(not exact, RowMajor()),
        when(packing is not None and not exact, RaiseConvolutions.of(targets)),
        when(not exact, SplitDepthwiseGradients.of(targets)),
        when(not exact, ChannelsLast.of(targets, packing is not None, libraries)),
        when(packing is not None, QuantizedCalls.of(targets, packing)),
        when(fast and packing is not None, Winograd.of(targets, packing)),
        when(packing is not None, PackWeights.of(targets, packing, fast)),
        when(not exact and recomputing, SplitNorms()),
        when(not exact and recomputing, SplitHardswish()),
        when(not exact and recomputing, SplitSoftmax()),
        when(not exact and recomputing, SplitCrossEntropy()),
        when(not exact and recomputing, ChunkLosses()),
        when(recomputing, SplitThresholds.of(targets)),
        when(recomputing, NarrowPoolIndices.of(targets)),
        when(recomputing, Cse(joint=True)),
    )
    return Pipeline(JOINT, passes)


def fx_pipeline(
    targets: Mapping[str, Target] = NO_TARGETS,
    quicker: Quicker | None = None,
    exact: bool = False,
    kernels: Mapping[str, Target] = NO_TARGETS,
) -> Pipeline[GraphModule]:
    """Return the passes over a graph about to be lowered, in order.

    Args:
        targets: the devices whose libraries are called, for passes that prepare library calls.
        quicker: returns whether oneDNN computes a product faster.
        exact: keep the bits of results, provided that there are no `targets`.
        kernels: the devices whose templates may implement flexible attention.
    """
    passes = (
        CallAttention.of(targets),
        when(not exact, ShareKeyHeads()),
        SplitBias.of(targets),
        PadProducts.of(targets),
        InlineHigherOrder(whole=exact, targets=kernels),
        ExpandForeach(),
        HoldNumbers(),
        RemoveNoop(),
        WrapBorders(),
        Cse(),
        MultiplyPixels.of(targets),
        when(quicker is not None, LinearCalls.of(targets, quicker)),
        SplitProductBias.of(targets),
    )
    return Pipeline(FX, passes)


__all__ = [
    "FX", "JOINT", "NOTHING", "Activation", "CallAttention", "ChannelsLast", "ChunkLosses",
    "Convolution", "Cse", "ExpandForeach", "FoldNorms", "HoldNumbers", "ImageConvolution",
    "InlineHigherOrder", "Integers", "Layouts", "Libraries", "LinearCalls", "MoveIndices",
    "MultiplyPixels", "NarrowPoolIndices", "PackWeights", "Packed", "Packing", "PadProducts",
    "Product", "QuantizedCalls", "Quicker", "RaiseConvolutions", "RemoveNoop", "ReplaceRandom",
    "RestrideOutputs", "RowMajor", "ShareKeyHeads", "SplitBias", "SplitCrossEntropy",
    "SplitDepthwiseGradients", "SplitNorms", "SplitProductBias", "SplitSoftmax", "SplitThresholds",
    "WholeFormulas", "Winograd", "WrapBorders", "convolved", "fx_pipeline", "hold_inputs",
    "hold_results", "joint_pipeline", "resolve_results", "transformed_weight",
]  # fmt: skip
