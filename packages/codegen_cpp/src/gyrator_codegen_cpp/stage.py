"""The C++ kernel language: from kernels to translation units."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from gyrator_codegen import TilingLanguage, batched
from gyrator_codegen.language import by_kind, unit_per_kernel
from gyrator_codegen.passes import vector_pipeline
from gyrator_codegen.passes.bind_choices import BindChoices
from gyrator_codegen_cpp.flex_attention import emit_flex, template_refusal, tiled_template_refusal
from gyrator_codegen_cpp.images import IMAGE_KINDS, emit_convolutions
from gyrator_codegen_cpp.kernel import Functions, emit_group, emit_kernel, functions_for
from gyrator_codegen_cpp.prelude import Isa, assemble, names_in
from gyrator_codegen_cpp.refusals import refusals, tiling_refusal
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.kernel.nodes import Kernel, TemplateKernel
from gyrator_ir.passes import Pass
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram

__all__ = ["CppBackend"]


@frozen
class CppBackend(TilingLanguage):
    """Emits kernels as explicitly vectorised C++ source for CPUs: a `TemplateBackend` and a
    `TilingBackend`.

    Kernels that differ only in names share a function, and so do members of the groups of a unit. A
    group is its kernels, and a function that distributes their work among threads.
    """

    package: ClassVar[str] = "gyrator_codegen_cpp"
    name: ClassVar[str] = "c++"

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Return why this kernel cannot be emitted, or None."""
        return next(refusals(kernel, target), None)

    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return the passes of `vector_pipeline`."""
        return vector_pipeline(target, Isa.of(target.arch).lanes)

    def _units(self, program: TileProgram, target: Target) -> Iterator[TranslationUnit]:
        """Yield each template as a unit, and kernels and groups in units of about equal size, one
        for each core that templates leave. Choices are bound to the first candidate."""
        isa, origins = Isa.of(target.arch), program.origins
        program = BindChoices().run(program)
        kernels, groups, templates = by_kind(program)
        members = (k for g in groups for k in g.kernels)
        reasons = [tiling_refusal(k, isa) for k in (*kernels, *members)]
        for why in (*reasons, *(tiled_template_refusal(t, target) for t in templates)):
            if why is not None:
                raise UnsupportedError(why)
        shared: Functions = {}
        written = [(s, s.text) for s in (emit_kernel(k, origins, isa) for k in kernels)]
        written += [emit_group(k, origins, isa, shared) for k in groups]
        limit, cores = target.heuristics.unit_statements, target.heuristics.cores
        convolutions = [t.kernel for t in templates if t.kernel.kind in IMAGE_KINDS]
        flexible = (t for t in templates if t.kernel.kind not in IMAGE_KINDS)
        whole = [emit_flex(t, program.facts, origins, target, isa) for t in flexible]
        cores_left = _share(cores, [t for _, t in written], [s.text for s in whole])

        def preamble(text: str) -> str:
            functions = functions_for(text, shared)
            return assemble(names_in(functions + text), isa) + functions

        # Those that take longest to build are first: builds start in the order of units.
        yield from unit_per_kernel(self.name, "template", whole, preamble)
        yield from batched(self.name, program, written, preamble, limit, cores_left)
        for number, unit in enumerate(emit_convolutions(convolutions, cores, isa)):
            text = "".join(s.text for s in unit)
            name = f"convolutions{number}"
            yield TranslationUnit(name, self.name, preamble(text) + text, tuple(unit))

    def refuses_template(self, kernel: TemplateKernel, target: Target) -> Diagnostic | None:
        """Return why this template cannot be emitted, or None."""
        return template_refusal(kernel, target)


def _share(workers: int, texts: Iterable[str], others: Iterable[str]) -> int:
    """Return how many of some workers, at least one, `texts` occupy beside `others`."""
    own, rest = sum(map(len, texts)), sum(map(len, others))
    return max(1, round(workers * own / (own + rest))) if rest else workers
