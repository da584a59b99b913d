"""Digests of source files, by which cache keys distinguish versions of a package.

Packages are read and not imported, because a warm start needs the digests of backends that it does
not otherwise use.
"""

import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["content_hash", "reached"]

_IMPORT = re.compile(rb"from (gyrator_\w+)")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_BASE = "gyrator_ir"
"""The package that imports no other Gyrator package."""


def source_hash(*packages: str) -> str:
    """Return a digest of all files of these packages."""
    return _joined(_source(package, False) for package in packages)


def content_hash(*packages: str) -> str:
    """Return a digest of these packages and of the Gyrator packages that they import.

    Meant for `content_hash` of a backend, which then covers the code that backends share.
    """
    return _joined(_source(package, package != _BASE) for package in reached(*packages))


@cache
def reached(*packages: str) -> tuple[str, ...]:
    """Return these packages and the Gyrator packages that they import, transitively, sorted."""
    closure: set[str] = set()
    pending = list(packages)
    while pending:
        package = pending.pop()
        if package not in closure:
            closure.add(package)
            pending += _source(package, package != _BASE).imported
    return tuple(sorted(closure))


def value_hash(*values: Any) -> str:
    """Return a digest of user-supplied functions and plain values.

    The digest of a function covers the file that defines it, or its bytecode if there is no file,
    its default arguments and its closure variables.

    Raises:
        ValueError: for a value whose repr contains an address, such as `<object at 0x7f...>`.
    """
    digest = sha256()
    pending = list(values)
    while pending:
        value = pending.pop(0)
        code = getattr(value, "__code__", None)
        if code is None:
            text = repr(value)
            if _ADDRESS.search(text):
                raise ValueError(f"{text} has no stable repr")
            digest.update(f"{len(text)} {text}\n".encode())
            continue
        file = getattr(sys.modules.get(value.__module__), "__file__", None)
        digest.update(f"{value.__module__} {value.__qualname__} {code.co_firstlineno}\n".encode())
        if file is None:
            digest.update(repr(_constants(code)).encode())
        else:
            with open(file, "rb") as source:
                digest.update(source.read())
        pending += [cell.cell_contents for cell in value.__closure__ or ()]
        pending += value.__defaults__ or ()
    return digest.hexdigest()


def _constants(code: "CodeType") -> tuple[Any, ...]:
    """Return the bytecode, names and constants of a function and of its nested functions."""
    inside = (_constants(c) if hasattr(c, "co_code") else c for c in code.co_consts)
    return code.co_code, code.co_names, tuple(inside)


class _Source(NamedTuple):
    digest: str
    imported: frozenset[str]
    """The Gyrator packages that it imports; empty if they were not searched for."""


def _joined(sources: Iterable[_Source]) -> str:
    return sha256("".join(source.digest for source in sources).encode()).hexdigest()


@cache
def _source(package: str, imports: bool) -> _Source:
    """Read a package. Searching it for `imports` takes a third of the time."""
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"there is no package {package!r}", name=package)
    digest = sha256()
    imported: set[str] = set()
    for folder in spec.submodule_search_locations:
        for path in _files(folder):
            with open(path, "rb", buffering=0) as file:
                text = file.readall()
            digest.update(f"{path.removeprefix(folder)} {len(text)}\n".encode() + text)
            if imports:
                imported.update(name.decode() for name in _IMPORT.findall(text))
    return _Source(digest.hexdigest(), frozenset(imported))


def _files(folder: str) -> list[str]:
    """Return the files below a folder. `os.walk` is several times faster than pathlib."""
    paths: list[str] = []
    for parent, folders, names in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        paths += [os.path.join(parent, name) for name in names]
    return sorted(paths)
