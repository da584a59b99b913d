"""Protocols of the pluggable backends: kernel languages and host languages.

The IR classes are imported for type checking only, so that a process that only loads cached
programs does not import the IR.
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
    """A kernel language. Its functions are pure: equal arguments give identical text."""

    @property
    def name(self) -> str:
        """The name by which `Target.kernel_backend` refers to it."""
        ...

    @property
    def content_hash(self) -> str:
        """A digest that changes whenever the emitted text may change; part of cache keys."""
        ...

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Return why the kernel cannot be emitted for the target, or None if it can."""
        ...

    def emit(
        self,
        kernels: Sequence[Kernel],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Emit the kernels, batched into translation units that compile well in parallel."""
        ...


@runtime_checkable
class TemplateBackend(KernelBackend, Protocol):
    """A kernel language that also emits kernel groups and the templates listed in its target's
    `Capabilities.templates`."""

    def refuses_template(self, kernel: TemplateKernel, target: Target) -> Diagnostic | None:
        """Return why the template cannot be emitted for the target, or None if it can."""
        ...

    def emit(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Emit the kernels, batched as by a `KernelBackend`; each template is a translation unit of
        its own, and each group may be."""
        ...


@runtime_checkable
class TilingBackend(KernelBackend, Protocol):
    """A kernel language that prints Tile IR: `emit` is `tile` followed by `emit_tiled`."""

    def tile(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
        edits: PassEdits = ...,
        tracer: Tracer | None = None,
    ) -> TileProgram:
        """Decide how the kernels run on the target, by a pipeline of passes with `edits` applied.

        The kernels include templates if the backend is also a `TemplateBackend`.
        """
        ...

    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Emit tiled kernels, batched as by `emit`.

        If a configuration becomes part of the text, it is the first candidate of the kernel.
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
        """A digest that changes whenever the emitted text may change; part of cache keys."""
        ...

    def emit(self, program: HostProgram) -> Program:
        """Emit the host program."""
        ...
