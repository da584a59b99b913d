"""Which template writes a kernel."""

from collections.abc import Sequence

from gyrator_codegen_triton.source import source_of
from gyrator_codegen_triton.templates.attention import AttentionKernel
from gyrator_codegen_triton.templates.attention_configs import candidates, gradient_candidates
from gyrator_codegen_triton.templates.attention_gradients import GradientsKernel
from gyrator_codegen_triton.templates.attention_text import problem_of
from gyrator_codegen_triton.templates.flex import FlexKernel
from gyrator_codegen_triton.templates.flex_gradients import FlexGradientsKernel
from gyrator_ir.body.nodes import Bind
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Configuration, KernelSource
from gyrator_ir.target import Heuristics, Target
from gyrator_ir.tile.nodes import TiledTemplate

_TEMPLATES = {
    TemplateKind.ATTENTION: (AttentionKernel, candidates),
    TemplateKind.ATTENTION_GRADIENTS: (GradientsKernel, gradient_candidates),
    TemplateKind.FLEX_ATTENTION: (FlexKernel, candidates),
    TemplateKind.FLEX_ATTENTION_GRADIENTS: (FlexGradientsKernel, gradient_candidates),
}
"""What writes the text, and what ranks its configurations."""


def configurations(
    kernel: TemplateKernel, facts: ShapeFacts, heuristics: Heuristics
) -> tuple[Configuration, ...]:
    """Return the configurations of a template that are worth measuring, the best guess first."""
    _, ranked = _TEMPLATES[kernel.kind]
    return ranked(problem_of(kernel, facts), heuristics)


def emit_template(
    tiled: TiledTemplate,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    target: Target,
    symbol: str,
) -> KernelSource:
    """Return the kernel as a text that runs on its own."""
    kernel = tiled.kernel
    writer, _ = _TEMPLATES[kernel.kind]
    text = writer(kernel, facts, target, symbol)
    text.write(origins)
    found = tiled.candidates
    if any(isinstance(s, Bind) and s.check for f in kernel.formulas for s in f.body):
        more = (("debug", 1), ("sanitize_overflow", 0))
        found = tuple(Configuration((*c.values, *more)) for c in found)
    source, _ = source_of(kernel, symbol, text, facts, found, text.programs)
    return source
