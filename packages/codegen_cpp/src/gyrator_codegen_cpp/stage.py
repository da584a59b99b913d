"""The C++ kernel language: kernels in, translation units out."""

from typing import ClassVar

from attrs import frozen

from gyrator_codegen import TilingLanguage, batched
from gyrator_codegen.passes import vector_pipeline
from gyrator_codegen.passes.bind_choices import BindChoices
from gyrator_codegen_cpp.flex_attention import emit_flex, template_refusal
from gyrator_codegen_cpp.kernel import emit_group, emit_kernel
from gyrator_codegen_cpp.prelude import Isa, assemble, names_in
from gyrator_codegen_cpp.refusals import no_templates, refusal, tiling_refusal
from gyrator_ir.checks import takes
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.kernel.nodes import Kernel, TemplateKernel
from gyrator_ir.passes import Pass
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledGroup, TiledKernel, TiledTemplate, TileProgram

__all__ = ["CppBackend"]

ARCHITECTURES = {
    "avx512": Isa.AVX512,
    "avx2": Isa.AVX2,
    "neon": Isa.NEON,
    "plain": Isa.PLAIN,
}
"""Instruction sets by `Target.arch`; others are written for as `plain`."""


@frozen
class CppBackend(TilingLanguage):
    """Kernels as C++ text with explicit vectors, for CPUs: a `TemplateBackend` and a
    `TilingBackend`.

    Kernels that differ only in names share a function. The unit of a group holds its kernels, and a
    function that shares out all of them.
    """

    package: ClassVar[str] = "gyrator_codegen_cpp"

    @property
    def name(self) -> str:
        """`c++`."""
        return "c++"

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Say why this kernel can't be written, or None."""
        return refusal(kernel, target)

    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return those of `vector_pipeline`."""
        return vector_pipeline(target, ARCHITECTURES.get(target.arch, Isa.PLAIN).lanes)

    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Write tiled kernels, in units of about equal size, then each group and template as a
        unit; choices take the values of the first candidate.

        Raises:
            UnsupportedError: GY-CPP-004 for a kernel that is tiled for another kind of machine.
        """
        takes("emit_tiled", program, TileProgram)
        takes("emit_tiled", target, Target)
        isa = ARCHITECTURES.get(target.arch, Isa.PLAIN)
        origins = program.origins
        program = BindChoices().run(program)
        originals = [k for k in program.kernels if isinstance(k, TiledKernel)]
        groups = [k for k in program.kernels if isinstance(k, TiledGroup)]
        for tiled in (*originals, *(k for group in groups for k in group.kernels)):
            if (why := tiling_refusal(tiled, isa)) is not None:
                raise UnsupportedError(why)
        templates = [k for k in program.kernels if isinstance(k, TiledTemplate)]
        for template in templates:
            if template_refusal(template.kernel, target) is not None:
                raise UnsupportedError(no_templates(template))
        written = [(s, s.text) for s in (emit_kernel(k, origins, isa) for k in originals)]
        limit, cores = target.heuristics.unit_statements, target.heuristics.cores
        units = [_unit(*u, isa) for u in batched(program, written, limit, cores)]
        for number, group in enumerate(groups):
            source = emit_group(group, origins, isa)
            units.append(_unit(f"group{number}", source.text, (source,), isa))
        for number, template in enumerate(templates):
            source = emit_flex(template.kernel, program.facts, origins, target, isa)
            units.append(_unit(f"template{number}", source.text, (source,), isa))
        return tuple(units)

    def refuses_template(self, kernel: TemplateKernel, target: Target) -> Diagnostic | None:
        """Say why this template can't be written, or None."""
        return template_refusal(kernel, target)


def _unit(name: str, text: str, sources: tuple[KernelSource, ...], isa: Isa) -> TranslationUnit:
    return TranslationUnit(name, "c++", assemble(names_in(text), isa) + text, sources)
