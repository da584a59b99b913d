"""Emission of template kernels."""

from collections.abc import Sequence

from gyrator_codegen_triton.source import source_of, with_options
from gyrator_codegen_triton.templates.attention import AttentionKernel
from gyrator_codegen_triton.templates.attention_gradients import GradientsKernel
from gyrator_codegen_triton.templates.flex import FlexKernel
from gyrator_codegen_triton.templates.flex_gradients import FlexGradientsKernel
from gyrator_codegen_triton.templates.flex_parts import FlexPartsKernel
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledTemplate
from gyrator_ir.types import DType

_EMITTERS = {
    TemplateKind.ATTENTION: AttentionKernel,
    TemplateKind.ATTENTION_GRADIENTS: GradientsKernel,
    TemplateKind.FLEX_ATTENTION: FlexKernel,
    TemplateKind.FLEX_ATTENTION_PARTS: FlexPartsKernel,
    TemplateKind.FLEX_ATTENTION_GRADIENTS: FlexGradientsKernel,
}


def emit_template(
    tiled: TiledTemplate, facts: ShapeFacts, origins: Sequence[Origin], target: Target, symbol: str
) -> KernelSource:
    """Return the kernel as self-contained source."""
    kernel = tiled.kernel
    wide = tiled.index is DType.I64
    text = _EMITTERS[kernel.kind](kernel, facts, target, symbol, wide, tiled.wait)
    text.write(origins)
    ranked = with_options(tiled, (s for f in kernel.formulas for s in f.body))
    source, _ = source_of(kernel, symbol, text, facts, ranked, text.programs)
    return source
