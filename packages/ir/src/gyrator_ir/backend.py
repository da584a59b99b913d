"""Protocols of the exchangeable parts: kernel languages, host languages, targets.

The classes that they speak of are imported for type checkers alone: what only loads stored programs
needs no IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from gyrator_ir.diagnostics import Diagnostic
    from gyrator_ir.expr import ShapeFacts
    from gyrator_ir.host.nodes import HostProgram
    from gyrator_ir.kernel.nodes import Kernel, Launchable, TemplateKernel
    from gyrator_ir.passes import PassEdits, Tracer
    from gyrator_ir.provenance import Origin
    from gyrator_ir.source import Program, TranslationUnit
    from gyrator_ir.target import Target
    from gyrator_ir.tile.nodes import TileProgram


class KernelBackend(Protocol):
    """A language for kernels. Pure: the same arguments give the same bytes."""

    @property
    def name(self) -> str:
        """What a `Target.kernel_backend` says."""
        ...

    @property
    def content_hash(self) -> str:
        """Changes whenever the emitted text may change; part of cache keys."""
        ...

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Say why this kernel can't be emitted for the target, or None."""
        ...

    def emit(
        self,
        kernels: Sequence[Kernel],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write the kernels, batched into as few units as compile well in parallel."""
        ...


@runtime_checkable
class TemplateBackend(KernelBackend, Protocol):
    """A language for kernels that writes whatever a launch runs: groups too, and templates, those
    of its target's `Capabilities.templates`."""

    def refuses_template(self, kernel: TemplateKernel, target: Target) -> Diagnostic | None:
        """Say why this template can't be emitted for the target, or None."""
        ...

    def emit(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write the kernels, batched as those of a `KernelBackend`; groups and templates in units
        of their own."""
        ...


@runtime_checkable
class TilingBackend(KernelBackend, Protocol):
    """A language for kernels that prints Tile IR: `emit` is `tile`, then `emit_tiled`."""

    def tile(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
        edits: PassEdits = ...,
        tracer: Tracer | None = None,
    ) -> TileProgram:
        """Decide how the kernels run on the target, by passes that a user may have edited.

        Templates are among the kernels where this is a `TemplateBackend` too.
        """
        ...

    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Write tiled kernels, batched as `emit` does.

        Only first candidates count, where a text has them in it.
        """
        ...


class WrapperBackend(Protocol):
    """A host language: a total function over the Wrapper IR's instructions."""

    @property
    def name(self) -> str:
        """`python`, `cpp` or `fx`, or a vendor's own."""
        ...

    @property
    def content_hash(self) -> str:
        """Changes whenever the emitted text may change; part of cache keys."""
        ...

    def emit(self, program: HostProgram) -> Program:
        """Write the host program."""
        ...
