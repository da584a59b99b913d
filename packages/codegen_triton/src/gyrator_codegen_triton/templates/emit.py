"""Emission of template kernels."""

from collections.abc import Sequence

from gyrator_codegen_triton.source import source_of, with_options
from gyrator_codegen_triton.templates.attention import AttentionKernel
from gyrator_codegen_triton.templates.attention_configs import candidates, gradient_candidates
from gyrator_codegen_triton.templates.attention_gradients import GradientsKernel
from gyrator_codegen_triton.templates.attention_text import problem_of
from gyrator_codegen_triton.templates.flex import FlexKernel
from gyrator_codegen_triton.templates.flex_gradients import FlexGradientsKernel
from gyrator_codegen_triton.templates.flex_parts import FlexPartsKernel
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Configuration, KernelSource
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledTemplate

_TEMPLATES = {
    TemplateKind.ATTENTION: (AttentionKernel, candidates),
    TemplateKind.ATTENTION_GRADIENTS: (GradientsKernel, gradient_candidates),
    TemplateKind.FLEX_ATTENTION: (FlexKernel, candidates),
    TemplateKind.FLEX_ATTENTION_PARTS: (FlexPartsKernel, candidates),
    TemplateKind.FLEX_ATTENTION_GRADIENTS: (FlexGradientsKernel, gradient_candidates),
}
"""The emitter and the ranking of configurations of each kind."""


def configurations(
    kernel: TemplateKernel, facts: ShapeFacts, cores: int, shared: int
) -> tuple[Configuration, ...]:
    """Return the configurations of a template that are worth measuring, best estimate first.

    Args:
        kernel: the template.
        facts: hints for its sizes.
        cores: number of the device's cores.
        shared: bytes of shared memory per program; 0 if unknown.
    """
    _, ranked = _TEMPLATES[kernel.kind]
    return ranked(problem_of(kernel, facts), cores, shared)


def emit_template(
    tiled: TiledTemplate,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    target: Target,
    symbol: str,
) -> KernelSource:
    """Return the kernel as self-contained source."""
    kernel = tiled.kernel
    writer, _ = _TEMPLATES[kernel.kind]
    text = writer(kernel, facts, target, symbol)
    text.write(origins)
    ranked = with_options(tiled, (s for f in kernel.formulas for s in f.body))
    source, _ = source_of(kernel, symbol, text, facts, ranked, text.programs)
    return source
