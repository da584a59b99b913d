"""The helper functions of generated kernels, included on demand."""

import re
from importlib.resources import files

_HEAD = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

_HELPERS = {
    helper[1]: helper[0]
    for helper in re.finditer(
        r"@triton\.jit\ndef (\w+)(?:.+\n|\n(?= ))*",
        files("gyrator_codegen_triton.prelude").joinpath("helpers.txt").read_text("utf-8"),
    )
}
"""Helper functions by name, each after the functions that it uses."""

HELPER_NAMES = frozenset(_HELPERS)

_WORD = re.compile(r"[A-Za-z_]\w*")


def preamble(text: str) -> str:
    """Return the imports and helper functions that kernel source needs."""
    words = set(_WORD.findall(text))
    chosen: list[str] = []
    for name, function in reversed(_HELPERS.items()):
        if name in words:
            words.update(_WORD.findall(function))
            chosen.append(f"\n\n{function}")
    return _HEAD + "".join(reversed(chosen)) + "\n\n"
