"""Hashes of what can change generated code: our own source, and rules that a user added."""

import hashlib
import os
from functools import cache
from importlib.util import find_spec
from types import CodeType
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from gyrator_lowering.table import LoweringTable

_PACKAGES = (
    "gyrator", "gyrator_ir", "gyrator_lowering", "gyrator_scheduler", "gyrator_codegen",
    "gyrator_codegen_cpp", "gyrator_codegen_triton", "gyrator_wrapper_cpp",
    "gyrator_wrapper_fx", "gyrator_wrapper_python", "gyrator_runtime",
)  # fmt: skip


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


@cache
def product_hash() -> str:
    """A digest of the source of every package that takes part in a compile."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in _sources(folder):
                digest.update(path.removeprefix(folder).encode())
                with open(path, "rb", buffering=0) as source:
                    digest.update(source.readall())
    return digest.hexdigest()


def _sources(folder: str) -> list[str]:
    """Return the source files below a folder. Not by pathlib, which takes several times as long."""
    found = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if path.endswith((".py", ".h", ".cpp", ".c")))


def rules_hash(table: "LoweringTable") -> str:
    """A digest of which rule lowers what; rules from elsewhere count with their code."""
    digest = hashlib.sha256()
    for target, rule in sorted(table.rules.items()):
        module = getattr(rule, "__module__", "")
        digest.update(f"{target} {module} {getattr(rule, '__qualname__', rule)}\n".encode())
        code = getattr(rule, "__code__", None)
        if code is not None and module.partition(".")[0] not in _PACKAGES:
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
