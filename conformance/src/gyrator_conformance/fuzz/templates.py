"""What statements of random programs are made of: the lines of `templates.txt`.

A template is Python text with slots: `{t}` any tensor, `{f}` a floating one, `{c}` a complex one,
`{i}` an integer one, `{b}` a boolean one, `{1}` the first one again, `{s}` a tensor of its shape,
`{w}` one that may be written, `{d}` an axis of the first one, `{n}` a small integer, `{x}` a
number.
What a template makes of unsuitable tensors, eager refuses: then another one is tried.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

MUTATION = "mutation"
"""The family of statements that write a tensor in place; all others are expressions."""


@cache
def templates() -> Mapping[str, tuple[str, ...]]:
    """Return the templates of each family."""
    text = files(__package__).joinpath("templates.txt").read_text(encoding="utf-8")
    by_group: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]") and line[1:-1].isidentifier():
            chosen = by_group.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            chosen.append(line)
    return MappingProxyType({family: tuple(lines) for family, lines in by_group.items()})
