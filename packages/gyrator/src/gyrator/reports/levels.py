"""The levels of one compile side by side, with the ATen calls that each line comes from."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, field

from gyrator.reports.records import GraphRecord
from gyrator_ir.define import frozen
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
_MAX_NAMES = 8
"""Maximum number of nodes that a comment in a host program names."""


@frozen
class Block:
    """Consecutive lines that come from the same calls."""

    text: str
    nodes: frozenset[str] = NONE
    """The calls of the ATen graph that the lines compute."""


@frozen
class Pane:
    """The text of one level."""

    name: str
    language: str
    """The language, for highlighting."""
    blocks: tuple[Block, ...]


def panes(record: GraphRecord, attribution: "Attribution") -> tuple[Pane, ...]:
    """Return a graph's levels in the order of the stages; levels that are not in the cache are
    omitted.

    The first pane contains the user's lines, the last ones the text of the kernels.
    """
    schedule: Schedule | None = record.levels.get("kernel")
    panes_ = []
    if schedule is not None and any(o.location or o.module for o in schedule.origins):
        panes_.append(Pane("lines", "python", tuple(_lines(schedule.origins))))
    if "fx" in record.levels:
        blocks = (_fx(line) for line in FX.show(record.levels["fx"]).splitlines())
        panes_.append(Pane("fx", "gy", tuple(blocks)))
    for name in sorted(record.levels.keys() - {"fx"}, key=_order):
        text = _level_text(record.levels[name])
        panes_.append(Pane(name, "gy", tuple(_program(text, attribution))))
    if "host" not in record.levels and record.host_text:
        language = "c++" if "#include" in record.host_text else "python"
        panes_.append(Pane("host", language, (Block(record.host_text),)))
    texts: dict[str, list[Block]] = {}
    for k in record.kernels:
        nodes = frozenset(k.nodes) | attribution.kernels.get(k.name, NONE)
        texts.setdefault(k.language, []).append(Block(k.text.rstrip() + "\n", nodes))
    panes_ += [Pane(language, language, tuple(blocks)) for language, blocks in texts.items()]
    return tuple(panes_)


def _order(name: str) -> tuple[int, str]:
    """Return the sort key of a level's name: its level, then its part."""
    return ("loop", "kernel", "tile", "host").index(name.partition("_")[0]), name


def _level_text(program: Any) -> str:
    """Return the text of a program; a host program is shown without its kernels, which other
    levels contain."""
    if isinstance(program, HostProgram):
        bare = (evolve(p, kernels=()) for p in program.subprograms)
        program = evolve(program, kernels=(), subprograms=tuple(bare))
    return level_of(program).show(program)


# Attribution ------------------------------------------------------------------------------------


@frozen
class Attribution:
    """The ATen calls that the kernels of a program compute, over all their launches."""

    kernels: dict[str, frozenset[str]] = field(factory=dict)
    """The calls of each kernel of the host program, which may stand for several kernels of the
    schedule."""
    launched: dict[str, str] = field(factory=dict)
    """The kernel of the host program that runs for each kernel of the schedule."""
    nodes: dict[str, frozenset[str]] = field(factory=dict)
    """The calls of each node of the schedule."""
    remarks: dict[tuple[str, ...], frozenset[str]] = field(factory=dict)
    """The calls of each comment in the host program, by the names that it begins with."""

    @classmethod
    def of(cls, record: GraphRecord) -> "Attribution":
        """Read a graph's levels; empty for a graph from the cache."""
        schedule: Schedule | None = record.levels.get("kernel")
        host: HostProgram | None = record.levels.get("host")
        if schedule is None:
            return cls()
        names_of = {} if host is None else _launch_names(host)
        attribution = cls({}, {}, {}, {})
        for part in (schedule, *schedule.subschedules):
            ends = {t.start: t.end for t in part.together}
            n = 0
            while n < len(part.nodes):
                nodes = part.nodes[n : ends.get(n, n + 1)]
                n += len(nodes)
                rows = [tuple(part.origins[o].node for o in node.origins) for node in nodes]
                every = frozenset(name for names in rows for name in names)
                kernels = [node for node in nodes if isinstance(node, Kernel)]
                name = names_of.get(tuple(canonical(k)[0] for k in kernels), nodes[0].name)
                if kernels:
                    attribution.kernels[name] = attribution.kernels.get(name, NONE) | every
                for node, names in zip(nodes, rows, strict=True):
                    attribution.launched[node.name] = name
                    attribution.nodes[node.name] = every
                    attribution.remarks[names[:_MAX_NAMES]] = frozenset(names)
        return attribution


def _launch_names(host: HostProgram) -> dict[tuple[Kernel, ...], str]:
    """Return the names of the launches of a host program, by the kernels that they run."""
    names: dict[tuple[Kernel, ...], str] = {}
    for part in programs(host):
        for launched in part.kernels:
            if isinstance(launched, KernelGroup):
                kernels = tuple(launched.kernels[number] for number in launched.members)
            else:
                kernels = (launched,) if isinstance(launched, Kernel) else ()
            keys = tuple(evolve(k, name="k", origins=(), refusals=()) for k in kernels)
            names.setdefault(keys, launched.name)
    return names


# Blocks of text ---------------------------------------------------------------------------------


def _lines(origins: Iterable[Origin]) -> Iterator[Block]:
    """Yield the user's lines by file, each followed by the modules that run it."""
    nodes_of: dict[tuple[str, int], dict[str, set[str]]] = {}
    codes: dict[tuple[str, int], str] = {}
    for o in origins:
        position, _, _ = o.location.rpartition(" in ")
        path, _, row = position.rpartition(":")
        key = path, int(row or 0)
        codes.setdefault(key, o.code)
        nodes_of.setdefault(key, {}).setdefault(o.module, set()).add(o.node)
    last = ""
    for (file, number), modules in sorted(nodes_of.items()):
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
    """Yield each line at the indentation of the first one, together with its nested lines."""
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


def _program(text: str, attribution: Attribution) -> Iterator[Block]:
    """Yield the blocks of a program's text."""
    for item in _items(text.splitlines()):
        yield from _blocks(item, {}, attribution)


def _blocks(item: list[str], rows: dict[int, str], attribution: Attribution) -> Iterator[Block]:
    """Yield the blocks of a line and its nested lines; `rows` collects the origin table."""
    head = item[0].strip()
    if _HEADER.match(head):
        yield Block(item[0] + "\n")
        own: dict[int, str] = {}
        for part in _items(item[1:]):
            yield from _blocks(part, own, attribution)
    elif (origin := _ORIGIN.match(head)) is not None:
        rows[int(origin[1])] = origin[2].strip('"')
    elif head == "do":
        yield Block(item[0] + "\n")
        yield from _instructions(item[1:], attribution)
    else:
        yield Block("\n".join(item) + "\n", _nodes(item, rows, attribution))


def _nodes(item: list[str], rows: Mapping[int, str], attribution: Attribution) -> frozenset[str]:
    """Return the calls that an operation or a kernel computes, by its references and its name."""
    nodes: set[str] = set()
    for line in item:
        refs = _ROWS.search(line)
        if refs is not None:
            nodes |= {rows.get(int(row), "") for row in refs[1].replace("@", " ").split()}
        named = _NAMED.match(line.strip())
        if named is not None:
            nodes |= attribution.kernels.get(named[1], NONE)
    return frozenset(nodes - {""})


def _instructions(lines: Iterable[str], attribution: Attribution) -> Iterator[Block]:
    """Yield the instructions of a host program, grouped by comment."""
    group: list[str] = []
    nodes = NONE
    for line in lines:
        if line.strip().startswith('note "%'):
            if group:
                yield Block("\n".join(group) + "\n", nodes)
            named = tuple(re.findall(r"%([^\s,\"]+)", line.partition(" (")[0]))
            nodes, group = attribution.remarks.get(named, frozenset(named)), []
        group.append(line)
    if group:
        yield Block("\n".join(group) + "\n", nodes)
