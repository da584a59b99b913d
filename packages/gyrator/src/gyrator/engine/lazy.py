"""Gyrator's backends, imported when their text is first requested."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from attrs import field

from gyrator_ir.backend import TemplateBackend, TilingBackend, WrapperBackend
from gyrator_ir.content import content_hash
from gyrator_ir.define import frozen
from gyrator_ir.passes import NO_EDITS, PassEdits, Tracer

if TYPE_CHECKING:
    from gyrator_ir.diagnostics import Diagnostic
    from gyrator_ir.expr import ShapeFacts
    from gyrator_ir.host.nodes import HostProgram
    from gyrator_ir.kernel.nodes import Kernel, Launchable, TemplateKernel
    from gyrator_ir.provenance import Origin
    from gyrator_ir.source import Program, TranslationUnit
    from gyrator_ir.target import Target
    from gyrator_ir.tile.nodes import TileProgram


Backend = TypeVar("Backend")


class _Language(TemplateBackend, TilingBackend, Protocol):
    """A kernel language, which may have templates."""


@frozen
class Shipped(Generic[Backend]):
    """A backend of a sibling package; a warm start needs only its name and hash."""

    name: str
    module: str
    attribute: str
    package: str = field(kw_only=True)
    """The package that generates the text: the top-level package of `module`, unless that only
    delegates."""

    @package.default
    def _top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def content_hash(self) -> str:
        """A digest of the package's source, including the sibling packages that it imports."""
        return content_hash(self.package)

    def _backend(self) -> Backend:
        backend: Backend = getattr(import_module(self.module), self.attribute)()
        return backend


@frozen
class ShippedKernels(Shipped[_Language]):
    """A kernel language."""

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Return why a kernel cannot be emitted for the target, or None."""
        return self._backend().refuses(kernel, target)

    def emit(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Emit the kernels."""
        return self._backend().emit(kernels, facts, origins, target)

    def tile(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
        edits: PassEdits = NO_EDITS,
        tracer: Tracer | None = None,
    ) -> TileProgram:
        """Tile the kernels."""
        return self._backend().tile(kernels, facts, origins, target, edits, tracer)

    def emit_tiled(self, program: TileProgram, target: Target) -> tuple[TranslationUnit, ...]:
        """Emit tiled kernels."""
        return self._backend().emit_tiled(program, target)


@frozen
class ShippedTemplates(ShippedKernels):
    """A kernel language with templates."""

    def refuses_template(self, kernel: TemplateKernel, target: Target) -> Diagnostic | None:
        """Return why a template cannot be emitted for the target, or None."""
        return self._backend().refuses_template(kernel, target)


@frozen
class ShippedWrapper(Shipped[WrapperBackend]):
    """A host language."""

    def emit(self, program: HostProgram) -> Program:
        """Emit the host program."""
        return self._backend().emit(program)
