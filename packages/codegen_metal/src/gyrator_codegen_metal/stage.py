"""The Metal kernel language: from kernels to translation units."""

from collections.abc import Iterator
from typing import ClassVar

from gyrator_codegen import Names, TilingLanguage, batched
from gyrator_codegen.passes import thread_pipeline
from gyrator_codegen_metal.kernel import emit_kernel
from gyrator_codegen_metal.refusals import refusals
from gyrator_codegen_metal.support import RESERVED, preamble
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.passes import Pass
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import Repeat, TileProgram


@frozen
class MetalBackend(TilingLanguage):
    """Emits kernels in the Metal Shading Language, one function each: a `TilingBackend`.

    `KernelSource.grid` is the number of threadgroups, and its only configuration the number of
    threads in each. Kernels that differ only in names share a function.
    """

    package: ClassVar[str] = "gyrator_codegen_metal"
    name: ClassVar[str] = "metal"

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Return why this kernel cannot be emitted, or None."""
        return next(refusals(kernel, target), None)

    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return the passes of `thread_pipeline`."""
        return thread_pipeline(target)

    def _units(self, program: TileProgram, target: Target) -> Iterator[TranslationUnit]:
        """Return units of about `unit_statements` statements each."""
        names = Names(RESERVED)
        kernels = (k for k in program.kernels if not isinstance(k, Repeat))
        written = [emit_kernel(k, program.origins, names) for k in kernels]
        limit = target.heuristics.unit_statements
        return batched(self.name, program, written, preamble, limit)
