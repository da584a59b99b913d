"""The head of a text of kernels: imports, and the functions of the prelude that are used."""

import re
from importlib.resources import files

HEAD = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

_HELPERS = {
    found[1]: found[0]
    for found in re.finditer(
        r"@triton\.jit\ndef (\w+)(?:.+\n|\n(?= ))*",
        files("gyrator_codegen_triton.prelude").joinpath("helpers.txt").read_text("utf-8"),
    )
}
"""Functions by name, each after what it uses."""

RESERVED = frozenset(_HELPERS) | frozenset(
    "and as assert async await break class continue def del elif else except finally for from "
    "global if import in is lambda nonlocal not or pass raise return try while with yield True "
    "False None triton tl libdevice XBLOCK RBLOCK x r x_mask r_mask points extent start range "
    "x_fours r_fours pair pair_mask first float int bool min max num_warps num_stages num_ctas "
    "grid warmup".split()
)
"""Words that generated names must not be."""

_WORD = re.compile(r"[A-Za-z_]\w*")


def preamble(text: str) -> str:
    """Return imports and the helper functions that a text of kernels needs."""
    words = set(_WORD.findall(text))
    chosen: list[str] = []
    for name, function in reversed(_HELPERS.items()):
        if name in words:
            words.update(_WORD.findall(function))
            chosen.append(f"\n\n{function}")
    return HEAD + "".join(reversed(chosen)) + "\n\n"
