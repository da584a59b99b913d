"""Interfaces of compiled ATen graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

from torch._dynamo import disable

from gyrator_ir.define import frozen
from gyrator_runtime.cache import CacheKey

Phase = Literal["inference", "forward", "backward"]
Boxed = Callable[[list[Any]], Sequence[Any]]
"""A compiled graph: takes one list of arguments, which it clears, and returns the results."""

LIVING = "living_"
"""Begins the names of a backward pass's parameters that are results of the forward pass."""
Decompositions = Mapping[Any, Callable[..., Any] | None]
"""Decompositions by op; None disables the op's decomposition."""
NO_DECOMPOSITIONS: Decompositions = MappingProxyType({})

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Keep Dynamo from tracing a function of Gyrator that Dynamo's code or autograd calls."""
    hidden: F = disable(function, reason="Gyrator's own code is not traced")  # type: ignore[no-untyped-call]
    return hidden


def boxed(run: Boxed) -> Boxed:
    """Mark a function that takes one list of arguments, which AOTAutograd would pass separately."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@frozen(eq=False)
class CompiledGraph:
    """A compiled graph and its cache key."""

    call: Boxed
    key: CacheKey | None = None
    """The key of its cache entry; None if it runs eagerly or contains constants."""


class PendingGraph(Protocol):
    """A graph whose stages have run; its kernels may still be being built."""

    def is_building(self) -> bool:
        """Return whether `finish` would wait for a compiler."""
        ...

    def finish(self) -> CompiledGraph:
        """Wait for the kernels, and return the callable."""
        ...
