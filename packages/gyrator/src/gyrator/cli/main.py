"""The command line; `gyrator --help` lists its commands."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from gyrator.cli.aot import add_parser as add_aot
from gyrator.cli.report import add_commands as add_reports
from gyrator.cli.repro import add_commands as add_repros
from gyrator_ir.diagnostics import GyratorError

if TYPE_CHECKING:
    from gyrator_runtime.cache import Cache


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0, 1 for a finding, 2 for bad input."""
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
    except GyratorError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"gyrator: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gyrator", description="A compiler for PyTorch programs.")
    parser.add_argument("--version", action="version", version=f"gyrator {version('gyrator')}")
    commands = parser.add_subparsers(required=True, metavar="command")
    add_reports(commands)
    doctor = commands.add_parser("doctor", help="what works on this machine, what to install")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)
    options = commands.add_parser("options", help="every option of torch.compile's options=")
    options.add_argument("--json", action="store_true", help="print JSON")
    options.set_defaults(run=_options)
    modes = commands.add_parser("modes", help="what each mode sets")
    modes.add_argument("--json", action="store_true", help="print JSON")
    modes.set_defaults(run=_modes)
    cache = commands.add_parser(
        "cache", help="where the cache is, how large; its entries as a file"
    )
    cache.add_argument("action", nargs="?", choices=("export", "import"))
    cache.add_argument("file", nargs="?", type=Path, help="what to export to, or import from")
    cache.add_argument(
        "--prune", metavar="SIZE", help="shrink it to this size: bytes, or 500MB, 2GiB"
    )
    cache.set_defaults(run=_cache)
    add_aot(commands)
    opt = commands.add_parser("opt", help="run passes or stages on the text of a program")
    opt.add_argument("file", nargs="?", default="-", help="a .gy file; - reads standard input")
    opt.add_argument("--from", dest="start", default="", help="its level: loop, kernel, tile, host")
    opt.add_argument(
        "--to",
        default="",
        help="run everything up to the passes of a level: loop, kernel, tile, host; or up to a "
        "text: kernels, python, cpp, fx",
    )
    opt.add_argument(
        "--passes",
        default="",
        help="instead of those of the text's level, `drop-dead-buffers,inline-pointwise{cost=4}`",
    )
    opt.add_argument("--without", default="", help="passes to leave out, separated by commas")
    stop = opt.add_mutually_exclusive_group()
    stop.add_argument("--before", default="", metavar="PASS", help="stop before this pass")
    stop.add_argument("--after", default="", metavar="PASS", help="stop after this pass")
    opt.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of torch.compile; may be repeated",
    )
    opt.add_argument("--time", action="store_true", help="say how long each pass took")
    opt.add_argument(
        "--print-changed", action="store_true", help="show what each pass changed, as a diff"
    )
    opt.add_argument("--list", action="store_true", help="list the passes of all levels")
    opt.set_defaults(run=_opt)
    verify = commands.add_parser("verify", help="run the kernels of a program beside their IR")
    verify.add_argument("file", type=Path, help="a .gy file of any level")
    verify.set_defaults(run=_verify)
    add_repros(commands)
    return parser


def _doctor(args: argparse.Namespace) -> int:
    from attrs import asdict
    from rich.console import Console

    from gyrator.cli.doctor import examine, table

    findings = examine()
    if args.json:
        print(json.dumps([asdict(f) for f in findings], indent=1))
    else:
        Console().print(table(findings))
    return 0 if all(f.state != "no" for f in findings) else 1


def _options(args: argparse.Namespace) -> int:
    from gyrator.options import list_options

    if args.json:
        print(json.dumps(list_options(), indent=1))
        return 0
    rows = [(n, repr(f["default"]), f["meaning"]) for n, f in list_options().items()]
    _print_table(("option", "default", "meaning"), rows)
    return 0


def _modes(args: argparse.Namespace) -> int:
    from gyrator.options import list_modes

    if args.json:
        print(json.dumps(list_modes(), indent=1))
        return 0
    modes = list_modes().items()
    rows = [(n, ", ".join(f"{k}={v!r}" for k, v in o.items()) or "nothing") for n, o in modes]
    _print_table(("mode", "sets"), rows)
    return 0


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*titles)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _cache(args: argparse.Namespace) -> int:
    from gyrator.config import parse_bytes, read_config
    from gyrator_runtime.cache import Cache

    config = read_config()
    if args.action is not None:
        return _transfer(args.action, args.file, Cache(config.cache_root, config.cache_bytes))
    if args.prune is not None:
        try:
            Cache(config.cache_root, config.cache_bytes).prune(parse_bytes(args.prune))
        except ValueError:
            print(f"gyrator cache: {args.prune!r} is no size", file=sys.stderr)
            return 2
    files = [p for p in config.cache_root.rglob("*") if p.is_file()]
    size = sum(p.stat().st_size for p in files)
    print(f"{config.cache_root}: {size / 2**20:.1f} MiB in {len(files)} files")
    return 0


def _transfer(action: str, file: Path | None, cache: Cache) -> int:
    if file is None:
        print(f"gyrator cache {action} needs the name of a file", file=sys.stderr)
        return 2
    from gyrator_runtime.transfer import export_cache, import_cache

    count = export_cache(cache, file) if action == "export" else import_cache(cache, file)
    print(f"{count} entries")
    return 0


def _opt(args: argparse.Namespace) -> int:
    from gyrator.cli.opt import OptRequest, run_opt  # the other commands need no stage
    from gyrator.engine.passes import listed, times
    from gyrator.options import make_options, options_of_text
    from gyrator_ir.passes import Tracer

    if args.list:
        print(listed(), end="")
        return 0
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
    print(run_opt(text, request, tracer), end="")
    if args.print_changed:
        print("".join(step.diff() for step in tracer.steps), end="", file=sys.stderr)
    if args.time:
        from rich.console import Console

        Console(stderr=True).print(times(tracer.steps))
    return 0


def _verify(args: argparse.Namespace) -> int:
    from gyrator.cli.opt import OptRequest, run_opt
    from gyrator.engine.pipeline import Stages
    from gyrator.options import Options
    from gyrator.session import default_session
    from gyrator_ir.host.parse import parse

    text = run_opt(args.file.read_text(), OptRequest(to="host"))
    found = Stages(default_session().engine(Options())).verify(parse(text))
    for name, said in found.items():
        print(f"{name}: {said}")
    return 0
