"""`gyrator opt` and `verify`: run passes and stages on the text of a program."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import asdict, evolve, field
from rich.console import Console

from gyrator.autotune.kernels import Budget
from gyrator.cli.output import emit, say
from gyrator.config import read_config
from gyrator.engine.passes import listed, times
from gyrator.engine.pipeline import Stages
from gyrator.options import Options, make_options, options_of_text
from gyrator.session import Session, default_session
from gyrator.targets import discover
from gyrator_codegen.passes.registry import all_passes
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError, ParseError
from gyrator_ir.host.parse import parse as parse_host
from gyrator_ir.levels import HOST, KERNEL, LEVELS, LOOP, TILE, level_of_text, parse_program
from gyrator_ir.passes import Level, PassEdits, Pipeline, Tracer
from gyrator_ir.text.passes import parse_pipeline
from gyrator_ir.tile.nodes import TileProgram
from gyrator_lowering.fx_passes import FX
from gyrator_scheduler.passes import kernel_pipeline, loop_pipeline
from gyrator_scheduler.stage import replace_missing_templates

KERNELS = "kernels"
"""The value of `to` for the text of the kernels."""


class OptError(GyratorError):
    """An invalid request to `gyrator opt`."""


@frozen(kw_only=True)
class OptRequest:
    """The processing of a text: the passes of its level, then stages, up to a level or a
    language."""

    start: str = ""
    """The level of the text; if empty, determined by its first line."""
    to: str = ""
    """A level, whose passes are the last to run; `kernels` for the kernel text; or a host language
    for the text of the host program. If empty, the level of the text."""
    passes: str = ""
    """Passes to run instead of those of the text's level."""
    without: tuple[str, ...] = ()
    """Passes to skip."""
    before: str = ""
    """Stop before the pass of this name."""
    after: str = ""
    """Stop after the pass of this name."""
    options: Options = field(factory=Options)
    """The options of `torch.compile`."""


def run_command(args: argparse.Namespace) -> int:
    """Run `gyrator opt`; return 1 if `--run` finds a difference."""
    if args.list:
        rows = listed()
        data = [asdict(row) for row in rows]
        emit(args, data, lambda console: say(console, "\n".join(map(str, rows))))
        return 0
    if args.json and not args.runs:
        args.parser.error("argument --json: requires --list or --run; programs are printed as text")
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
    result = run_opt(text, request, tracer)
    status = _try(args, result, request, args.seed) if args.runs else 0
    if not args.runs:
        print(result, end="")
    if args.print_changed:
        print("".join(step.diff() for step in tracer.steps), end="", file=sys.stderr)
    if args.time:
        Console(stderr=True).print(times(tracer.steps))
    return status


def _try(args: argparse.Namespace, text: str, request: OptRequest, seed: int = 0) -> int:
    """Run a program's text; return 1 if it differs from its interpreter."""
    from gyrator.cli.trial import try_program

    try:
        program = parse_program(text)
    except ParseError as error:
        help = "use `gyrator repro` for graphs; run other texts at their source level"
        levels = ", ".join(LEVELS)
        message = f"--run requires a program of one of the levels {levels}"
        raise OptError.of("GY-OPT-002", message, help=help) from error
    with _opened(request) as session:
        trial = try_program(program, Stages(session.engine(session.options).context), seed)
    emit(args, asdict(trial), lambda console: say(console, str(trial)))
    return int(bool(trial.difference))


def run_verify(args: argparse.Namespace) -> int:
    """Compare every kernel of a program with its IR; return 1 if a tiled one differs."""
    text = args.file.read_text("utf-8")
    request = OptRequest(to=HOST.name)
    if _level(text, "") is TILE:
        return _try(args, text, request)
    text = run_opt(text, request)
    runs = Stages(default_session().engine(Options()).context).verify(parse_host(text))
    message = "\n".join(f"{name}: {outcome}" for name, outcome in runs.items())
    emit(args, runs, lambda console: say(console, message))
    return 0


def run_opt(text: str, request: OptRequest, tracer: Tracer | None = None) -> str:
    """Return the text after the request's passes and stages. Every level is verified.

    Raises `OptError` (GY-OPT-001 for text of an unknown level, GY-OPT-002 for an unreachable
    stage), and the errors of parsers, passes, verifiers and stages.
    """
    level = _level(text, request.start)
    assert level.parse is not None
    program = level.verify(level.parse(text))
    with _opened(request) as session:
        stages = Stages(session.engine(session.options).context)
        if level is TILE:
            return _tiled(program, request, stages, tracer)
        return _run(program, level, request, stages, tracer)


def _opened(request: OptRequest) -> Session:
    return Session(options=request.options, targets=discover(read_config()))


_LEVELS: Mapping[str, Level[Any]] = MappingProxyType({FX.name: FX, **LEVELS})
"""In the order of the stages."""


def _tiled(program: TileProgram, request: OptRequest, stages: Stages, tracer: Tracer | None) -> str:
    """Run the named passes over tiled kernels, and return their Tile IR or their text."""
    if request.to not in ("", TILE.name, KERNELS):
        raise _invalid(f"no stage leads from {TILE.name} to {request.to!r}")
    if request.without or request.before or request.after:
        raise _invalid(f"use --passes to select the passes for text of the level {TILE.name}")
    passes = parse_pipeline(request.passes, all_passes())
    program = Pipeline(TILE, passes, "each").run(program, tracer)
    if request.to != KERNELS:
        return TILE.show(program)
    return "\n".join(unit.text for unit in stages.printed(program))


def _run(
    program: Any, level: Level[Any], request: OptRequest, stages: Stages, tracer: Tracer | None
) -> str:
    languages = stages.context.wrappers
    edited = any((request.passes, request.without, request.before, request.after))
    goal = request.to or (level.name if edited else "")
    order = (*_LEVELS, KERNELS, *languages)
    if goal and (goal not in order or order.index(goal) < order.index(level.name)):
        raise _invalid(f"no stage leads from {level.name} to {goal!r}")
    if edited and level is HOST:
        raise _invalid(f"there are no passes for the level {level.name}")
    if not goal:
        return level.show(program)
    if level is not HOST:
        program, level = _staged(program, level, goal, request, stages, tracer)
    if level is not HOST or goal == HOST.name:
        return level.show(program)
    if goal in languages:
        return languages[goal].emit(program).text
    if goal == TILE.name:
        return "\n".join(TILE.show(tiled) for tiled in stages.tiled(program, tracer))
    return "\n".join(u.text for part in stages.kernels(program).values() for u in part)


def _staged(
    program: Any, level: Level[Any], goal: str, request: OptRequest, stages: Stages,
    tracer: Tracer | None,
) -> tuple[Any, Level[Any]]:  # fmt: skip
    """Run passes and stages up to the goal or the last pass, at most up to the host program; return
    the program and its level."""
    options, targets = stages.scheduler_options(), stages.context.by_device
    budget = Budget(stages.context.options.autotune_seconds)
    graphs = stages.graph_passes(budget)
    pipelines = graphs, loop_pipeline(options, targets), kernel_pipeline(options)
    edits, goal = _edits(request, level, goal, pipelines)
    options = evolve(options, passes=edits)
    if level is FX:
        graphs = edits.apply(graphs)
        graphs.run(program, tracer)
        if goal == FX.name:
            return program, FX
        lowering = stages.lowering_options(program, budget, graphs)
        program, level = stages.lowered(program, lowering), LOOP
    if level is LOOP and goal == LOOP.name:
        program = replace_missing_templates(program, targets, stages.refused_template)
        return LOOP.verify(loop_pipeline(options, targets).run(program, tracer)), LOOP
    if level is LOOP:
        program = stages.scheduled(program, options, tracer)
    else:
        program = KERNEL.verify(kernel_pipeline(options).run(program, tracer))
    return (program, KERNEL) if goal == KERNEL.name else (stages.hosted(program, options), HOST)


def _edits(
    request: OptRequest, level: Level[Any], goal: str, pipelines: tuple[Pipeline[Any], ...]
) -> tuple[PassEdits, str]:
    """Return the request's edits of these pipelines, and the level to stop at."""
    edits = PassEdits()
    if request.passes:
        table = next(p for p in pipelines if p.level is level).table
        edits = edits.only(level.name, *parse_pipeline(request.passes, table))
    edits = edits.without(*request.without)
    edits.check(pipelines)
    stop = request.before or request.after
    if not stop:
        return edits, goal
    edited = [edits.apply(p) for p in pipelines]
    PassEdits().without(stop).check(edited)
    pipeline = next(p for p in edited if stop in p.names)
    order = list(_LEVELS)
    if order.index(pipeline.level.name) < order.index(level.name):
        raise _invalid(
            f"pass {stop!r} of the level {pipeline.level.name} comes before {level.name}"
        )
    passes = pipeline.until(stop, included=not request.before).running
    return edits.only(pipeline.level.name, *passes), pipeline.level.name


def _level(text: str, start: str) -> Level[Any]:
    if start:
        if start not in _LEVELS:
            raise _invalid(f"there is no level {start!r}; known levels are: {', '.join(_LEVELS)}")
        return _LEVELS[start]
    try:
        return level_of_text(text, (FX,))
    except ParseError as error:
        headers = ", ".join(level.kind for level in _LEVELS.values())
        help = f"its first line starts with one of {headers}"
        raise OptError.of("GY-OPT-001", "the text is not a program", help=help) from error


def _invalid(message: str) -> OptError:
    return OptError.of("GY-OPT-002", message, help="see `gyrator opt --help`")
