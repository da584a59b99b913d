"""Which template writes a kernel."""

from collections.abc import Sequence

from gyrator_codegen_triton.source import source_of
from gyrator_codegen_triton.templates.attention import AttentionKernel
from gyrator_codegen_triton.templates.attention_configs import candidates, gradient_candidates
from gyrator_codegen_triton.templates.attention_gradients import GradientsKernel
from gyrator_codegen_triton.templates.attention_text import problem_of
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Target

_TEMPLATES = {
    TemplateKind.ATTENTION: (AttentionKernel, candidates),
    TemplateKind.ATTENTION_GRADIENTS: (GradientsKernel, gradient_candidates),
}
"""What writes the text, and what ranks its configurations."""


def emit_template(
    kernel: TemplateKernel,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    target: Target,
    symbol: str,
) -> KernelSource:
    """Return the kernel as a text that runs on its own."""
    writer, ranked = _TEMPLATES[kernel.kind]
    text = writer(kernel, facts, target, symbol)
    text.write(origins)
    found = ranked(problem_of(kernel, facts), target.heuristics)
    source, _ = source_of(kernel, symbol, text, facts, found, text.programs)
    return source
