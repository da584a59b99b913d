"""Gyrator's backends, imported when their text is first requested."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from attrs import field

from gyrator_ir.backend import TemplateBackend, TilingBackend, WrapperBackend
from gyrator_ir.content import content_hash
from gyrator_ir.define import frozen

if TYPE_CHECKING:
    from gyrator_ir.diagnostics import Diagnostic
    from gyrator_ir.host.nodes import HostProgram
    from gyrator_ir.source import Program, TranslationUnit
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
    """A kernel language, whose methods have the arguments of those of a `TilingBackend`."""

    def refuses(self, *args: Any, **kwargs: Any) -> Diagnostic | None:
        """Return why a kernel cannot be emitted, or None."""
        return self._backend().refuses(*args, **kwargs)

    def emit(self, *args: Any, **kwargs: Any) -> tuple[TranslationUnit, ...]:
        """Emit kernels."""
        return self._backend().emit(*args, **kwargs)

    def tile(self, *args: Any, **kwargs: Any) -> TileProgram:
        """Tile kernels."""
        return self._backend().tile(*args, **kwargs)

    def emit_tiled(self, *args: Any, **kwargs: Any) -> tuple[TranslationUnit, ...]:
        """Emit tiled kernels."""
        return self._backend().emit_tiled(*args, **kwargs)


@frozen
class ShippedTemplates(ShippedKernels):
    """A kernel language with templates: also a `TemplateBackend`."""

    def refuses_template(self, *args: Any, **kwargs: Any) -> Diagnostic | None:
        """Return why a template cannot be emitted, or None."""
        return self._backend().refuses_template(*args, **kwargs)


@frozen
class ShippedWrapper(Shipped[WrapperBackend]):
    """A host language."""

    def emit(self, program: HostProgram) -> Program:
        """Emit the host program."""
        return self._backend().emit(program)
