"""The C++ kernel language: kernels in, translation units out."""

from collections.abc import Sequence

from attrs import evolve, frozen

from gyrator_codegen_cpp.group import emit_group
from gyrator_codegen_cpp.kernel import emit_kernel
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.refusals import refusal
from gyrator_codegen_cpp.repeats import firsts
from gyrator_codegen_cpp.support import preamble
from gyrator_ir.content import content_hash
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.provenance import Origin
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target

ARCHITECTURES = {"avx512": Isa.AVX512, "avx2": Isa.AVX2, "plain": Isa.PLAIN}
"""Instruction sets by `Target.arch`; others are written for as `plain`."""


@frozen
class CppBackend:
    """Kernels as C++ text with explicit vectors, for CPUs. It implements `KernelBackend`."""

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

    def emit(
        self,
        kernels: Sequence[Kernel],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write the kernels, in units of about equal size; those that differ only in names share a
        function."""
        isa = ARCHITECTURES.get(target.arch, Isa.PLAIN)
        same = firsts(kernels)
        originals = [k for k, first in enumerate(same) if first == k]
        sources = {
            k: emit_kernel(kernels[k], facts, origins, isa, target.heuristics) for k in originals
        }
        sizes = [sum(len(s.body) for s in kernels[k].stages) + 4 for k in originals]
        units = []
        groups = balanced(sizes, target.heuristics.unit_statements, target.heuristics.cores)
        for number, group in enumerate(groups):
            here = [originals[k] for k in group]
            text = "\n".join(sources[k].text for k in here)
            served = tuple(
                evolve(sources[first], kernel=kernels[k].name)
                for k, first in enumerate(same)
                if first in here
            )
            text = preamble(text, isa) + text
            units.append(TranslationUnit(f"unit{number}", "c++", text, served))
        return tuple(units)

    def emit_groups(
        self,
        groups: Sequence[KernelGroup],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write each group as a unit: its kernels, and a function that shares out all of them."""
        isa = ARCHITECTURES.get(target.arch, Isa.PLAIN)
        units = []
        for number, group in enumerate(groups):
            source = emit_group(group, facts, origins, isa, target.heuristics)
            text = preamble(source.text, isa) + source.text
            units.append(TranslationUnit(f"group{number}", "c++", text, (source,)))
        return tuple(units)


def balanced(sizes: Sequence[int], limit: int, workers: int) -> list[list[int]]:
    """Group 0..len(sizes) into consecutive runs of about equal total size.

    There are as many groups as `limit` demands, and at least `workers` where each gets several.
    """
    if not sizes:
        return []
    total = sum(sizes)
    count = max(1, -(-total // max(limit, 1)))
    if len(sizes) >= 2 * workers:
        count = max(count, workers)
    count = min(count, len(sizes))
    groups: list[list[int]] = [[] for _ in range(count)]
    done = 0
    for number, size in enumerate(sizes):
        groups[min(count - 1, (done + size // 2) * count // max(total, 1))].append(number)
        done += size
    return [group for group in groups if group]
