"""Helper functions of generated Metal kernels, included on demand.

A line `//% name ...` in support.metal starts a section and lists the names that it provides.
Sections follow those that they use.
"""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from gyrator_codegen.constants import CPP_WORDS

_WORD = re.compile(r"[A-Za-z_]\w*")
HEAD = """\
#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#endif
#pragma clang fp contract(off)
"""
"""Every operation rounds, and NaNs and infinities are honored. Metal before 3.2 has no pragma for
the latter and uses the compiler option, which PyTorch sets to safe math."""

RESERVED = CPP_WORDS | frozenset(
    "bfloat constant device fragment half kernel metal precise thread threadgroup uchar uint ulong "
    "ushort vertex x r start lane group_index thread_index total extent live sound failed max min "
    "INFINITY NAN exp log sin cos tan floor ceil trunc rint fabs fma copysign pow sqrt y0 y1 j0 j1 "
    "jn yn gamma signgam index".split()
)
"""Names that generated names must not shadow."""


class Section(NamedTuple):
    """A section of support.metal."""

    names: list[str]
    words: frozenset[str]
    text: str


@cache
def sections() -> tuple[Section, ...]:
    """Return the sections of support.metal, in order."""
    text = files(__package__).joinpath("support.metal").read_text(encoding="utf-8")
    parts = (part.split("\n", 1) for part in text.split("//% ")[1:])
    return tuple(Section(n.split(), frozenset(_WORD.findall(body)), body) for n, body in parts)


def preamble(text: str) -> str:
    """Return the head of a source, with the helper functions that its kernels need."""
    words = set(_WORD.findall(text))
    chosen: list[str] = []
    for section in reversed(sections()):
        if not words.isdisjoint(section.names):
            words |= section.words
            chosen.append(section.text)
    return HEAD + "".join(reversed(chosen)) + "\n"
