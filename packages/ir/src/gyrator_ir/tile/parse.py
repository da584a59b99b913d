"""Parser of Tile IR, the inverse of `gyrator_ir.tile.print`."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import KernelGroup, TemplateKernel
from gyrator_ir.kernel.parse import read_launchable, read_members
from gyrator_ir.text.forms import NAMES, build, read_parts
from gyrator_ir.text.lines import Line
from gyrator_ir.text.program import read_facts, read_header, read_origin, sections, sole
from gyrator_ir.text.scanner import Scanner, read_line
from gyrator_ir.tile.forms import EXPRESSIONS, FORMS, LOOPS, NAMED, REPEAT, SHARED
from gyrator_ir.tile.nodes import (
    LoopKind,
    Repeat,
    Tiled,
    TiledGroup,
    TiledKernel,
    TiledTemplate,
    TileProgram,
)
from gyrator_ir.tile.print import KIND, VERSION

_WORDS = (
    {"kernel": "kernel", "index": "index", "plain": "plain", "nonempty": "nonempty"}
    | dict.fromkeys(LoopKind, "loops")
    | {"reduce": "reductions", "contraction": "contraction", "threads": "threads"}
    | {
        "transposed": "transposed",
        "section": "sections",
        "fission": "fissions",
        "pipelined": "pipelined",
        "prefetch": "prefetches",
        "form": "forms",
        "access": "accesses",
        "pair": "pairs",
        "unrounded": "unrounded",
        "reuse": "reuses",
        "barrier": "barriers",
        "choice": "choices",
        "wait": "wait",
    }
    | {"candidate": "candidates"}
    | {name: name for name in NAMED}
)
_ONE = ("contraction", "threads", "wait")
_TUNED = ("choices", "candidates", "wait")


def parse(text: str) -> TileProgram:
    """Parse one program. Blank lines and lines that begin with `;` are skipped.

    Raises:
        ParseError: as `gyrator_ir.loop.parse.parse`.
    """
    line = sole(text, KIND)
    name = read_header(line, KIND, VERSION)
    words = {"origin": "origins", "fact": "facts"}
    words |= dict.fromkeys(("tile", "group", "repeat"), "kernels")
    groups = sections(line, words)
    values = {
        "name": name,
        "origins": tuple(read_origin(child, row) for row, child in enumerate(groups["origins"])),
        "facts": read_facts(groups["facts"]) if groups["facts"] else ShapeFacts(),
        "kernels": tuple(map(_node, groups["kernels"])),
    }
    return build(line, TileProgram, values)


def _node(line: Line) -> Tiled:
    if line.text.startswith("repeat "):
        repeat = REPEAT.read(Scanner(line), lambda lines: ())
        assert isinstance(repeat, Repeat)
        return repeat
    return _group(line) if line.text.startswith("group ") else _tile(line)


def _group(line: Line) -> TiledGroup:
    tiles = tuple(map(_tile, sections(line, {"tile": "kernels"})["kernels"]))
    kernels = tuple(t for t in tiles if isinstance(t, TiledKernel))
    if len(kernels) < len(tiles):
        line.fail("a group has no templates")
    s = Scanner(line)
    s.expect("group")
    values: dict[str, Any] = {"name": s.name(), "kernels": kernels}
    s.expect("on")
    values["device"] = s.device()
    s.expect("together")
    members = NAMES.read(s)
    values |= read_parts(SHARED, s)
    s.end()
    values["members"] = read_members(line, members, [t.kernel for t in kernels])
    return build(line, TiledGroup, values)


def _tile(line: Line) -> TiledKernel | TiledTemplate:
    if line.text != "tile":
        line.fail("expected `tile` alone on its line")
    groups = sections(line, _WORDS)
    if len(groups["kernel"]) != 1:
        line.fail("expected one kernel below")
    kernel = read_launchable(groups.pop("kernel")[0])
    values: dict[str, Any] = {"kernel": kernel}
    for child in groups.pop("index"):
        values["index"] = read_line(child, "index", Scanner.dtype)
    if isinstance(kernel, TemplateKernel):
        return _template(line, values, groups)
    if isinstance(kernel, KernelGroup):
        line.fail("expected one kernel below")
    values["loops"] = tuple(_loop(child) for child in groups.pop("loops"))
    for name in NAMED:
        names = (read_line(child, name, NAMES.read) for child in groups.pop(name))
        values[name] = tuple(chain.from_iterable(names))
    plain = (read_line(child, "plain", EXPRESSIONS.read) for child in groups.pop("plain"))
    values["plain"] = tuple(chain.from_iterable(plain))
    for child in groups.pop("nonempty"):
        values["nonempty"] = read_line(child, "nonempty", lambda _: True)
    values |= {name: _items(name, lines) for name, lines in groups.items()}
    return build(line, TiledKernel, values)


def _items(name: str, lines: Sequence[Line]) -> Any:
    """Return the decisions called `name`, or the only one if there can be no more than one."""
    items = tuple(map(_item, lines))
    if name not in _ONE:
        return items
    if len(items) > 1:
        lines[1].fail(f"expected one {name}")
    return items[0] if items else None


def _template(
    line: Line, values: dict[str, Any], groups: Mapping[str, Sequence[Line]]
) -> TiledTemplate:
    for name, lines in groups.items():
        if name in _TUNED:
            values[name] = _items(name, lines)
        elif lines:
            lines[0].fail("expected the indices, choices, candidates and wait of a template")
    return build(line, TiledTemplate, values)


def _loop(line: Line) -> Any:
    kind = LoopKind(line.text.partition(" ")[0])
    values = {"kind": kind}
    form, s = LOOPS[kind], Scanner(line)
    s.expect(kind.value)
    values |= read_parts(form.parts, s)
    s.end()
    line.leaf()
    return build(line, form.cls, values)


def _item(line: Line) -> Any:
    s = Scanner(line)
    form = FORMS.find(s)
    if form is None:
        line.fail(f"expected one of {FORMS.verbs()}")
    return form.read(s, lambda lines: tuple(map(_item, lines)))
