"""The entry points of a package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gyrator_ir.define import frozen

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


@frozen
class EntryPoint:
    """A function of a package: a module with example inputs, or an exported program."""

    program: torch.nn.Module | ExportedProgram
    inputs: Sequence[Any] | None = None
    """Positional example arguments; not needed for an exported program."""
    kwargs: Mapping[str, Any] | None = None
    """Example arguments by name."""
    dynamic_shapes: Any = None
    """The dynamic sizes, in the form of `torch.export.export`."""
