"""The C++ kernel language: kernels in, translation units out."""

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from gyrator_codegen import balanced, tile
from gyrator_codegen.passes import vector_pipeline
from gyrator_codegen_cpp.group import emit_group
from gyrator_codegen_cpp.kernel import emit_kernel
from gyrator_codegen_cpp.prelude import Isa, assemble, names_in
from gyrator_codegen_cpp.refusals import refusal, tiling_refusal
from gyrator_ir.content import content_hash
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.passes import NO_EDITS, PassEdits, Tracer
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import Repeat, TiledGroup, TiledKernel, TileProgram

ARCHITECTURES = {"avx512": Isa.AVX512, "avx2": Isa.AVX2, "plain": Isa.PLAIN}
"""Instruction sets by `Target.arch`; others are written for as `plain`."""


@frozen
class CppBackend:
    """Kernels as C++ text with explicit vectors, for CPUs. It implements `KernelBackend`,
    `GroupBackend` and `TilingBackend`."""

    @property
    def name(self) -> str:
        """`c++`."""
        return "c++"

    @property
    def content_hash(self) -> str:
        """A digest of the source of this package, and of what it imports of ours."""
        return content_hash("gyrator_codegen_cpp")

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Say why this kernel can't be written, or None."""
        return refusal(kernel, target)

    def tile(
        self,
        kernels: Sequence[Kernel | KernelGroup],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
        edits: PassEdits = NO_EDITS,
        tracer: Tracer | None = None,
    ) -> TileProgram:
        """Decide how the kernels run, by the passes of `vector_pipeline`."""
        lanes = ARCHITECTURES.get(target.arch, Isa.PLAIN).lanes
        return tile(kernels, facts, vector_pipeline(target, lanes), origins, edits, tracer)

    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Write tiled kernels, in units of about equal size, then each group as a unit.

        Raises:
            UnsupportedError: GY-CPP-004 for a kernel that is tiled for another kind of machine.
        """
        isa = ARCHITECTURES.get(target.arch, Isa.PLAIN)
        facts, origins = program.facts, program.origins
        originals = [k for k in program.kernels if isinstance(k, TiledKernel)]
        groups = [k for k in program.kernels if isinstance(k, TiledGroup)]
        for tiled in (*originals, *(k for group in groups for k in group.kernels)):
            if (why := tiling_refusal(tiled, isa)) is not None:
                raise UnsupportedError(why)
        sources = [emit_kernel(k, facts, origins, isa) for k in originals]
        sizes = [sum(len(s.body) for s in k.kernel.stages) + 4 for k in originals]
        units = []
        heuristics = target.heuristics
        for number, run in enumerate(balanced(sizes, heuristics.unit_statements, heuristics.cores)):
            here = {sources[k].kernel: sources[k] for k in run}
            served = tuple(_served(program, here))
            units.append(_unit(f"unit{number}", [s.text for s in here.values()], served, isa))
        for number, group in enumerate(groups):
            source = emit_group(group, facts, origins, isa)
            units.append(_unit(f"group{number}", [source.text], (source,), isa))
        return tuple(units)

    def emit(
        self,
        kernels: Sequence[Kernel],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write the kernels, in units of about equal size; those that differ only in names share a
        function."""
        return self.emit_tiled(self.tile(kernels, facts, origins, target), target)

    def emit_groups(
        self,
        groups: Sequence[KernelGroup],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write each group as a unit: its kernels, and a function that shares out all of them."""
        return self.emit_tiled(self.tile(groups, facts, origins, target), target)


def _served(program: TileProgram, here: Mapping[str, KernelSource]) -> Iterator[KernelSource]:
    """Yield the kernels that a unit's functions serve, repeats among them."""
    for k in program.kernels:
        if isinstance(k, TiledKernel) and k.kernel.name in here:
            yield here[k.kernel.name]
        elif isinstance(k, Repeat) and k.kernel in here:
            yield evolve(here[k.kernel], kernel=k.name)


def _unit(
    name: str, texts: Sequence[str], served: tuple[KernelSource, ...], isa: Isa
) -> TranslationUnit:
    text = "\n".join(texts)
    return TranslationUnit(name, "c++", assemble(names_in(text), isa) + text, served)
