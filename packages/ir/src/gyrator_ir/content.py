"""Digests of source, by which cache keys tell one version of a package from another.

Nothing is imported: a warm start asks for the digest of backends that it has no other use for.
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
"""Imports no other package of Gyrator."""


def source_hash(*packages: str) -> str:
    """Return a digest of all files of the packages named."""
    return _joined(_source(package, False) for package in packages)


def content_hash(*packages: str) -> str:
    """Return a digest of the packages named, and of those of Gyrator that they import.

    For a backend's `content_hash`: what it shares with others cannot be forgotten.
    """
    return _joined(_source(package, package != _BASE) for package in reached(*packages))


@cache
def reached(*packages: str) -> tuple[str, ...]:
    """Return the packages named, and those of Gyrator that they import, sorted."""
    found: set[str] = set()
    left = list(packages)
    while left:
        package = left.pop()
        if package not in found:
            found.add(package)
            left += _source(package, package != _BASE).imported
    return tuple(sorted(found))


def value_hash(*values: Any) -> str:
    """Return a digest of functions and plain values that a user gave.

    A function counts with the file that it stands in, or where there is none with its own code,
    and with what it holds: defaults, and variables of functions around it.

    Raises:
        ValueError: for a value without a text of its own, as `<object at 0x7f...>`.
    """
    digest = sha256()
    left = list(values)
    while left:
        value = left.pop(0)
        code = getattr(value, "__code__", None)
        if code is None:
            text = repr(value)
            if _ADDRESS.search(text):
                raise ValueError(f"{text} has no text of its own")
            digest.update(f"{len(text)} {text}\n".encode())
            continue
        file = getattr(sys.modules.get(value.__module__), "__file__", None)
        digest.update(f"{value.__module__} {value.__qualname__} {code.co_firstlineno}\n".encode())
        if file is None:
            digest.update(repr(_constants(code)).encode())
        else:
            with open(file, "rb") as source:
                digest.update(source.read())
        left += [cell.cell_contents for cell in value.__closure__ or ()]
        left += value.__defaults__ or ()
    return digest.hexdigest()


def _constants(code: "CodeType") -> tuple[Any, ...]:
    """Return the bytecode, names and constants of a function and of those inside of it."""
    inside = (_constants(c) if hasattr(c, "co_code") else c for c in code.co_consts)
    return code.co_code, code.co_names, tuple(inside)


class _Source(NamedTuple):
    digest: str
    imported: frozenset[str]
    """Those of Gyrator's packages that it imports, where they were looked for."""


def _joined(sources: Iterable[_Source]) -> str:
    return sha256("".join(source.digest for source in sources).encode()).hexdigest()


@cache
def _source(package: str, look: bool) -> _Source:
    """Read a package; looking for what it imports takes a third of the time."""
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
            if look:
                imported.update(name.decode() for name in _IMPORT.findall(text))
    return _Source(digest.hexdigest(), frozenset(imported))


def _files(folder: str) -> list[str]:
    """Return the files below a folder. Not by pathlib, which takes several times as long."""
    found: list[str] = []
    for at, folders, names in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        found += [os.path.join(at, name) for name in names]
    return sorted(found)
