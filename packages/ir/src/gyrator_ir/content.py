"""Digests of source, by which cache keys tell one version of a package from another.

Nothing is imported: a warm start asks for the digest of backends that it has no other use for.
"""

import os
import re
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from typing import NamedTuple

_IMPORT = re.compile(rb"from (gyrator_\w+)")
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
