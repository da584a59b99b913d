"""Interning (hash consing): one object per structure.

The table is a cache with weak references to its nodes, guarded by a lock. Its contents have no
observable effect.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, Self


class Interned:
    """Base of all nodes: immutable, compared by identity, not picklable, copied by reference."""

    __slots__ = ("__weakref__",)

    def __new__(cls, *args: object) -> Self:
        """Raise: a node must be created by a constructor function to be in normal form."""
        raise TypeError(f"{cls.__name__} nodes are created by the functions of gyrator_ir.expr")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "expressions cannot be pickled; print them by to_text and parse them by parse_expr"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "an expression has no truth value; compare by `is`, or use ShapeFacts.known(...)"
        )


class _Ref(weakref.ref[Interned]):
    """A weak reference with its key in the table."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


_TABLE: dict[tuple[Any, ...], _Ref] = {}
_LOCK = threading.RLock()  # reentrant: the garbage collector may call `_forget` while it is held


def _forget(ref: weakref.ref[Interned]) -> None:
    with _LOCK:
        key = ref.key  # type: ignore[attr-defined]
        if _TABLE.get(key) is ref:
            del _TABLE[key]


def intern(key: tuple[Any, ...], make: Callable[..., Interned], *args: Any) -> Any:
    """Return the node with this key, creating it by `make(*args)` if there is none.

    Two threads may both create it; both get the one that was added to the table first.
    """
    ref = _TABLE.get(key)
    if ref is not None:
        node = ref()
        if node is not None:
            return node
    new = make(*args)
    with _LOCK:
        ref = _TABLE.get(key)
        if ref is not None:
            node = ref()
            if node is not None:
                return node
        ref = _Ref(new, _forget)
        ref.key = key
        _TABLE[key] = ref
    return new
