"""The Triton kernel language: from kernels to translation units."""

from collections.abc import Iterator
from typing import ClassVar

from gyrator_codegen import Names, TilingLanguage, batched
from gyrator_codegen.language import by_kind, unit_per_kernel
from gyrator_codegen.passes import block_pipeline
from gyrator_codegen_triton.group import emit_group
from gyrator_codegen_triton.kernel import emit_kernel
from gyrator_codegen_triton.prelude import preamble
from gyrator_codegen_triton.product import emit_product
from gyrator_codegen_triton.refusals import check_tiling, refusals
from gyrator_codegen_triton.source import RESERVED
from gyrator_codegen_triton.templates.emit import emit_template
from gyrator_codegen_triton.templates.refusals import template_refusal
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, TemplateKernel
from gyrator_ir.passes import Pass
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel, TileProgram


@frozen
class TritonBackend(TilingLanguage):
    """Emits kernels as Triton source: a `TemplateBackend` and a `TilingBackend`.

    A unit defines one function per kernel, `KernelSource.symbol`; `KernelSource.grid` is the number
    of programs. Each `KernelSource.text` is self-contained.
    """

    package: ClassVar[str] = "gyrator_codegen_triton"
    name: ClassVar[str] = "triton"

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Return why this kernel cannot be emitted, or None."""
        return next(refusals(kernel, target, lambda k: self._tiled(k, target)), None)

    def _tiled(self, kernel: Kernel, target: Target) -> TiledKernel:
        (tiled,) = self.tile([kernel], ShapeFacts(), (), target).kernels
        assert isinstance(tiled, TiledKernel)
        return tiled

    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return the passes of `block_pipeline`."""
        return block_pipeline(target)

    def _units(self, program: TileProgram, target: Target) -> Iterator[TranslationUnit]:
        """Yield units of about `unit_statements` statements; groups and templates get a unit
        each."""
        for tiled in program.kernels:
            check_tiling(tiled)
        names, facts, origins = Names(RESERVED), program.facts, program.origins
        kernels, groups, templates = by_kind(program)
        emitted = [_emitted(k, program, target, names.take(k.kernel.name)) for k in kernels]
        limit = target.heuristics.unit_statements
        shared = [emit_group(k, facts, origins, target, names.take(k.name)) for k in groups]
        whole = [
            emit_template(k, facts, origins, target, names.take(k.kernel.name)) for k in templates
        ]
        yield from batched(self.name, program, emitted, preamble, limit, between="\n\n")
        yield from unit_per_kernel(self.name, "group", shared)
        yield from unit_per_kernel(self.name, "template", whole)

    def refuses_template(self, kernel: TemplateKernel, target: Target) -> Diagnostic | None:
        """Return why this template cannot be emitted, or None."""
        return template_refusal(kernel, target)


def _emitted(
    tiled: TiledKernel, program: TileProgram, target: Target, symbol: str
) -> tuple[KernelSource, str]:
    facts, origins = program.facts, program.origins
    if tiled.contraction is not None:
        return emit_product(tiled, tiled.contraction, facts, origins, target, symbol)
    return emit_kernel(tiled, facts, origins, target, symbol)
