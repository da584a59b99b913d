"""The Halide kernel language: from kernels to translation units."""

import re
from collections.abc import Iterator
from functools import cache, partial
from importlib.resources import files
from keyword import kwlist
from typing import ClassVar

from gyrator_codegen import TilingLanguage, Writer, sources_with_repeats
from gyrator_codegen.passes.blocks.index_width import IndexWidth
from gyrator_codegen.passes.cores.block_points import BlockPoints
from gyrator_codegen.passes.cores.reductions.column_reductions import ColumnReductions
from gyrator_codegen.passes.cores.reductions.unroll_reductions import UnrollReductions
from gyrator_codegen.passes.cores.share_threads import ShareThreads
from gyrator_codegen.passes.cores.vectorize import Vectorize
from gyrator_codegen.passes.merge_repeats import MergeRepeats
from gyrator_codegen.passes.threads.map_threads import MapThreads
from gyrator_codegen_halide.entry import checks_of, write_entry
from gyrator_codegen_halide.kernel import KernelText
from gyrator_codegen_halide.refusals import refusals
from gyrator_codegen_halide.values import Scheduling
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.passes import Pass
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel, TileProgram

LANES = {"avx512": 16, "avx2": 8}
"""Number of 32-bit elements in a vector by `Target.arch`."""

TOO_MUCH = "GY-HALIDE-006"
"""A compilation failed, or exceeded its memory or time limit."""


@frozen
class HalideBackend(TilingLanguage):
    """Emits kernels as Halide algorithms and schedules: a `TilingBackend`. Kernels that differ only
    in names share a function."""

    package: ClassVar[str] = "gyrator_codegen_halide"

    blocks: ClassVar[bool] = False

    name: str = "halide"
    autoscheduler: str = ""
    """`Mullapudi2016`, `Adams2019` or `Li2018`: a Halide autoscheduler to use instead of the tile
    loops."""

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Return why this kernel cannot be emitted, or None."""
        return next(refusals(kernel, target, self.scheduling), None)

    @property
    def scheduling(self) -> Scheduling:
        """The source of schedules."""
        return Scheduling(self.autoscheduler, self.blocks)

    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return the tiling passes."""
        numbers = target.heuristics
        return (
            MergeRepeats(),
            Vectorize(LANES.get(target.arch, 4)),
            ColumnReductions(numbers.cores),
            BlockPoints(numbers.cores),
            UnrollReductions(),
            ShareThreads(numbers.cores, numbers.parallel_grain),
            IndexWidth(),
        )

    def _units(self, program: TileProgram, target: Target) -> Iterator[TranslationUnit]:
        """Return one unit per kernel, because Halide cannot link modules with strict arithmetic."""
        kernels = (k for k in program.kernels if isinstance(k, TiledKernel))
        return (_unit(n, k, program, target, self.scheduling) for n, k in enumerate(kernels))


@frozen
class HalideCudaBackend(HalideBackend):
    """The Halide backend for CUDA: grid loops become blocks, and the elements of their steps
    threads."""

    blocks: ClassVar[bool] = True

    name: str = "halide-cuda"

    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return the tiling passes. A thread does a whole reduction, however long."""
        return (MergeRepeats(), MapThreads(serial=1 << 62), IndexWidth())


MULLAPUDI = partial(HalideBackend, "halide-mullapudi2016", "Mullapudi2016")
ADAMS = partial(HalideBackend, "halide-adams2019", "Adams2019")
LI = partial(HalideBackend, "halide-li2018", "Li2018")


@cache
def _prelude(name: str) -> str:
    return files("gyrator_codegen_halide.prelude").joinpath(name).read_text("utf-8")


@cache
def _reserved() -> frozenset[str]:
    text = _prelude("ops.txt") + _prelude("kernels.txt")
    words = re.findall(r"^(?:def |class )?(\w+)", text, re.MULTILINE)
    names = "hl os resource sys traceback codes thread autoscheduler"
    return frozenset((*words, *kwlist, *names.split()))


def _unit(
    number: int, tiled: TiledKernel, program: TileProgram, target: Target, how: Scheduling
) -> TranslationUnit:
    """Return a text that is both a Python script and a C++ source that skips the script."""
    script, entry = Writer("    "), Writer()
    symbol = f"gy_k_{tiled.kernel.name}"
    text = KernelText(tiled, program.facts, how, script, _reserved())
    text.write(symbol)
    write_entry(text, symbol, entry)
    parts = (
        "#if 0\n",
        _prelude("ops.txt"),
        _prelude("kernels.txt"),
        f'TARGET = target("{target.arch}", {how.blocks})\n',
        script.text,
        f'write({symbol}, {how.autoscheduler or None!r}, sys.argv[1], "{TOO_MUCH}")\n',
        "r'''\n#endif\n",
        _prelude("entry.h"),
        entry.text,
        "#if 0\n'''\n#endif\n",
    )
    source = KernelSource(tiled.kernel.name, symbol, script.text, checks=checks_of(text))
    sources = sources_with_repeats(program, {source.kernel: source})
    return TranslationUnit(f"unit{number}", "halide", "".join(parts), sources)
