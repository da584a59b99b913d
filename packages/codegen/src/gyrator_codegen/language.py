"""The common base of kernel languages that print Tile IR."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.stage import tile
from gyrator_ir.body.nodes import Bind, Check
from gyrator_ir.checks import takes
from gyrator_ir.content import content_hash
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Launchable
from gyrator_ir.modes import Failure
from gyrator_ir.passes import NO_EDITS, Pass, PassEdits, Tracer
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelCheck, KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import Repeat, TiledGroup, TiledKernel, TiledTemplate, TileProgram


class TilingLanguage(ABC):
    """Base class of a `TilingBackend`. A subclass defines its name, the kernels it refuses, its
    passes and its text."""

    package: ClassVar[str]
    """The package whose source determines the text."""

    @property
    def content_hash(self) -> str:
        """A digest of the source of the package and of the Gyrator packages that it imports."""
        return content_hash(self.package)

    @abstractmethod
    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return the tile passes for a target."""

    @abstractmethod
    def _units(self, program: TileProgram, target: Target) -> Iterable[TranslationUnit]:
        """Return the units of a tiled program; raise UnsupportedError for tiling decisions that the
        language cannot express."""

    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Emit tiled kernels, batched as by `emit`.

        Raises:
            UnsupportedError: for tiling decisions that the language cannot express.
        """
        takes("emit_tiled", program, TileProgram)
        takes("emit_tiled", target, Target)
        return tuple(self._units(program, target))

    def tile(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
        edits: PassEdits = NO_EDITS,
        tracer: Tracer | None = None,
    ) -> TileProgram:
        """Decide how the kernels run, by the passes of the language with `edits` applied."""
        return tile(kernels, facts, self.passes(target), origins, edits, tracer)

    def emit(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Emit kernels: `tile` followed by `emit_tiled`."""
        return self.emit_tiled(self.tile(kernels, facts, origins, target), target)


def by_kind(
    program: TileProgram,
) -> tuple[list[TiledKernel], list[TiledGroup], list[TiledTemplate]]:
    """Return a program's kernels with stages, its groups, and its templates."""
    kernels = [k for k in program.kernels if isinstance(k, TiledKernel)]
    groups = [k for k in program.kernels if isinstance(k, TiledGroup)]
    templates = [k for k in program.kernels if isinstance(k, TiledTemplate)]
    return kernels, groups, templates


def sources_with_repeats(
    program: TileProgram, sources: Mapping[str, KernelSource]
) -> tuple[KernelSource, ...]:
    """Return the sources of a program's kernels, repeats and groups. `sources` has those of the
    emitted kernels and groups by name."""
    kernels = []
    for k in program.kernels:
        if isinstance(k, TiledKernel) and k.kernel.name in sources:
            kernels.append(sources[k.kernel.name])
        elif isinstance(k, Repeat) and k.kernel in sources:
            kernels.append(evolve(sources[k.kernel], kernel=k.name))
        elif isinstance(k, TiledGroup) and k.name in sources:
            kernels.append(sources[k.name])
    return tuple(kernels)


def batched(
    language: str,
    program: TileProgram,
    written: Sequence[tuple[KernelSource, str]],
    preamble: Callable[[str], str],
    limit: int,
    workers: int = 1,
    between: str = "\n",
) -> Iterator[TranslationUnit]:
    """Yield translation units of about equal size.

    Args:
        language: the name of the kernel language.
        program: the kernels.
        written: the source of each emitted kernel, then of each emitted group, and its functions
            but those that `preamble` returns.
        preamble: returns what must precede a text.
        limit: statements per unit.
        workers: compiler processes that may run in parallel.
        between: text between two functions.
    """
    statements: dict[str, int] = {}
    groups: set[str] = set()
    for k in program.kernels:
        if isinstance(k, TiledKernel):
            statements[k.kernel.name] = _statements(k)
        elif isinstance(k, TiledGroup):
            statements[k.name] = sum(map(_statements, k.kernels))
            groups.add(k.name)
    sizes = [statements[source.kernel] + 4 for source, _ in written]
    last = sum(source.kernel in groups for source, _ in written)
    lengths = [len(source.text) for source, _ in written]  # closer to the time of a build
    count = units_needed(sizes, limit, workers, last)
    for number, run in enumerate(balanced(lengths, count)):
        sources = {written[k][0].kernel: written[k][0] for k in run}
        text = between.join(written[k][1] for k in run)
        kernels_and_repeats = sources_with_repeats(program, sources)
        yield TranslationUnit(f"unit{number}", language, preamble(text) + text, kernels_and_repeats)


def _statements(tiled: TiledKernel) -> int:
    return sum(len(stage.body) for stage in tiled.kernel.stages)


def unit_per_kernel(
    language: str,
    prefix: str,
    sources: Iterable[KernelSource],
    preamble: Callable[[str], str] = lambda _: "",
) -> Iterator[TranslationUnit]:
    """Yield translation units with one kernel each."""
    for number, source in enumerate(sources):
        text = preamble(source.text) + source.text
        yield TranslationUnit(f"{prefix}{number}", language, text, (source,))


def index_check(code: int, check: Check) -> KernelCheck:
    """Return the error of the code by which a kernel reports an out-of-bounds index, or a division
    by zero."""
    if check is Check.DIVISION:
        return KernelCheck(code, Failure.RUNTIME, "ZeroDivisionError: integer division by zero")
    failure = Failure.RUNTIME if check is Check.RUNTIME else Failure.INDEX
    message = "index out of bounds: an index is outside [-n, n) for a dimension of size n"
    return KernelCheck(code, failure, message)


def index_checks(kernel: Kernel) -> dict[Check, KernelCheck]:
    """Return the errors of the codes by which a kernel reports out-of-bounds indices, by kind of
    check."""
    checks = (s.check for s in kernel.statements if isinstance(s, Bind) and s.check)
    kinds = dict.fromkeys(checks)
    return {kind: index_check(code, kind) for code, kind in enumerate(kinds, 1)}


def units_needed(sizes: Sequence[int], limit: int, workers: int, separable: int = 0) -> int:
    """Return the number of units for texts of these sizes.

    There are enough units for an average size of at most `limit`, and at least `workers` if each
    of those gets two or more texts on average. The last `separable` texts add a unit each, as long
    as there are not more units than workers.
    """
    total, first = sum(sizes), len(sizes) - separable
    needed = -(-total // max(limit, 1))
    count = max(1, -(-sum(sizes[:first]) // max(limit, 1))) if first else 0
    if first >= 2 * workers:
        count = max(count, workers)
    count = min(count, first) + separable
    return min(count, max(needed, workers)) if separable else count


def balanced(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Group the indices of `sizes` into at most `count` consecutive runs of about equal total
    size."""
    groups: list[list[int]] = [[] for _ in range(count)]
    before, total = 0, max(sum(sizes), 1)
    for index, size in enumerate(sizes):
        groups[min(count - 1, (before + size // 2) * count // total)].append(index)
        before += size
    return [group for group in groups if group]
