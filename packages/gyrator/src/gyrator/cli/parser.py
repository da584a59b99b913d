"""The commands and their arguments; the code of each command is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gyrator.cli.usage import (
    Parser,
    PrintVersion,
    add_command,
    add_json,
    add_options,
    add_seed,
    at_least,
    check,
    complete,
    existing,
    graph,
    named_file,
    text_file,
)

KINDS = ("any", "error", "wrong", "slow")
"""The kinds of failure that `gyrator minify` can search for."""
SHELLS = ("bash", "zsh", "fish")
_LEVELS = ("fx", "loop", "kernel", "host", "tile")
_TEXTS = ("kernels", "python", "cpp")


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(prog="gyrator", description="A compiler for PyTorch programs.")
    parser.add_argument("--version", action=PrintVersion, nargs=0, help="print the version")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_reports(commands)
    _add_facts(commands)
    _add_cache(commands)
    _add_aot(commands)
    _add_opt(commands)
    _add_verify(commands)
    _add_repros(commands)
    return parser


def _add_reports(commands: Any) -> None:
    about = (
        "`module:function` or `file.py:function`; the function returns the function or module to "
        "compile, or a tuple of it and its arguments"
    )
    explain = add_command(
        commands,
        "explain",
        "gyrator.cli.report:run_explain",
        "compile a function and describe the result",
        "gyrator explain model.py:make",
        "gyrator explain model.py:make --option numerics=fast --json",
    )
    add_json(explain)
    report = add_command(
        commands,
        "report",
        "gyrator.cli.report:run_report",
        "compile and time a function, and write an HTML report",
        "gyrator report model.py:make -o report.html",
    )
    report.add_argument(
        "-o", "--output", type=Path, default=Path("gyrator-report.html"), metavar="FILE",
        help="output file (gyrator-report.html)",
    )  # fmt: skip
    report.add_argument("--runs", type=at_least(0), default=10, help="number of timed calls (10)")
    for parser in (explain, report):
        parser.add_argument("subject", metavar="MODULE:FUNCTION", help=about)
        add_options(parser)


def _add_facts(commands: Any) -> None:
    facts = (
        ("doctor", "gyrator.cli.doctor:run", "check this machine, and suggest fixes"),
        ("options", "gyrator.cli.settings:run_options", "list the options of torch.compile"),
        ("modes", "gyrator.cli.settings:run_modes", "list the modes and their options"),
    )
    for name, run, help in facts:
        add_json(add_command(commands, name, run, help, f"gyrator {name}"))
    completion = add_command(
        commands,
        "completion",
        "gyrator.cli.settings:run_completion",
        "print a shell completion script",
        'eval "$(gyrator completion bash)"',
        "gyrator completion fish > gyrator.fish",
    )
    completion.add_argument("shell", choices=SHELLS)


def _add_cache(commands: Any) -> None:
    cache = add_command(
        commands,
        "cache",
        "gyrator.cli.cache:run",
        "show, prune, export or import the cache",
        "gyrator cache",
        "gyrator cache --prune 500MB",
        "gyrator cache export warm.zip",
        "gyrator cache import warm.zip",
    )
    cache.add_argument("action", nargs="?", choices=("export", "import"))
    cache.add_argument("file", nargs="?", type=Path, help="file to export to or import from")
    cache.add_argument(
        "--prune",
        metavar="SIZE",
        help="prune the cache to this size, in bytes or with a unit: 500MB, 2GiB",
    )
    add_json(cache)


def _add_aot(commands: Any) -> None:
    aot = add_command(commands, "aot", "", "compile, show, check and time ahead-of-time packages")
    parts = aot.add_subparsers(required=True, metavar="action")
    make = add_command(
        parts,
        "compile",
        "gyrator.cli.aot:run_compile",
        "compile exported programs into a package",
        "gyrator aot compile model.pt2",
        "gyrator aot compile small=model.pt2 large=model.pt2 -o both.gya --option numerics=fast",
    )
    written = "a .pt2 file written by torch.export.save; NAME=FILE for several"
    check(make.add_argument("program", nargs="+", help=written), named_file)
    make.add_argument(
        "-o", "--package", type=Path, help="output file (default: the program's name with .gya)"
    )
    isas = make.add_argument(
        "--target", default="", help="instruction sets (avx2,neon) or GPUs (sm_90,sm_86+)"
    )
    complete(isas, _isas)
    add_options(make)
    make.add_argument("--runtime", choices=("python", "standalone", "libtorch"), default="python")
    when = "with `--option freezing=true`: when to compute constants (default: compile)"
    make.add_argument("--constants", choices=("compile", "load"), default="compile", help=when)
    show = add_command(
        parts, "list", "gyrator.cli.aot:run_list", "show the contents of a package",
        "gyrator aot list model.gya",
    )  # fmt: skip
    check(show.add_argument("package"), existing)
    compare = add_command(
        parts, "check", "gyrator.cli.aot:run_check",
        "compare a package with eager mode on random inputs",
        "gyrator aot check model.gya model.pt2 --runs 3",
    )  # fmt: skip
    compare.add_argument("--runs", type=at_least(1), default=5, help="number of random inputs (5)")
    measure = add_command(
        parts, "bench", "gyrator.cli.aot:run_bench", "time a package and eager mode",
        "gyrator aot bench model.gya model.pt2",
    )  # fmt: skip
    measure.add_argument("--runs", type=at_least(1), default=50, help="calls of each (50)")
    for part in (compare, measure):
        check(part.add_argument("package"), existing)
        program = part.add_argument("program", help="the .pt2 file that it was compiled from")
        check(program, existing)
        part.add_argument("--entry", default="", help="entry point, if there are several")
        add_seed(part)
    library = add_command(
        parts, "library", "gyrator.cli.aot:run_library",
        "install the C libraries that run packages without Python",
        "gyrator aot library --out prefix",
    )  # fmt: skip
    library.add_argument("--out", type=Path, required=True, help="installation prefix")
    isa = library.add_argument(
        "--target", default="", help="an instruction set of the machine to build for, such as neon"
    )
    complete(isa, _isas)
    for part in (make, show, compare, measure, library):
        add_json(part)


def _isas() -> tuple[str, ...]:
    from gyrator_runtime.device import ISA_LEVELS

    return ISA_LEVELS


def _add_opt(commands: Any) -> None:
    opt = add_command(
        commands,
        "opt",
        "gyrator.cli.opt:run_command",
        "run passes or stages on the text of a program",
        "gyrator opt loop.gy --to kernel",
        "gyrator opt loop.gy --to kernels --without merge-axes --option numerics=fast",
        "gyrator opt loop.gy --passes inline-pointwise --print-changed",
        "gyrator opt kernel.gy --run",
        "gyrator opt --list",
    )
    file = opt.add_argument(
        "file", nargs="?", default="-", help="a .gy file; - reads standard input"
    )
    check(file, text_file)
    start = opt.add_argument(
        "--from",
        dest="start",
        default="",
        metavar="LEVEL",
        help=f"level of the file: {', '.join(_LEVELS)}",
    )
    to = opt.add_argument(
        "--to",
        default="",
        metavar="LEVEL",
        help=f"stop after the passes of this level, or at a text: {', '.join(_TEXTS)}, fx",
    )
    complete(start, lambda: _LEVELS)
    complete(to, lambda: (*_LEVELS, *_TEXTS))
    opt.add_argument(
        "--passes",
        default="",
        help="passes to run instead of the level's, `drop-dead-buffers,inline-pointwise{cost=4}`",
    )
    opt.add_argument("--without", default="", help="comma-separated passes to skip")
    stop = opt.add_mutually_exclusive_group()
    stop.add_argument("--before", default="", metavar="PASS", help="stop before this pass")
    stop.add_argument("--after", default="", metavar="PASS", help="stop after this pass")
    opt.add_argument(
        "--run",
        dest="runs",
        action="store_true",
        help="compile the result, run it on random arguments, and compare it with its interpreter, "
        "instead of printing it; tiled kernels run one by one",
    )
    add_seed(opt)
    add_options(opt)
    opt.add_argument("--time", action="store_true", help="print the time of each pass")
    opt.add_argument(
        "--print-changed", action="store_true", help="print the changes of each pass as a diff"
    )
    opt.add_argument("--list", action="store_true", help="list the passes of all levels")
    opt.add_argument("--json", action="store_true", help="print JSON (with --list or --run)")


def _add_verify(commands: Any) -> None:
    verify = add_command(
        commands,
        "verify",
        "gyrator.cli.opt:run_verify",
        "compare the kernels of a program with the interpreter of their IR",
        "gyrator verify kernel.gy",
    )
    check(verify.add_argument("file", help="a .gy file of any level"), existing)
    add_json(verify)


def _add_repros(commands: Any) -> None:
    repro = add_command(
        commands,
        "repro",
        "gyrator.cli.repro:run_repro",
        "run the text of a graph, and compare it with eager mode",
        "gyrator repro trace/000_inference",
    )
    repro.add_argument("--slow", action="store_true", help="also compare times")
    small = add_command(
        commands,
        "minify",
        "gyrator.cli.repro:run_minify",
        "minimise a failing graph",
        "gyrator minify trace/000_inference -o small",
    )
    small.add_argument("--for", dest="kind", choices=KINDS, default="any", help="kind of failure")
    limit = "time limit of one compile and run (60)"
    small.add_argument("--seconds", type=at_least(1), default=60, help=limit)
    bisect = add_command(
        commands,
        "bisect",
        "gyrator.cli.repro:run_bisect",
        "find the first incorrect stage, pass or kernel",
        "gyrator bisect trace/000_inference -o bisected",
    )
    written = (small, "the graph and the script"), (bisect, "the texts before and after it")
    for parser, what in written:
        help = f"output folder of {what}"
        parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help=help)
    for parser in (repro, small, bisect):
        check(parser.add_argument("file", help="the text of a graph, or a trace folder"), graph)
        add_options(parser)
    for parser in (repro, bisect):
        add_json(parser)
