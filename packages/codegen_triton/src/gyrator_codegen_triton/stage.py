"""The Triton kernel language: kernels in, translation units out."""

from collections.abc import Sequence

from attrs import frozen

from gyrator_codegen import Names
from gyrator_codegen_triton.contract import contraction
from gyrator_codegen_triton.kernel import emit_kernel
from gyrator_codegen_triton.product import emit_product
from gyrator_codegen_triton.refusals import refusal
from gyrator_codegen_triton.support import RESERVED, preamble
from gyrator_codegen_triton.templates.emit import emit_template
from gyrator_codegen_triton.templates.refusals import template_refusal
from gyrator_ir.content import content_hash
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, TemplateKernel
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target


@frozen
class TritonBackend:
    """Kernels as Triton text, one function each. It implements `TemplateBackend`."""

    @property
    def name(self) -> str:
        """`triton`."""
        return "triton"

    @property
    def content_hash(self) -> str:
        """A digest of the source of this package, and of what it imports of ours."""
        return content_hash("gyrator_codegen_triton")

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Say why this kernel can't be written, or None."""
        return refusal(kernel, target)

    def emit(
        self,
        kernels: Sequence[Kernel],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write the kernels.

        A unit's text defines one function a kernel, `KernelSource.symbol`; `KernelSource.grid` says
        how many programs run.

        Each `KernelSource.text` is a program of its own.
        """
        names = Names(RESERVED)
        units: list[TranslationUnit] = []
        sources: list[KernelSource] = []
        bodies: list[str] = []
        statements = 0

        def close() -> None:
            text = "\n\n".join(bodies)
            name = f"unit{len(units)}"
            units.append(TranslationUnit(name, "triton", preamble(text) + text, tuple(sources)))
            sources.clear()
            bodies.clear()

        for kernel in kernels:
            symbol = names.take(kernel.name)
            source, body = self._written(kernel, facts, origins, target, symbol)
            sources.append(source)
            bodies.append(body)
            statements += sum(len(stage.body) for stage in kernel.stages) + 4
            if statements >= target.heuristics.unit_statements:
                close()
                statements = 0
        if sources:
            close()
        return tuple(units)

    def _written(
        self,
        kernel: Kernel,
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
        symbol: str,
    ) -> tuple[KernelSource, str]:
        product = contraction(kernel, target, facts)
        if product is not None:
            return emit_product(product, facts, origins, target, symbol)
        return emit_kernel(kernel, facts, origins, target.heuristics, symbol)

    def emit_groups(
        self,
        groups: Sequence[KernelGroup],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write groups of kernels that all do the same, a unit each; functions are as those of
        `emit`."""
        names = Names(RESERVED)
        units: list[TranslationUnit] = []
        for n, group in enumerate(groups):
            (kernel,) = group.kernels
            symbol = names.take(group.name)
            source, _ = emit_kernel(kernel, facts, origins, target.heuristics, symbol, group)
            units.append(TranslationUnit(f"group{n}", "triton", source.text, (source,)))
        return tuple(units)

    def refuses_template(self, kernel: TemplateKernel, target: Target) -> Diagnostic | None:
        """Say why this template can't be written, or None."""
        return template_refusal(kernel, target)

    def emit_templates(
        self,
        kernels: Sequence[TemplateKernel],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write the templates' kernels, a unit each; functions are as those of `emit`."""
        names = Names(RESERVED)
        units: list[TranslationUnit] = []
        for n, kernel in enumerate(kernels):
            symbol = names.take(kernel.name)
            source = emit_template(kernel, facts, origins, target, symbol)
            units.append(TranslationUnit(f"template{n}", "triton", source.text, (source,)))
        return tuple(units)
