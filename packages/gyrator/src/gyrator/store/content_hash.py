"""Hashes of what can change generated code: our own source, and rules that a user added."""

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
    from gyrator.engine.compiled import Decompositions
    from gyrator_ir.passes import PassEdits
    from gyrator_lowering.table import LoweringTable

_STAGES = ("gyrator_ir", "gyrator_lowering", "gyrator_scheduler", "gyrator_runtime")
"""What takes part in every compile. Kernel and host languages have digests of their own."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""In the text of an object that has none of its own."""


def canonical(value: Any) -> str:
    """Write attrs values so that equal ones give equal text in every process: sets are sorted."""
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
    """A digest of the source of all that takes part in every compile."""
    return source_hash("gyrator", *_STAGES)


def rules_hash(table: "LoweringTable") -> str:
    """A digest of which rule lowers what; rules from elsewhere count with their code."""
    digest = hashlib.sha256()
    for target, rule in sorted(table.rules.items()):
        module = getattr(rule, "__module__", "")
        digest.update(f"{target} {module} {getattr(rule, '__qualname__', rule)}\n".encode())
        code = getattr(rule, "__code__", None)
        if code is not None and module.partition(".")[0] not in _STAGES:
            _code(code, digest)
    return digest.hexdigest()


def decompositions_hash(table: "Decompositions") -> str:
    """A digest of what a user changed of the decompositions.

    OptionError (GY-OPTION-005) for a function that holds what has no text of its own.
    """
    try:
        return value_hash(*(part for key in sorted(table, key=str) for part in (key, table[key])))
    except ValueError as error:
        said = f"a decomposition cannot be part of a cache key: {error}"
        help = "write it with `def`, and name what it uses at the top of the module"
        raise OptionError.of("GY-OPTION-005", said, help=help) from error


def passes_hash(edits: "PassEdits") -> str:
    """A digest of what a user changed of the passes.

    A pass counts with its options and the file of its class, and with its `content_hash` if it has
    one. PassError (GY-PASS-012) for options that have no text of their own, without such a hash.
    """
    digest = hashlib.sha256()
    for edit in edits.edits:
        digest.update(f"{_told_apart(attrs.evolve(edit, passes=()), edit.name)}\n".encode())
        for one in edit.passes:
            cls, text = type(one), getattr(one, "content_hash", None) or _told_apart(one, one.name)
            digest.update(f"{cls.__module__} {cls.__qualname__} {text}\n".encode())
            if cls.__module__.partition(".")[0] not in _STAGES:
                _module(cls, digest)
    return digest.hexdigest()


def _told_apart(value: Any, name: str) -> str:
    """Return a text of a pass, or of options, that differs for what is not equal."""
    text = canonical(value)
    if _ADDRESS.search(text):
        said = f"the options of pass {name!r} cannot be part of a cache key: {text}"
        help = "give the pass a property `content_hash`, a text that tells it from others"
        raise PassError.of("GY-PASS-012", said, help=help)
    return text


def _module(cls: type, digest: "hashlib._Hash") -> None:
    """Add the file that defines a class, or where there is none, the code of its methods and of
    the functions beside it."""
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
    """Add a function's bytecode and constants, those of nested functions included."""
    digest.update(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _code(constant, digest)
        else:
            digest.update(repr(constant).encode())
