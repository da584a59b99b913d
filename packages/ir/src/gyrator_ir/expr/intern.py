"""Interning: one object for each structure, in a table that nobody can observe.

The table is a cache without meaning: it holds its nodes weakly, is guarded by a lock, and nothing
that a caller can see depends on what is in it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, Self


class Interned:
    """Base of all nodes: immutable, compared by identity, never pickled, its own copy."""

    __slots__ = ("__weakref__",)

    def __new__(cls, *args: object) -> Self:
        """Refuse: a node made without its constructor might not be in normal form."""
        raise TypeError(f"{cls.__name__} is built by the functions of gyrator_ir.expr")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "expressions are not pickled; write them with to_text, read with parse_expr"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "an expression has no truth value; compare with `is`, or ask ShapeFacts.known(...)"
        )


class _Ref(weakref.ref[Interned]):
    """A weak reference that knows under which key it is filed."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


_TABLE: dict[tuple[Any, ...], _Ref] = {}
_LOCK = threading.RLock()  # re-entrant: `_forget` may run, from the collector, while we hold it


def _forget(ref: weakref.ref[Interned]) -> None:
    with _LOCK:
        key = ref.key  # type: ignore[attr-defined]
        if _TABLE.get(key) is ref:
            del _TABLE[key]


def intern(key: tuple[Any, ...], make: Callable[..., Interned], *args: Any) -> Any:
    """Return the node filed under `key`, making it by `make(*args)` the first time.

    Two threads may both make it; both get the one that was filed first.
    """
    ref = _TABLE.get(key)
    if ref is not None:
        node = ref()
        if node is not None:
            return node
    made = make(*args)
    with _LOCK:
        ref = _TABLE.get(key)
        if ref is not None:
            node = ref()
            if node is not None:
                return node
        ref = _Ref(made, _forget)
        ref.key = key
        _TABLE[key] = ref
    return made
