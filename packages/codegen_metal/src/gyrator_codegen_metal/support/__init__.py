"""Functions of generated kernels in Metal, copied in when used.

A line `//% name ...` of support.metal opens a section and says what it provides; sections stand
after those that they use.
"""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_WORD = re.compile(r"[A-Za-z_]\w*")
HEAD = """\
#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#endif
#pragma clang fp contract(off)
"""
"""Every operation rounds, and NaNs and infinities are what they are. Metal before 3.2 has no pragma
for the second, and takes what the caller of its compiler says: PyTorch, safe mathematics."""

RESERVED = frozenset(
    "alignas alignof and asm auto bfloat bitand bitor bool break case catch char class compl const "
    "constant constexpr continue decltype default delete device do double else enum explicit "
    "export extern false float for fragment friend goto half if inline int kernel long metal "
    "mutable namespace new noexcept not nullptr operator or precise private protected public "
    "register return short signed sizeof static struct switch template this thread threadgroup "
    "throw true try typedef typename uchar uint ulong union unsigned ushort using vertex virtual "
    "void volatile while xor x r start lane group_index thread_index total extent live sound "
    "failed max min INFINITY NAN exp log sin cos tan floor ceil trunc rint fabs fma copysign "
    "pow sqrt y0 y1 j0 j1 jn yn gamma signgam index".split()
)
"""Words that generated names must not be."""


class Section(NamedTuple):
    """A part of the text."""

    names: list[str]
    words: frozenset[str]
    text: str


@cache
def sections() -> tuple[Section, ...]:
    """Return the parts of support.metal, in order."""
    text = files(__package__).joinpath("support.metal").read_text(encoding="utf-8")
    parts = (part.split("\n", 1) for part in text.split("//% ")[1:])
    return tuple(Section(n.split(), frozenset(_WORD.findall(body)), body) for n, body in parts)


def preamble(text: str) -> str:
    """Return what stands before kernels: the head, and the functions that they need."""
    words = set(_WORD.findall(text))
    chosen: list[str] = []
    for section in reversed(sections()):
        if not words.isdisjoint(section.names):
            words |= section.words
            chosen.append(section.text)
    return HEAD + "".join(reversed(chosen)) + "\n"
