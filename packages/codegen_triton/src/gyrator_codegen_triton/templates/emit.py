"""Which template writes a kernel."""

from collections.abc import Sequence

from gyrator_codegen_triton.templates.attention import emit_attention
from gyrator_codegen_triton.templates.attention_gradients import emit_gradients
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Target


def emit_template(
    kernel: TemplateKernel,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    target: Target,
    symbol: str,
) -> KernelSource:
    """Return the kernel as a text that runs on its own."""
    match kernel.kind:
        case TemplateKind.ATTENTION:
            return emit_attention(kernel, facts, origins, target, symbol)
        case TemplateKind.ATTENTION_GRADIENTS:
            return emit_gradients(kernel, facts, origins, target, symbol)
