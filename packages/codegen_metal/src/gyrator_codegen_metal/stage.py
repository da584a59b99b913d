"""The Metal kernel language: kernels in, translation units out."""

from typing import ClassVar

from attrs import frozen

from gyrator_codegen import Names, TilingLanguage, batched
from gyrator_codegen.passes import thread_pipeline
from gyrator_codegen_metal.kernel import emit_kernel
from gyrator_codegen_metal.refusals import refusal
from gyrator_codegen_metal.support import RESERVED, preamble
from gyrator_ir.checks import takes
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.passes import Pass
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import Repeat, TileProgram


@frozen
class MetalBackend(TilingLanguage):
    """Kernels as text in the Metal shading language, one function each: a `TilingBackend`.

    `KernelSource.grid` says how many threadgroups run, its one configuration how many threads each
    has. Kernels that differ only in names share a function.
    """

    package: ClassVar[str] = "gyrator_codegen_metal"

    @property
    def name(self) -> str:
        """`metal`."""
        return "metal"

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Say why this kernel can't be written, or None."""
        return refusal(kernel, target)

    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return those of `thread_pipeline`."""
        return thread_pipeline(target)

    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Write tiled kernels, in units of about `unit_statements`.

        Raises:
            UnsupportedError: GY-METAL-001 for decisions that Metal kernels can't express.
        """
        takes("emit_tiled", program, TileProgram)
        takes("emit_tiled", target, Target)
        names = Names(RESERVED)
        kernels = (k for k in program.kernels if not isinstance(k, Repeat))
        written = [emit_kernel(k, program.origins, names) for k in kernels]
        limit = target.heuristics.unit_statements
        return tuple(
            TranslationUnit(name, self.name, preamble(text) + text, sources)
            for name, text, sources in batched(program, written, limit, 1)
        )
