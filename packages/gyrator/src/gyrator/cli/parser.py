"""Every command of the command line and what it takes; what runs them is imported when they run."""

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
    complete,
)

KINDS = ("any", "error", "wrong", "slow")
"""What `gyrator minify` may look for."""
SHELLS = ("bash", "zsh", "fish")
_LEVELS = ("fx", "loop", "kernel", "tile", "host")
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
    _add_repros(commands)
    return parser


def _add_reports(commands: Any) -> None:
    about = (
        "`module:function` or `file.py:function`; the function returns what to compile, or a tuple "
        "of it and its arguments"
    )
    explain = add_command(
        commands,
        "explain",
        "gyrator.cli.report:run_explain",
        "compile a function and say what became of it",
        "gyrator explain model.py:make",
        "gyrator explain model.py:make --option numerics=fast --json",
    )
    add_json(explain)
    report = add_command(
        commands,
        "report",
        "gyrator.cli.report:run_report",
        "say the same and time it, in one HTML file",
        "gyrator report model.py:make -o report.html",
    )
    report.add_argument("-o", "--output", type=Path, default=Path("gyrator-report.html"))
    report.add_argument("--runs", type=int, default=10, help="calls to time (10)")
    for parser in (explain, report):
        parser.add_argument("subject", metavar="MODULE:FUNCTION", help=about)
        add_options(parser)


def _add_facts(commands: Any) -> None:
    facts = (
        ("doctor", "gyrator.cli.doctor:run", "say what works on this machine, what to install"),
        ("options", "gyrator.cli.settings:run_options", "list the options of torch.compile"),
        ("modes", "gyrator.cli.settings:run_modes", "list what each mode sets"),
    )
    for name, run, help in facts:
        add_json(add_command(commands, name, run, help, f"gyrator {name}"))
    completion = add_command(
        commands,
        "completion",
        "gyrator.cli.settings:run_completion",
        "print what makes a shell complete commands and options",
        'eval "$(gyrator completion bash)"',
        "gyrator completion fish > gyrator.fish",
    )
    completion.add_argument("shell", choices=SHELLS)


def _add_cache(commands: Any) -> None:
    cache = add_command(
        commands,
        "cache",
        "gyrator.cli.cache:run",
        "say where the cache is and how large; carry it elsewhere",
        "gyrator cache",
        "gyrator cache --prune 500MB",
        "gyrator cache export warm.zip",
        "gyrator cache import warm.zip",
    )
    cache.add_argument("action", nargs="?", choices=("export", "import"))
    cache.add_argument("file", nargs="?", type=Path, help="what to export to, or import from")
    cache.add_argument(
        "--prune", metavar="SIZE", help="shrink it to this size: bytes, or 500MB, 2GiB"
    )
    add_json(cache)


def _add_aot(commands: Any) -> None:
    aot = add_command(commands, "aot", "", "make, show, check and time ahead-of-time packages")
    parts = aot.add_subparsers(required=True, metavar="action")
    make = add_command(
        parts,
        "compile",
        "gyrator.cli.aot:run_compile",
        "compile exported programs into a package",
        "gyrator aot compile model.pt2",
        "gyrator aot compile small=model.pt2 large=model.pt2 -o both.gya --option numerics=fast",
    )
    make.add_argument(
        "program", nargs="+", help="a .pt2 file of torch.export.save, or NAME=FILE for several"
    )
    make.add_argument("-o", "--package", type=Path, help="the file; default: the program's, .gya")
    isas = make.add_argument("--target", default="", help="levels: avx2,neon; GPUs: sm_90,sm_86+")
    complete(isas, _isas)
    add_options(make)
    make.add_argument("--runtime", choices=("python", "standalone", "libtorch"), default="python")
    show = add_command(
        parts, "list", "gyrator.cli.aot:run_list", "show what a package holds",
        "gyrator aot list model.gya",
    )  # fmt: skip
    show.add_argument("package", type=Path)
    check = add_command(
        parts, "check", "gyrator.cli.aot:run_check",
        "compare a package with eager mode on random inputs",
        "gyrator aot check model.gya model.pt2 --runs 3",
    )  # fmt: skip
    check.add_argument("--runs", type=int, default=5, help="inputs to draw (5)")
    measure = add_command(
        parts, "bench", "gyrator.cli.aot:run_bench", "time a package beside eager mode",
        "gyrator aot bench model.gya model.pt2",
    )  # fmt: skip
    measure.add_argument("--runs", type=int, default=50, help="calls of each (50)")
    for part in (check, measure):
        part.add_argument("package", type=Path)
        part.add_argument("program", type=Path, help="the .pt2 file that it was made of")
        part.add_argument("--entry", default="", help="an entry point, where there are several")
        add_seed(part)
    library = add_command(
        parts, "library", "gyrator.cli.aot:run_library",
        "install the C libraries that run packages without Python",
        "gyrator aot library --out prefix",
    )  # fmt: skip
    library.add_argument(
        "--out", type=Path, required=True, help="the folder, as of an installation"
    )
    isa = library.add_argument(
        "--target", default="", help="a level of the machine that it is for, such as neon"
    )
    complete(isa, _isas)
    for part in (make, show, check, measure, library):
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
    opt.add_argument("file", nargs="?", default="-", help="a .gy file; - reads standard input")
    start = opt.add_argument(
        "--from", dest="start", default="", metavar="LEVEL", help=f"its level: {', '.join(_LEVELS)}"
    )
    to = opt.add_argument(
        "--to",
        default="",
        metavar="LEVEL",
        help="run everything up to the passes of a level, or up to a text: "
        f"{', '.join(_TEXTS)}, fx",
    )
    complete(start, lambda: _LEVELS)
    complete(to, lambda: (*_LEVELS, *_TEXTS))
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
        "--run",
        dest="runs",
        action="store_true",
        help="compile the result, run it on random arguments beside its interpreter, and describe "
        "what it gives instead of printing it; tiled kernels run one by one",
    )
    add_seed(opt)
    add_options(opt)
    opt.add_argument("--time", action="store_true", help="say how long each pass took")
    opt.add_argument(
        "--print-changed", action="store_true", help="show what each pass changed, as a diff"
    )
    opt.add_argument("--list", action="store_true", help="list the passes of all levels")
    opt.add_argument("--json", action="store_true", help="print JSON, with --list or --run")
    verify = add_command(
        commands,
        "verify",
        "gyrator.cli.opt:run_verify",
        "run the kernels of a program beside the interpreter of their IR",
        "gyrator verify kernel.gy",
    )
    verify.add_argument("file", type=Path, help="a .gy file of any level")
    add_json(verify)


def _add_repros(commands: Any) -> None:
    repro = add_command(
        commands,
        "repro",
        "gyrator.cli.repro:run_repro",
        "run the text of a graph beside eager mode",
        "gyrator repro trace/000_inference",
    )
    repro.add_argument("--slow", action="store_true", help="compare times, too")
    small = add_command(
        commands,
        "minify",
        "gyrator.cli.repro:run_minify",
        "make a graph that fails as small as can be",
        "gyrator minify trace/000_inference -o small",
    )
    small.add_argument("--for", dest="kind", choices=KINDS, default="any", help="what to look for")
    small.add_argument(
        "--seconds", type=float, default=60.0, help="how long one compile and run may take (60)"
    )
    small.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="for the graph and script"
    )
    bisect = add_command(
        commands,
        "bisect",
        "gyrator.cli.repro:run_bisect",
        "name the first stage, pass or kernel that is wrong",
        "gyrator bisect trace/000_inference -o bisected",
    )
    bisect.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="for the texts before and after it"
    )
    for parser in (repro, small, bisect):
        parser.add_argument("file", type=Path, help="a graph's text, or the folder of a trace")
        add_options(parser)
    for parser in (repro, bisect):
        add_json(parser)
