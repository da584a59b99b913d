"""Hashes of everything that can change generated code: Gyrator's source, and the user's rules and
passes."""

import hashlib
import re
import sys
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import attrs

from gyrator.options import OptionError
from gyrator_ir.content import source_hash, value_hash
from gyrator_ir.passes import PassError

if TYPE_CHECKING:
    from gyrator.graphs.compiled import Decompositions
    from gyrator_ir.passes import PassEdits
    from gyrator_lowering.table import LoweringTable

_STAGES = ("gyrator_ir", "gyrator_lowering", "gyrator_scheduler", "gyrator_runtime")
"""The packages that every compile uses. Kernel and host languages have separate digests."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Matches the address in the default `repr` of an object."""


def canonical(value: Any) -> str:
    """Return text of an attrs value that is equal for equal values in every process: sets are
    sorted."""
    match value:
        case frozenset() | set():
            return f"{{{', '.join(sorted(map(canonical, value)))}}}"
        case tuple() | list():
            return f"({', '.join(map(canonical, value))})"
        case _ if attrs.has(type(value)):
            names = (a.name for a in attrs.fields(type(value)))
            parts = (f"{n}={canonical(getattr(value, n))}" for n in names)
            return f"{type(value).__name__}({', '.join(parts)})"
        case _:
            return repr(value)


def product_hash() -> str:
    """Return a digest of the source of the packages that every compile uses."""
    return source_hash("gyrator", *_STAGES)


def rules_hash(table: "LoweringTable") -> str:
    """Return a digest of the lowering rules; third-party rules include their bytecode."""
    digest = hashlib.sha256()
    for target, rule in sorted(table.rules.items()):
        module = getattr(rule, "__module__", "")
        digest.update(f"{target} {module} {getattr(rule, '__qualname__', rule)}\n".encode())
        code = getattr(rule, "__code__", None)
        if code is not None and module.partition(".")[0] not in _STAGES:
            _code(code, digest)
    return digest.hexdigest()


def decompositions_hash(table: "Decompositions") -> str:
    """Return a digest of the user's changes to the decompositions.

    Raises OptionError (GY-OPTION-005) for a function that refers to an object without a stable
    text.
    """
    try:
        return value_hash(*(part for key in sorted(table, key=str) for part in (key, table[key])))
    except ValueError as error:
        message = f"a decomposition cannot be part of a cache key: {error}"
        help = "write it with `def`, and assign the objects that it uses to module-level names"
        raise OptionError.of("GY-OPTION-005", message, help=help) from error


def passes_hash(edits: "PassEdits") -> str:
    """Return a digest of the user's pass edits.

    The digest of a pass includes its options, the file of its class, and its `content_hash` if it
    has one. Raises PassError (GY-PASS-012) for options without a stable text, unless there is a
    `content_hash`.
    """
    digest = hashlib.sha256()
    for edit in edits.edits:
        digest.update(f"{_stable_text(attrs.evolve(edit, passes=()), edit.name)}\n".encode())
        for pass_ in edit.passes:
            cls, text = (
                type(pass_),
                getattr(pass_, "content_hash", None) or _stable_text(pass_, pass_.name),
            )
            digest.update(f"{cls.__module__} {cls.__qualname__} {text}\n".encode())
            if cls.__module__.partition(".")[0] not in _STAGES:
                _module(cls, digest)
    return digest.hexdigest()


def _stable_text(value: Any, name: str) -> str:
    """Return text of a pass, or of its options, that differs for unequal values."""
    text = canonical(value)
    if _ADDRESS.search(text):
        message = f"the options of pass {name!r} cannot be part of a cache key: {text}"
        help = "give the pass a property `content_hash`, a text that identifies it"
        raise PassError.of("GY-PASS-012", message, help=help)
    return text


def _module(cls: type, digest: "hashlib._Hash") -> None:
    """Add the file that defines a class, or, if there is none, the bytecode of its methods and
    of the functions of its module."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if file is not None:
        digest.update(Path(file).read_bytes())
        return
    for holder in (cls, module):
        for name, value in sorted(vars(holder).items()):
            code = getattr(value, "__code__", None)
            if code is not None:
                digest.update(name.encode())
                _code(code, digest)


def _code(code: CodeType, digest: "hashlib._Hash") -> None:
    """Add a function's bytecode and constants, including nested functions."""
    digest.update(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _code(constant, digest)
        else:
            digest.update(repr(constant).encode())
