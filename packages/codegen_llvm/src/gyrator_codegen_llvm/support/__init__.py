"""Functions that generated kernels call, included on demand.

A line `;% name ...` in support.ll starts a section and lists the functions that it defines.
Sections follow those that they use.
"""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from gyrator_codegen_llvm.code import PARALLEL

_CALL = re.compile(r"call (?:reassoc )?(\{[^}]*\}|\S+) @([\w.]+)\(([^)]*)\)")


class _Section(NamedTuple):
    names: list[str]
    text: str


@cache
def _sections() -> tuple[_Section, ...]:
    text = files(__package__).joinpath("support.ll").read_text(encoding="utf-8")
    parts = (part.split("\n", 1) for part in text.split(";% ")[1:])
    return tuple(_Section(names.split(), body) for names, body in parts)


def preamble(text: str) -> str:
    """Return the head of a module: the functions of `support` and the declarations of others that
    its kernels call."""
    calls = {m[2]: m for m in _CALL.finditer(text)}
    chosen: list[str] = []
    for section in reversed(_sections()):
        if not calls.keys().isdisjoint(section.names):
            calls |= {m[2]: m for m in _CALL.finditer(section.text)}
            chosen.append(section.text)
    declared = []
    for name, call in sorted(calls.items()):
        if not name.startswith("gy_"):
            types = ", ".join(a.split()[0] for a in call[3].split(", "))
            # Results depend on the arguments only: the rounding mode and `errno` are not observed.
            pure = "" if name.startswith("llvm.") else " nounwind willreturn memory(none)"
            declared.append(f"declare {call[1]} @{name}({types}){pure}\n")
    return PARALLEL + "".join(declared) + "".join(reversed(chosen))
