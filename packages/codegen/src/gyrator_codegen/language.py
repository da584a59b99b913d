"""What kernel languages that print Tile IR have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.batches import balanced
from gyrator_codegen.stage import tile
from gyrator_ir.body.nodes import Bind, Check
from gyrator_ir.content import content_hash
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Launchable
from gyrator_ir.passes import NO_EDITS, Pass, PassEdits, Tracer
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Failure, KernelCheck, KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import Repeat, TiledKernel, TileProgram


class TilingLanguage(ABC):
    """A `TilingBackend` but for its name, what it refuses, its passes and its text."""

    package: ClassVar[str]
    """The package whose source decides the text."""

    @property
    def content_hash(self) -> str:
        """A digest of the source of the package, and of what it imports of ours."""
        return content_hash(self.package)

    @abstractmethod
    def passes(self, target: Target) -> tuple[Pass[TileProgram], ...]:
        """Return what decides how kernels run."""

    @abstractmethod
    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Write tiled kernels, batched as `emit` does."""

    def tile(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
        edits: PassEdits = NO_EDITS,
        tracer: Tracer | None = None,
    ) -> TileProgram:
        """Decide how the kernels run, by the language's passes."""
        return tile(kernels, facts, self.passes(target), origins, edits, tracer)

    def emit(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write whatever launches run: `tile`, then `emit_tiled`."""
        return self.emit_tiled(self.tile(kernels, facts, origins, target), target)


def served(program: TileProgram, sources: Mapping[str, KernelSource]) -> tuple[KernelSource, ...]:
    """Return the sources of a program's kernels, repeats included, of those written, by kernel
    name."""
    found = []
    for k in program.kernels:
        if isinstance(k, TiledKernel) and k.kernel.name in sources:
            found.append(sources[k.kernel.name])
        elif isinstance(k, Repeat) and k.kernel in sources:
            found.append(evolve(sources[k.kernel], kernel=k.name))
    return tuple(found)


def batched(
    program: TileProgram, written: Sequence[tuple[KernelSource, str]], limit: int, workers: int
) -> Iterator[tuple[str, str, tuple[KernelSource, ...]]]:
    """Yield the names, texts and kernels of units of about equal size. What is written of kernels
    of a program is given as their sources, with the text of their functions alone."""
    kernels = (k.kernel for k in program.kernels if isinstance(k, TiledKernel))
    statements = {k.name: sum(len(stage.body) for stage in k.stages) for k in kernels}
    sizes = [statements[source.kernel] + 4 for source, _ in written]
    for number, run in enumerate(balanced(sizes, limit, workers)):
        here = {written[k][0].kernel: written[k][0] for k in run}
        yield f"unit{number}", "\n".join(written[k][1] for k in run), served(program, here)


def index_check(code: int, check: Check) -> KernelCheck:
    """Return the meaning of the code by which a kernel reports an index out of bounds."""
    failure = Failure.RUNTIME if check is Check.RUNTIME else Failure.INDEX
    said = "index out of bounds: an index is outside [-n, n) for a dimension of size n"
    return KernelCheck(code, failure, said)


def index_checks(kernel: Kernel) -> dict[Check, KernelCheck]:
    """Return the meanings of the codes by which a kernel reports indices out of bounds, by kind of
    check."""
    body = (s for stage in kernel.stages for s in stage.body)
    kinds = dict.fromkeys(s.check for s in body if isinstance(s, Bind) and s.check)
    return {kind: index_check(code, kind) for code, kind in enumerate(kinds, 1)}
