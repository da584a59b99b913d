"""Digests of source, by which cache keys tell one version of a package from another.

Nothing is imported: a warm start asks for the digest of backends that it has no other use for.
"""

import os
import re
from functools import cache
from hashlib import sha256
from importlib.util import find_spec

_IMPORT = re.compile(rb"from (gyrator_\w+)")
_BASE = "gyrator_ir"
"""Imports no other package of Gyrator."""


def source_hash(*packages: str) -> str:
    """Return a digest of all files of the packages named."""
    return sha256("".join(_source(package)[0] for package in packages).encode()).hexdigest()


def content_hash(*packages: str) -> str:
    """Return a digest of the packages named, and of those of Gyrator that they import.

    For a backend's `content_hash`: what it shares with others cannot be forgotten.
    """
    return source_hash(*reached(*packages))


@cache
def reached(*packages: str) -> tuple[str, ...]:
    """Return the packages named, and those of Gyrator that they import, sorted."""
    found: set[str] = set()
    left = list(packages)
    while left:
        package = left.pop()
        if package not in found:
            found.add(package)
            left += _source(package)[1]
    return tuple(sorted(found))


@cache
def _source(package: str) -> tuple[str, frozenset[str]]:
    """Return the digest of a package, and which of Gyrator's it imports."""
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
            if package != _BASE:
                imported.update(name.decode() for name in _IMPORT.findall(text))
    return digest.hexdigest(), frozenset(imported)


def _files(folder: str) -> list[str]:
    """Return the files below a folder. Not by pathlib, which takes several times as long."""
    found: list[str] = []
    for at, folders, names in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        found += [os.path.join(at, name) for name in names]
    return sorted(found)
