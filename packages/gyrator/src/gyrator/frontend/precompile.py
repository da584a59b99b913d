"""Functions of `torch.compile(f, fullgraph=True).aot_compile(...)`, which Dynamo saves and loads.

What is saved are the entries of the cache from which a warm start takes the same graph. A process
that loads them traces nothing; Dynamo's own part of the file holds its bytecode and guards.
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import attrs
from torch._dynamo.aot_compile_types import SerializableCallable

from gyrator.engine.compiled import untraced
from gyrator.frontend.aot import Frontend, Kept
from gyrator.options import Options, make_options
from gyrator.session import Session, default_session
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_runtime.cache import CacheError, CacheKey
from gyrator_runtime.transfer import packed, unpack

_LENGTH = struct.Struct("<Q")
_LOADED = "it was loaded from a file, which does not hold the function itself"


class Precompiled(SerializableCallable):
    """A compiled graph, and what a file has to hold for it to be called elsewhere.

    Args:
        call: the compiled graph.
        head: the options, in JSON.
        entries: of the cache, the graph's first.
    """

    def __init__(self, call: Callable[..., Any], head: bytes, entries: Sequence[bytes]) -> None:
        self._call = untraced(call)
        self._head = head
        self._entries = tuple(entries)

    @classmethod
    def of(cls, kept: Kept) -> Self:
        """Return a graph as what Dynamo saves. UnsupportedError (GY-AOT-006): it cannot be."""
        key, cache = kept.key, kept.cache
        entry = None if key is None else cache.get(key)
        if key is None or entry is None:
            raise _unsaved("it is no graph that the cache keeps")
        programs = [CacheKey("programs", name, {}) for name in _programs(entry.read("graph.json"))]
        held = [(k, cache.get(k)) for k in programs]
        found = [packed(k, e) for k, e in held if e is not None]
        if len(found) != len(programs):
            raise _unsaved("its programs were pruned from the cache")
        head = json.dumps({"options": _changed(kept.options)}, sort_keys=True)
        return cls(kept.call, head.encode(), [packed(key, entry), *found])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the graph."""
        return self._call(*args, **kwargs)

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        """Return what `deserialize_compile_artifacts` takes."""
        parts = (fn._head, *fn._entries)
        return b"".join(_LENGTH.pack(len(part)) + part for part in parts)

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Any:
        """Return the function, its programs loaded through the default session's cache.

        CacheError: GY-CACHE-012 for bytes of another kind, GY-CACHE-004 where a program does not
        fit this machine, this torch or this version.
        """
        head, *entries = _parts(data)
        session = default_session()
        keys = [unpack(session.cache, entry) for entry in entries]
        call = _found(session, json.loads(head), keys[0])
        return cls(call, head, entries)


def _found(session: Session, head: Mapping[str, Any], key: CacheKey) -> Callable[..., Any]:
    options = make_options(options=head["options"], base=Options())
    frontend = Frontend(session.engine(options), options, session.cache)
    found = frontend.loaded(key, _gone, _LOADED)
    if found is None:
        raise CacheError.of(
            "GY-CACHE-004",
            "a saved function does not fit this machine, this torch or this version",
            help="call `aot_compile` again",
        )
    return found


def _gone(*_: Any) -> Any:
    raise UnsupportedError.of(
        "GY-AOT-006",
        f"forward-mode derivatives of a saved function cannot be computed: {_LOADED}",
        help="call the function itself, or compile it here",
    )


def _unsaved(why: str) -> UnsupportedError:
    return UnsupportedError.of(
        "GY-AOT-006",
        f"a graph cannot be saved by `aot_compile`: {why}",
        help="`gyrator explain` shows what runs eagerly; graphs that return views of their "
        "inputs, and options `cache=False` and `trace_dir`, are left out of the cache",
    )


def _programs(stored: bytes) -> list[str]:
    names: list[str] = json.loads(stored)["programs"]
    return names


def _changed(options: Options) -> dict[str, Any]:
    """Return the options that are not as they are by default."""
    fields = attrs.fields(Options)
    named = {f.name: getattr(options, f.name) for f in fields}
    changed = {f.name: named[f.name] for f in fields if named[f.name] != f.default}
    wrong = [name for name, value in changed.items() if callable(value)]
    if wrong:
        raise _unsaved(f"the option {wrong[0]!r} is a function")
    return changed


def _parts(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        parts.append(data[at : at + length])
        at += length
    return parts
