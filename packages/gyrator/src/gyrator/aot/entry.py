"""What is compiled into a package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


@frozen
class EntryPoint:
    """A function of a package: a module with example inputs, or what `torch.export` made of it."""

    program: torch.nn.Module | ExportedProgram
    inputs: Sequence[Any] | None = None
    """Arguments by place; not needed for an exported program."""
    kwargs: Mapping[str, Any] | None = None
    """Arguments by name."""
    dynamic_shapes: Any = None
    """As `torch.export.export` takes them."""
