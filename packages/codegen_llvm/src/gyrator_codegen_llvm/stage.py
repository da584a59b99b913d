"""The LLVM kernel language: from kernels to translation units."""

from collections.abc import Iterator
from itertools import count
from typing import ClassVar

from gyrator_codegen import TilingLanguage, batched
from gyrator_codegen.passes.cores.plain_divisions import PlainDivisions
from gyrator_codegen.passes.cores.reductions.accurate_sums import AccurateSums
from gyrator_codegen.passes.cores.strips import Strips
from gyrator_codegen.passes.merge_repeats import MergeRepeats
from gyrator_codegen.refusals import Refusals
from gyrator_codegen_llvm.kernel import emit_kernel
from gyrator_codegen_llvm.refusals import TILING, refusals, refused_tiling
from gyrator_codegen_llvm.support import preamble
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.passes import Pass
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel, TileProgram


@frozen
class LlvmBackend(TilingLanguage):
    """Emits kernels as textual LLVM IR: a `TilingBackend`.

    Kernels are scalar loops on one thread, which LLVM vectorises. Those that differ only in names
    share a function.
    """

    package: ClassVar[str] = "gyrator_codegen_llvm"
    name: ClassVar[str] = "llvm"

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Return why this kernel cannot be emitted, or None."""
        return next(refusals(kernel, target), None)

    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return the tiling passes."""
        return (MergeRepeats(), Strips(), AccurateSums(), PlainDivisions())

    def _units(self, program: TileProgram, target: Target) -> Iterator[TranslationUnit]:
        """Return units of about `unit_statements` statements each."""
        kernels = [k for k in program.kernels if isinstance(k, TiledKernel)]
        for k in kernels:
            if (reason := refused_tiling(k)) is not None:
                refused = Refusals(k.kernel, "LLVM")
                raise UnsupportedError(refused.of(TILING, reason, help="tile it with `passes`"))
        numbers = count(2)
        sources = [emit_kernel(k, program.origins, target.arch, numbers) for k in kernels]
        written = [(s, s.text) for s in sources]
        limit = target.heuristics.unit_statements
        return batched(self.name, program, written, preamble, limit)
