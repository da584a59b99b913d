"""The Metal kernel language: kernels in, translation units out."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen import Names, TilingLanguage, balanced
from gyrator_codegen.passes import thread_pipeline
from gyrator_codegen_metal.kernel import emit_kernel
from gyrator_codegen_metal.refusals import refusal
from gyrator_codegen_metal.support import RESERVED, preamble
from gyrator_codegen_metal.threads import threads_of
from gyrator_ir.checks import takes
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.passes import Pass
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import Repeat, TiledKernel, TileProgram


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
        names = Names(RESERVED)
        written: dict[str, tuple[list[KernelSource], str]] = {}
        sizes: list[int] = []
        for tiled in program.kernels:
            if isinstance(tiled, Repeat):
                served, _ = written[tiled.kernel]
                served.append(evolve(served[0], kernel=tiled.name))
                continue
            threads = threads_of(tiled)
            assert isinstance(tiled, TiledKernel)
            name = tiled.kernel.name
            symbol = names.take(name)
            source, body = emit_kernel(tiled, threads, program.facts, program.origins, symbol)
            written[name] = [source], body
            sizes.append(sum(len(stage.body) for stage in tiled.kernel.stages) + 4)
        kernels = tuple(written.values())
        units = []
        for number, run in enumerate(balanced(sizes, target.heuristics.unit_statements, 1)):
            text = "\n".join(kernels[k][1] for k in run)
            sources = tuple(source for k in run for source in kernels[k][0])
            units.append(
                TranslationUnit(f"unit{number}", self.name, preamble(text) + text, sources)
            )
        return tuple(units)
