"""Hashes of what can change generated code: our own source, and rules that a user added."""

import hashlib
from types import CodeType
from typing import TYPE_CHECKING, Any

import attrs

from gyrator_ir.content import source_hash

if TYPE_CHECKING:
    from gyrator_lowering.table import LoweringTable

_STAGES = ("gyrator_ir", "gyrator_lowering", "gyrator_scheduler", "gyrator_runtime")
"""What takes part in every compile. Kernel and host languages have digests of their own."""


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


def _code(code: CodeType, digest: "hashlib._Hash") -> None:
    """Add a function's bytecode and constants, those of nested functions included."""
    digest.update(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _code(constant, digest)
        else:
            digest.update(repr(constant).encode())
