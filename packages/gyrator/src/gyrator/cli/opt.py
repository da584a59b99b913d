"""`gyrator opt` and `verify`: the product's own passes and stages, on the text of a program."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import asdict, evolve, field, frozen
from rich.console import Console

from gyrator.autotune.kernels import Budget
from gyrator.cli.output import emit, say
from gyrator.config import read_config
from gyrator.engine.passes import listed, times
from gyrator.engine.pipeline import Stages
from gyrator.options import Options, make_options, options_of_text
from gyrator.session import Session, default_session
from gyrator.targets import discover
from gyrator_codegen.passes import all_passes
from gyrator_ir.diagnostics import GyratorError, ParseError
from gyrator_ir.host.parse import parse as parse_host
from gyrator_ir.levels import HOST, KERNEL, LEVELS, LOOP, TILE, level_of_text, parse_program
from gyrator_ir.passes import Level, PassEdits, Pipeline, Tracer
from gyrator_ir.text.passes import parse_pipeline
from gyrator_ir.tile.nodes import TileProgram
from gyrator_lowering.fx_passes import FX
from gyrator_scheduler.passes import kernel_pipeline, loop_pipeline
from gyrator_scheduler.stage import offered

KERNELS = "kernels"
"""What `to` says for the text of the kernels."""


class OptError(GyratorError):
    """The request of `gyrator opt` makes no sense."""


@frozen(kw_only=True)
class OptRequest:
    """What to do with a text: the passes of its level, then stages, up to a level or a language."""

    start: str = ""
    """Level of the text; empty reads it from its first line."""
    to: str = ""
    """A level, whose passes are the last to run; `kernels`, for their text; or a host language, for
    that of the host program. Empty stays at the level of the text."""
    passes: str = ""
    """Run these instead of the passes of the text's level."""
    without: tuple[str, ...] = ()
    """Passes to leave out."""
    before: str = ""
    """Stop before the pass of this name."""
    after: str = ""
    """Stop after the pass of this name."""
    options: Options = field(factory=Options)
    """As `torch.compile` takes them."""


def run_command(args: argparse.Namespace) -> int:
    """Do what `gyrator opt` was asked for; 1 where `--run` finds a difference."""
    if args.list:
        rows = listed()
        data = [asdict(row) for row in rows]
        emit(args, data, lambda console: say(console, "\n".join(map(str, rows))))
        return 0
    if args.json and not args.runs:
        args.parser.error("argument --json: needs --list or --run; programs are printed as text")
    text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text("utf-8")
    request = OptRequest(
        start=args.start,
        to=args.to,
        passes=args.passes,
        without=tuple(filter(None, args.without.split(","))),
        before=args.before,
        after=args.after,
        options=make_options(options=options_of_text(args.option)),
    )
    tracer = Tracer(texts=args.print_changed)
    made = run_opt(text, request, tracer)
    status = _try(args, made, request, args.seed) if args.runs else 0
    if not args.runs:
        print(made, end="")
    if args.print_changed:
        print("".join(step.diff() for step in tracer.steps), end="", file=sys.stderr)
    if args.time:
        Console(stderr=True).print(times(tracer.steps))
    return status


def _try(args: argparse.Namespace, text: str, request: OptRequest, seed: int = 0) -> int:
    """Run a program's text; return 1 where it does not do what its interpreter says."""
    from gyrator.cli.trial import try_program

    try:
        program = parse_program(text)
    except ParseError as error:
        help = "`gyrator repro` runs graphs; other texts run from the level that they were made of"
        levels = ", ".join(LEVELS)
        said = f"--run takes a program of one of the levels {levels}"
        raise OptError.of("GY-OPT-002", said, help=help) from error
    with _opened(request) as session:
        found = try_program(program, Stages(session.engine(session.options)), seed)
    emit(args, asdict(found), lambda console: say(console, str(found)))
    return int(bool(found.difference))


def run_verify(args: argparse.Namespace) -> int:
    """Run every kernel of a program beside its IR; 1 where a tiled one differs."""
    text = args.file.read_text("utf-8")
    request = OptRequest(to=HOST.name)
    if _level(text, "") is TILE:
        return _try(args, text, request)
    text = run_opt(text, request)
    found = Stages(default_session().engine(Options())).verify(parse_host(text))
    said = "\n".join(f"{name}: {what}" for name, what in found.items())
    emit(args, found, lambda console: say(console, said))
    return 0


def run_opt(text: str, request: OptRequest, tracer: Tracer | None = None) -> str:
    """Return the text after the request's passes and stages. Verifies at every border.

    Raises `OptError` (GY-OPT-001 for text of no known level, GY-OPT-002 for a stage that does not
    exist from there), and what parsers, passes, verifiers and stages raise.
    """
    level = _level(text, request.start)
    assert level.parse is not None
    program = level.verify(level.parse(text))
    with _opened(request) as session:
        stages = Stages(session.engine(session.options))
        if level is TILE:
            return _tiled(program, request, stages, tracer)
        return _run(program, level, request, stages, tracer)


def _opened(request: OptRequest) -> Session:
    return Session(options=request.options, targets=discover(read_config()))


_LEVELS: Mapping[str, Level[Any]] = MappingProxyType({FX.name: FX, **LEVELS})
"""In the order in which stages lead from one to the next."""


def _tiled(program: TileProgram, request: OptRequest, stages: Stages, tracer: Tracer | None) -> str:
    """Run the named passes over kernels that are tiled already, and show or print them."""
    if request.to not in ("", TILE.name, KERNELS):
        raise _no_way(f"no stage leads from {TILE.name} to {request.to!r}")
    if request.without or request.before or request.after:
        raise _no_way(f"say which passes run on text of the level {TILE.name}")
    passes = parse_pipeline(request.passes, all_passes())
    program = Pipeline(TILE, passes, "each").run(program, tracer)
    if request.to != KERNELS:
        return TILE.show(program)
    return "\n".join(unit.text for unit in stages.printed(program))


def _run(
    program: Any, level: Level[Any], request: OptRequest, stages: Stages, tracer: Tracer | None
) -> str:
    languages, targets = stages.setting.wrappers, stages.setting.by_device
    asked = any((request.passes, request.without, request.before, request.after))
    wanted = request.to or (level.name if asked else "")
    order = (*_LEVELS, KERNELS, *languages)
    if wanted and (wanted not in order or order.index(wanted) < order.index(level.name)):
        raise _no_way(f"no stage leads from {level.name} to {wanted!r}")
    if asked and level is HOST:
        raise _no_way(f"there are no passes on the level {level.name}")
    if not wanted:
        return level.show(program)
    if level is not HOST:
        options = stages.scheduler_options()
        budget = Budget(stages.setting.options.autotune_seconds)
        graphs = stages.graph_passes(budget)
        pipelines = graphs, loop_pipeline(options, targets), kernel_pipeline(options)
        edits, wanted = _edits(request, level, wanted, pipelines)
        options = evolve(options, passes=edits)
        if level is FX:
            graphs = edits.apply(graphs)
            graphs.run(program, tracer)
            if wanted == FX.name:
                return FX.show(program)
            lowering = stages.lowering_options(program, budget, graphs)
            program, level = stages.lowered(program, lowering), LOOP
        if level is LOOP:
            if wanted == LOOP.name:
                program = offered(program, targets, stages.refused_template)
                return LOOP.show(LOOP.verify(loop_pipeline(options, targets).run(program, tracer)))
            program = stages.scheduled(program, options, tracer)
        else:
            program = KERNEL.verify(kernel_pipeline(options).run(program, tracer))
        if wanted == KERNEL.name:
            return KERNEL.show(program)
        program = stages.hosted(program, options)
    if wanted == HOST.name:
        return HOST.show(program)
    if wanted in languages:
        return languages[wanted].emit(program).text
    if wanted == TILE.name:
        return "\n".join(TILE.show(tiled) for tiled in stages.tiled(program, tracer))
    return "\n".join(u.text for part in stages.kernels(program).values() for u in part)


def _edits(
    request: OptRequest, level: Level[Any], wanted: str, pipelines: tuple[Pipeline[Any], ...]
) -> tuple[PassEdits, str]:
    """Return what the request changes of these pipelines, and where to stop."""
    edits = PassEdits()
    if request.passes:
        table = next(p for p in pipelines if p.level is level).table
        edits = edits.only(level.name, *parse_pipeline(request.passes, table))
    edits = edits.without(*request.without)
    edits.check(pipelines)
    stop = request.before or request.after
    if not stop:
        return edits, wanted
    edited = [edits.apply(p) for p in pipelines]
    PassEdits().without(stop).check(edited)
    found = next(p for p in edited if stop in p.names)
    order = list(_LEVELS)
    if order.index(found.level.name) < order.index(level.name):
        raise _no_way(f"pass {stop!r} of the level {found.level.name} comes before {level.name}")
    passes = found.until(stop, included=not request.before).running
    return edits.only(found.level.name, *passes), found.level.name


def _level(text: str, start: str) -> Level[Any]:
    if start:
        if start not in _LEVELS:
            raise _no_way(f"there is no level {start!r}; there are: {', '.join(_LEVELS)}")
        return _LEVELS[start]
    try:
        return level_of_text(text, (FX,))
    except ParseError as error:
        headers = ", ".join(level.kind for level in _LEVELS.values())
        help = f"its first line starts with one of {headers}"
        raise OptError.of("GY-OPT-001", "the text is no program", help=help) from error


def _no_way(message: str) -> OptError:
    return OptError.of("GY-OPT-002", message, help="see `gyrator opt --help`")
