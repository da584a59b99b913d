"""`gyrator opt`: any pass or stage on the text of a program, in a process of its own."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attrs import frozen

from gyrator.config import read_config
from gyrator.emission import units_of
from gyrator.targets import discover
from gyrator_ir.diagnostics import Diagnostic, GyratorError
from gyrator_ir.host.parse import parse as parse_host
from gyrator_ir.host.print import show as show_host
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.kernel.parse import parse as parse_kernel
from gyrator_ir.kernel.print import show as show_kernel
from gyrator_ir.kernel.verify import verify as verify_kernel
from gyrator_ir.loop.parse import parse as parse_loop
from gyrator_ir.loop.print import show as show_loop
from gyrator_ir.loop.verify import verify as verify_loop
from gyrator_ir.passes import Pipeline, parse_pipeline
from gyrator_ir.target import Target
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.passes import all_passes
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_wrapper_python.stage import PythonWrapper


class OptError(GyratorError):
    """The request of `gyrator opt` makes no sense."""


@frozen
class Level:
    """One text form: how it is read, written and checked."""

    name: str
    header: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str]
    verify: Callable[[Any], Any]


LEVELS: Mapping[str, Level] = MappingProxyType({
    level.name: level
    for level in (
        Level("loop", "loop.program", parse_loop, show_loop, verify_loop),
        Level("kernel", "kernel.schedule", parse_kernel, show_kernel, verify_kernel),
        Level("host", "host.program", parse_host, show_host, verify_host),
    )
})  # fmt: skip
_ORDER = ("loop", "kernel", "host")
TEXTS = ("kernels", "python")
"""What a host program can be written as: the kernels' source, or the Python host program."""


@frozen
class OptRequest:
    """What to do with a text: passes first, then stages up to a level or a language."""

    passes: str = ""
    start: str = ""
    """Level of the text; empty reads it from its first line."""
    to: str = ""
    """`loop`, `kernel`, `host`, `kernels` or `python`; empty stays at the level of the text."""


def run_opt(text: str, request: OptRequest) -> str:
    """Return the text after the request's passes and stages. Verifies at every border.

    Raises `OptError` (GY-OPT-001 for text of no known level, GY-OPT-002 for a stage that does not
    exist from there), and what parsers, verifiers and stages raise.
    """
    level = _level(text, request.start)
    program = level.verify(level.parse(text))
    if request.passes:
        if level.name != "loop":
            raise _no_way(f"passes run on the level loop, the text is {level.name}")
        passes = parse_pipeline(request.passes, all_passes())
        program = Pipeline(passes, level.verify, "each").run(program)
    target = request.to or level.name
    targets = discover(read_config())
    by_device = {device: t for device, (_, t) in targets.items()}
    wanted = "host" if target in TEXTS else target
    if wanted not in _ORDER or _ORDER.index(wanted) < _ORDER.index(level.name):
        raise _no_way(f"no stage leads from {level.name} to {target!r}")
    for name in _ORDER[_ORDER.index(level.name) : _ORDER.index(wanted)]:
        level, program = _stage(name, program, by_device)
    if target == "python":
        return PythonWrapper().emit(program).text
    if target == "kernels":
        parts = [
            unit.text
            for definition, t in targets.values()
            for unit in units_of(program, definition.kernels, t)
        ]
        return "\n".join(parts)
    return level.show(program)


def list_passes() -> list[tuple[str, str]]:
    """Return the name and first line of each pass."""
    return [
        (name, (cls.__doc__ or "").strip().splitlines()[0])
        for name, cls in sorted(all_passes().items())
    ]


def _level(text: str, start: str) -> Level:
    if start:
        if start not in LEVELS:
            raise _no_way(f"there is no level {start!r}; there are: {', '.join(LEVELS)}")
        return LEVELS[start]
    for line in text.splitlines():
        if line.strip() and not line.startswith(";"):
            for level in LEVELS.values():
                if line.startswith(level.header):
                    return level
            break
    headers = ", ".join(level.header for level in LEVELS.values())
    raise OptError(
        Diagnostic(
            "GY-OPT-001",
            "the text is no program",
            help=f"its first line starts with one of {headers}",
        )
    )


def _stage(name: str, program: Any, targets: Mapping[str, Target]) -> tuple[Level, Any]:
    options = SchedulerOptions()
    if name == "loop":
        return LEVELS["kernel"], verify_kernel(schedule(program, options, targets))
    return LEVELS["host"], verify_host(plan_host(program, options, targets))


def _no_way(message: str) -> OptError:
    return OptError(Diagnostic("GY-OPT-002", message, help="see `gyrator opt --help`"))
