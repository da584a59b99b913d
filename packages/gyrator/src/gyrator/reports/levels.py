"""The levels of one compile side by side: which lines of each came from which ATen calls."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, field, frozen

from gyrator.reports.records import GraphRecord
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.walk import programs
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Schedule
from gyrator_ir.levels import level_of
from gyrator_ir.provenance import Origin
from gyrator_lowering.fx_passes import FX
from gyrator_scheduler.fusion.kernels import canonical

NONE: frozenset[str] = frozenset()
_HEADER = re.compile(r"\w+\.\w+ \d+ @")
_ORIGIN = re.compile(r'origin (\d+) %("(?:[^"\\]|\\.)*"|\S+) ')
_ROWS = re.compile(r"((?: @\d+)+)$")
_FROM = re.compile(r' (?:from "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*")?( of "(?:[^"\\]|\\.)*")?$')
_NAMED = re.compile(r"(?:kernel|group|repeat) (\w+)")
_SHOWN = 8
"""Nodes that a remark in a host program names at the most."""


@frozen
class Block:
    """Lines that belong together."""

    text: str
    nodes: frozenset[str] = NONE
    """The calls of the ATen graph that they compute."""


@frozen
class Pane:
    """The text of one level."""

    name: str
    language: str
    """For whoever colours it."""
    blocks: tuple[Block, ...]


def panes(record: GraphRecord, made: "Made") -> tuple[Pane, ...]:
    """Return a graph's levels in the order of the stages; what the cache does not keep is left out.

    First the user's lines, last the text of the kernels.
    """
    schedule: Schedule | None = record.levels.get("kernel")
    found = []
    if schedule is not None and any(o.location or o.module for o in schedule.origins):
        found.append(Pane("lines", "python", tuple(_lines(schedule.origins))))
    if "fx" in record.levels:
        blocks = (_fx(line) for line in FX.show(record.levels["fx"]).splitlines())
        found.append(Pane("fx", "gy", tuple(blocks)))
    for name in sorted(record.levels.keys() - {"fx"}, key=_order):
        text = _shown(record.levels[name])
        found.append(Pane(name, "gy", tuple(_program(text, made))))
    if "host" not in record.levels and record.host_text:
        language = "c++" if "#include" in record.host_text else "python"
        found.append(Pane("host", language, (Block(record.host_text),)))
    texts: dict[str, list[Block]] = {}
    for k in record.kernels:
        nodes = frozenset(k.nodes) | made.kernels.get(k.name, NONE)
        texts.setdefault(k.language, []).append(Block(k.text.rstrip() + "\n", nodes))
    found += [Pane(language, language, tuple(blocks)) for language, blocks in texts.items()]
    return tuple(found)


def _order(name: str) -> tuple[int, str]:
    """Return where a level stands: what it is called, or begins with, and then its part."""
    return ("loop", "kernel", "tile", "host").index(name.partition("_")[0]), name


def _shown(program: Any) -> str:
    """Return the text of a program; that of a host program without its kernels, which the levels
    around it have."""
    if isinstance(program, HostProgram):
        bare = (evolve(p, kernels=()) for p in program.subprograms)
        program = evolve(program, kernels=(), subprograms=tuple(bare))
    return level_of(program).show(program)


# What computes what -----------------------------------------------------------------------------


@frozen
class Made:
    """Which ATen calls the kernels of a program compute, wherever they are launched."""

    kernels: dict[str, frozenset[str]] = field(factory=dict)
    """By the name of a kernel of the host program, which may run for several of the schedule."""
    launched: dict[str, str] = field(factory=dict)
    """The kernel of the host program that runs for one of the schedule."""
    nodes: dict[str, frozenset[str]] = field(factory=dict)
    """By the name of a node of the schedule."""
    remarks: dict[tuple[str, ...], frozenset[str]] = field(factory=dict)
    """By the names that a remark in the host program begins with."""

    @classmethod
    def of(cls, record: GraphRecord) -> "Made":
        """Read a graph's levels; where the cache has it, all is empty."""
        schedule: Schedule | None = record.levels.get("kernel")
        host: HostProgram | None = record.levels.get("host")
        if schedule is None:
            return cls()
        alike = {} if host is None else _alike(host)
        made = cls({}, {}, {}, {})
        for part in (schedule, *schedule.subschedules):
            ends = {t.start: t.end for t in part.together}
            n = 0
            while n < len(part.nodes):
                nodes = part.nodes[n : ends.get(n, n + 1)]
                n += len(nodes)
                rows = [tuple(part.origins[o].node for o in node.origins) for node in nodes]
                every = frozenset(name for names in rows for name in names)
                kernels = [node for node in nodes if isinstance(node, Kernel)]
                name = alike.get(tuple(canonical(k)[0] for k in kernels), nodes[0].name)
                if kernels:
                    made.kernels[name] = made.kernels.get(name, NONE) | every
                for node, names in zip(nodes, rows, strict=True):
                    made.launched[node.name] = name
                    made.nodes[node.name] = every
                    made.remarks[names[:_SHOWN]] = frozenset(names)
        return made


def _alike(host: HostProgram) -> dict[tuple[Kernel, ...], str]:
    """Return the names of what a host program launches, by the kernels that it runs."""
    found: dict[tuple[Kernel, ...], str] = {}
    for part in programs(host):
        for launched in part.kernels:
            if isinstance(launched, KernelGroup):
                kernels = tuple(launched.kernels[number] for number in launched.members)
            else:
                kernels = (launched,) if isinstance(launched, Kernel) else ()
            keys = tuple(evolve(k, name="k", origins=(), refusals=()) for k in kernels)
            found.setdefault(keys, launched.name)
    return found


# Blocks of text ---------------------------------------------------------------------------------


def _lines(origins: Iterable[Origin]) -> Iterator[Block]:
    """Yield the user's lines by file, and under each the modules that run it."""
    places: dict[tuple[str, int], dict[str, set[str]]] = {}
    codes: dict[tuple[str, int], str] = {}
    for o in origins:
        place, _, _ = o.location.rpartition(" in ")
        path, _, row = place.rpartition(":")
        key = path, int(row or 0)
        codes.setdefault(key, o.code)
        places.setdefault(key, {}).setdefault(o.module, set()).add(o.node)
    last = ""
    for (file, number), modules in sorted(places.items()):
        if file != last:
            last = file
            yield Block(f"# {file}\n")
        every = frozenset().union(*modules.values())
        yield Block(f"{number:5}  {codes[file, number] or '...'}\n", every)
        for module, nodes in modules.items():
            if module:
                yield Block(f"       # {module}\n", frozenset(nodes))


def _fx(line: str) -> Block:
    name = line.strip().partition(":")[0].partition(" =")[0]
    indented = line.startswith("  ") and " = " in line
    return Block(_FROM.sub("", line) + "\n", frozenset((name,)) if indented else NONE)


def _items(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield each line that is indented as the first with what is below it."""
    item: list[str] = []
    depth = -1
    for line in lines:
        inner = len(line) - len(line.lstrip())
        depth = inner if depth < 0 else depth
        if item and inner <= depth:
            yield item
            item = []
        item.append(line)
    if item:
        yield item


def _program(text: str, made: Made) -> Iterator[Block]:
    """Yield the blocks of programs as text."""
    for item in _items(text.splitlines()):
        yield from _blocks(item, {}, made)


def _blocks(item: list[str], rows: dict[int, str], made: Made) -> Iterator[Block]:
    """Yield the blocks of a line and what is below it; what rows of origins are is kept."""
    head = item[0].strip()
    if _HEADER.match(head):
        yield Block(item[0] + "\n")
        own: dict[int, str] = {}
        for part in _items(item[1:]):
            yield from _blocks(part, own, made)
    elif (origin := _ORIGIN.match(head)) is not None:
        rows[int(origin[1])] = origin[2].strip('"')
    elif head == "do":
        yield Block(item[0] + "\n")
        yield from _instructions(item[1:], made)
    else:
        yield Block("\n".join(item) + "\n", _nodes(item, rows, made))


def _nodes(item: list[str], rows: Mapping[int, str], made: Made) -> frozenset[str]:
    """Return what an operation or a kernel computes, by its references and by its name."""
    found: set[str] = set()
    for line in item:
        refs = _ROWS.search(line)
        if refs is not None:
            found |= {rows.get(int(row), "") for row in refs[1].replace("@", " ").split()}
        named = _NAMED.match(line.strip())
        if named is not None:
            found |= made.kernels.get(named[1], NONE)
    return frozenset(found - {""})


def _instructions(lines: Iterable[str], made: Made) -> Iterator[Block]:
    """Yield what a host program does, in stretches from remark to remark."""
    stretch: list[str] = []
    nodes = NONE
    for line in lines:
        if line.strip().startswith('note "%'):
            if stretch:
                yield Block("\n".join(stretch) + "\n", nodes)
            named = tuple(re.findall(r"%([^\s,\"]+)", line.partition(" (")[0]))
            nodes, stretch = made.remarks.get(named, frozenset(named)), []
        stretch.append(line)
    if stretch:
        yield Block("\n".join(stretch) + "\n", nodes)
