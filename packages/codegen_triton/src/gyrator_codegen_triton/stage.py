"""The Triton kernel language: kernels in, translation units out."""

from collections.abc import Sequence

from attrs import frozen

from gyrator_codegen import Names
from gyrator_codegen.passes import block_pipeline
from gyrator_codegen.stage import tile
from gyrator_codegen_triton.expressible import check_expressible
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
from gyrator_ir.passes import NO_EDITS, PassEdits, Tracer
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledGroup, TiledKernel, TileProgram


@frozen
class TritonBackend:
    """Kernels as Triton text, one function each: a `TemplateBackend` and a `TilingBackend`."""

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
        return refusal(kernel, target, lambda k: self._tiled(k, target))

    def _tiled(self, kernel: Kernel, target: Target) -> TiledKernel:
        (tiled,) = self.tile([kernel], ShapeFacts(), (), target).kernels
        assert isinstance(tiled, TiledKernel)
        return tiled

    def tile(
        self,
        kernels: Sequence[Kernel | KernelGroup],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
        edits: PassEdits = NO_EDITS,
        tracer: Tracer | None = None,
    ) -> TileProgram:
        """Decide how the kernels run, by the passes of `block_pipeline`."""
        return tile(kernels, facts, block_pipeline(target), origins, edits, tracer)

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
        return self.emit_tiled(self.tile(kernels, facts, origins, target), target)

    def emit_groups(
        self,
        groups: Sequence[KernelGroup],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write groups of kernels that all do the same, a unit each; functions are as those of
        `emit`."""
        return self.emit_tiled(self.tile(groups, facts, origins, target), target)

    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Write tiled kernels, in units of about `unit_statements`, and groups, a unit each.

        Raises:
            UnsupportedError: for decisions that Triton kernels can't express.
        """
        names = Names(RESERVED)
        units: list[TranslationUnit] = []
        groups: list[TranslationUnit] = []
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
                source = _group(tiled, program, symbol)
                name = f"group{len(groups)}"
                groups.append(TranslationUnit(name, "triton", source.text, (source,)))
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
        return (*units, *groups)

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


def _written(
    tiled: TiledKernel, program: TileProgram, target: Target, symbol: str
) -> tuple[KernelSource, str]:
    facts, origins = program.facts, program.origins
    if tiled.contraction is not None:
        return emit_product(tiled, tiled.contraction, facts, origins, target, symbol)
    return emit_kernel(tiled, facts, origins, symbol)


def _group(tiled: TiledGroup, program: TileProgram, symbol: str) -> KernelSource:
    (kernel,) = tiled.kernels
    group = KernelGroup(tiled.name, tiled.device, (kernel.kernel,), tiled.members)
    source, _ = emit_kernel(kernel, program.facts, program.origins, symbol, group)
    return source
