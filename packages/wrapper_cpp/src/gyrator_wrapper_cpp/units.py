"""Distribution of a program's functions over translation units, which compile in parallel."""

import re
from collections.abc import Iterator

from attrs import field

from gyrator_ir.define import frozen
from gyrator_ir.source import HostUnit

ENTRY = "gy_main"
"""`extern "C" int32_t gy_main(GyProgramContext*, GyValue* inputs, GyValue* outputs)`."""
LIMIT = 2000
"""Maximum number of lines of a translation unit, including the preamble."""
_FULL = 900
"""Minimum number of lines for a separate unit: compiling its preamble takes as long as these."""
_PART = 130
"""Lines of a typical function, the slack in the size of units."""
_CALL = re.compile(r"\b(p\d+_\w+)\(")
_VISIBLE = '__attribute__((visibility("default")))'


@frozen
class Function:
    """A function without a result."""

    name: str
    parameters: str
    body: tuple[str, ...]

    @property
    def calls(self) -> frozenset[str]:
        """The functions of the program that it calls."""
        return frozenset(name for line in self.body for name in _CALL.findall(line))

    @property
    def types(self) -> str:
        """The parameters without their names."""
        return ", ".join(p.rpartition(" ")[0] for p in self.parameters.split(", "))

    @property
    def names(self) -> str:
        """The names of the parameters."""
        return ", ".join(p.rpartition(" ")[2] for p in self.parameters.split(", "))


@frozen
class Sheet:
    """A program before its distribution over units."""

    name: str
    runner: str
    """The function that runs it."""
    inputs: int
    outputs: int
    frames: tuple[str, ...] = field()
    """The lines of the frames' types."""
    functions: tuple[Function, ...]
    """Callees before callers; the runner is the last."""

    @property
    def entry(self) -> list[str]:
        """The lines of the entry."""
        return [
            f'extern "C" {_VISIBLE} int32_t {ENTRY}(',
            "    GyProgramContext* context, GyValue* inputs, GyValue* outputs) {",
            f"  return gy::enter({self.runner}, context, inputs, {self.inputs}, outputs, "
            f"{self.outputs});",
            "}",
        ]


def units(sheet: Sheet, preamble: str) -> tuple[HostUnit, ...]:
    """Return the units of a program; the first contains the runner and the entry."""
    groups = _groups(sheet, LIMIT - len(preamble.splitlines()) - len(sheet.frames) - 20)
    home = {f.name: k for k, group in enumerate(groups) for f in group}
    table = [f.name for group in groups[1:] for f in group]
    slots = {name: k for k, name in enumerate(table)}
    functions = {f.name: f for f in sheet.functions}
    result = []
    for k, group in enumerate(groups):
        called = dict.fromkeys(n for f in group for n in sorted(f.calls) if home.get(n, k) != k)
        lines = [f"// Host program {sheet.name}, unit {k + 1} of {len(groups)}.", ""]
        lines += sheet.frames
        lines += [_stub(functions[name], slots[name]) for name in called]
        for f in group:
            lines.extend(_written(f, exported=k > 0))
        lines += sheet.entry if k == 0 else []
        symbols = (ENTRY,) if k == 0 else tuple(_symbol(f) for f in group)
        result.append(HostUnit(f"host{k}", "\n".join([preamble, *lines]) + "\n", symbols))
    return tuple(result)


def _groups(sheet: Sheet, room: int) -> list[list[Function]]:
    """Distribute the functions: all in one group, or the runner, which nothing calls, in the first
    group, and the others in further ones.

    `room` is the number of lines for functions in a unit.
    """
    full = min(_FULL, room)
    total = sum(map(_lines, sheet.functions))
    if total <= full:
        return [list(sheet.functions)]
    others: list[list[Function]] = [[]]
    filled = 0
    share = min(full, total // -(-total // full) + _PART)
    for f in sheet.functions[:-1]:
        if others[-1] and filled + _lines(f) > share:
            others.append([])
            filled = 0
        others[-1].append(f)
        filled += _lines(f)
    return [[sheet.functions[-1]], *others]


def _lines(f: Function) -> int:
    return len(f.body) + 5


def _symbol(f: Function) -> str:
    return f"gy_{f.name}"


def _written(f: Function, exported: bool) -> Iterator[str]:
    if exported:
        yield f"static void {f.name}({f.parameters});"
        yield f'extern "C" {_VISIBLE} void {_symbol(f)}({f.parameters}) {{ {f.name}({f.names}); }}'
    yield f"static __attribute__((noinline)) void {f.name}({f.parameters}) {{"
    yield from (f"  {line}" for line in f.body)
    yield "}"
    yield ""


def _stub(f: Function, slot: int) -> str:
    """Return a function that calls a function of another unit."""
    context = "context" if f.names.startswith("context") else "f.context"
    target = f"reinterpret_cast<void (*)({f.types})>({context}->parts[{slot}])"
    return f"static void {f.name}({f.parameters}) {{ {target}({f.names}); }}"
