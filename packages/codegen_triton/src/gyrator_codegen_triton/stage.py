"""The Triton kernel language: kernels in, translation units out."""

from typing import ClassVar

from attrs import frozen

from gyrator_codegen import Names, TilingLanguage
from gyrator_codegen.passes import block_pipeline
from gyrator_codegen_triton.expressible import check_expressible
from gyrator_codegen_triton.kernel import emit_kernel
from gyrator_codegen_triton.product import emit_product
from gyrator_codegen_triton.refusals import refusal
from gyrator_codegen_triton.support import RESERVED, preamble
from gyrator_codegen_triton.templates.emit import emit_template
from gyrator_codegen_triton.templates.rank_templates import RankTemplates
from gyrator_codegen_triton.templates.refusals import template_refusal
from gyrator_ir.checks import takes
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, TemplateKernel
from gyrator_ir.passes import Pass
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledGroup, TiledKernel, TiledTemplate, TileProgram


@frozen
class TritonBackend(TilingLanguage):
    """Kernels as Triton text: a `TemplateBackend` and a `TilingBackend`.

    A unit's text defines one function a kernel, `KernelSource.symbol`; `KernelSource.grid` says how
    many programs run. Each `KernelSource.text` is a program of its own. The kernels of a group all
    do the same.
    """

    package: ClassVar[str] = "gyrator_codegen_triton"

    @property
    def name(self) -> str:
        """`triton`."""
        return "triton"

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Say why this kernel can't be written, or None."""
        return refusal(kernel, target, lambda k: self._tiled(k, target))

    def _tiled(self, kernel: Kernel, target: Target) -> TiledKernel:
        (tiled,) = self.tile([kernel], ShapeFacts(), (), target).kernels
        assert isinstance(tiled, TiledKernel)
        return tiled

    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return those of `block_pipeline`, and what ranks configurations of templates."""
        return (*block_pipeline(target), RankTemplates(target.heuristics))

    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Write tiled kernels, in units of about `unit_statements`, and groups and templates, a
        unit each.

        Raises:
            UnsupportedError: for decisions that Triton kernels can't express.
        """
        takes("emit_tiled", program, TileProgram)
        takes("emit_tiled", target, Target)
        names = Names(RESERVED)
        units: list[TranslationUnit] = []
        groups: list[TranslationUnit] = []
        templates: list[TranslationUnit] = []
        sources: list[KernelSource] = []
        bodies: list[str] = []
        statements = 0

        def close() -> None:
            text = "\n\n".join(bodies)
            name = f"unit{len(units)}"
            units.append(TranslationUnit(name, "triton", preamble(text) + text, tuple(sources)))
            sources.clear()
            bodies.clear()

        for tiled in program.kernels:
            check_expressible(tiled)
            if isinstance(tiled, TiledGroup):
                symbol = names.take(tiled.name)
                source = _group(tiled, program, target, symbol)
                name = f"group{len(groups)}"
                groups.append(TranslationUnit(name, "triton", source.text, (source,)))
                continue
            if isinstance(tiled, TiledTemplate):
                symbol = names.take(tiled.kernel.name)
                source = emit_template(tiled, program.facts, program.origins, target, symbol)
                name = f"template{len(templates)}"
                templates.append(TranslationUnit(name, "triton", source.text, (source,)))
                continue
            assert isinstance(tiled, TiledKernel)
            symbol = names.take(tiled.kernel.name)
            source, body = _written(tiled, program, target, symbol)
            sources.append(source)
            bodies.append(body)
            statements += sum(len(stage.body) for stage in tiled.kernel.stages) + 4
            if statements >= target.heuristics.unit_statements:
                close()
                statements = 0
        if sources:
            close()
        return (*units, *groups, *templates)

    def refuses_template(self, kernel: TemplateKernel, target: Target) -> Diagnostic | None:
        """Say why this template can't be written, or None."""
        return template_refusal(kernel, target)


def _written(
    tiled: TiledKernel, program: TileProgram, target: Target, symbol: str
) -> tuple[KernelSource, str]:
    facts, origins = program.facts, program.origins
    if tiled.contraction is not None:
        return emit_product(tiled, tiled.contraction, facts, origins, target, symbol)
    return emit_kernel(tiled, facts, origins, target, symbol)


def _group(tiled: TiledGroup, program: TileProgram, target: Target, symbol: str) -> KernelSource:
    (kernel,) = tiled.kernels
    group = KernelGroup(tiled.name, tiled.device, (kernel.kernel,), tiled.members)
    facts, origins = program.facts, program.origins
    shared = group, tiled.programs, tiled.selected
    source, _ = emit_kernel(kernel, facts, origins, target, symbol, *shared)
    return source
