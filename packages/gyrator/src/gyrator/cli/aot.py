"""`gyrator aot`: packages made of exported programs, listed, checked and measured."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils import _pytree as pytree

from gyrator import aot
from gyrator.aot.entry import EntryPoint
from gyrator.options import OptionError, options_of_text
from gyrator.reports.accuracy import worst_error
from gyrator.session import default_session
from gyrator_ir.diagnostics import Diagnostic
from gyrator_runtime.device import machine_of
from gyrator_runtime.package.archive import file_hash
from gyrator_runtime.package.manifest import Dim, Entry, Input, PackageManifest
from gyrator_runtime.standalone import install, shared_runtime
from gyrator_runtime.toolchain import find_cross_toolchain

_SPREAD = 64
"""How far above its least value a size is drawn that may be anything."""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("aot", help="models compiled ahead of time, each into one file")
    parts = parser.add_subparsers(required=True, metavar="action")
    make = parts.add_parser("compile", help="compile exported programs into a package")
    make.add_argument(
        "program", nargs="+", help="a .pt2 file of torch.export.save, or NAME=FILE for several"
    )
    make.add_argument("-o", "--package", type=Path, help="the file; default: the program's, .gya")
    make.add_argument("--target", default="", help="levels, separated by commas: avx2,neon")
    make.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    make.add_argument("--runtime", choices=("python", "standalone"), default="python")
    make.set_defaults(action=_compile)
    show = parts.add_parser("list", help="what a package holds")
    show.add_argument("package", type=Path)
    show.set_defaults(action=_list)
    check = parts.add_parser("check", help="compare a package with eager mode on fresh inputs")
    check.add_argument("--runs", type=int, default=5, help="inputs to draw, default 5")
    check.set_defaults(action=_check)
    measure = parts.add_parser("bench", help="time a package beside eager mode")
    measure.add_argument("--runs", type=int, default=50, help="calls of each, default 50")
    measure.set_defaults(action=_bench)
    for part in (check, measure):
        part.add_argument("package", type=Path)
        part.add_argument("program", type=Path, help="the .pt2 file that it was made of")
        part.add_argument("--entry", default="", help="an entry point, where there are several")
        part.add_argument("--seed", type=int, default=0)
    library = parts.add_parser("library", help="the C library that runs standalone packages")
    library.add_argument(
        "--out", type=Path, required=True, help="the folder, as of an installation"
    )
    library.add_argument(
        "--target", default="", help="a level of the machine that it is for, such as neon"
    )
    library.set_defaults(action=_library)
    for part in (make, show, check, measure, library):
        part.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=lambda args: args.action(args))


def _compile(args: argparse.Namespace) -> int:
    named = [text.rpartition("=") for text in args.program]
    if len(named) > 1 and not all(name for name, _, _ in named):
        raise _bad("several programs need names: NAME=FILE")
    entries = {name or "forward": EntryPoint(_exported(Path(file))) for name, _, file in named}
    path = args.package or Path(named[0][2]).with_suffix(".gya")
    target = tuple(filter(None, args.target.split(","))) or None
    start = time.perf_counter()
    options = options_of_text(args.option)
    aot.compile(entries, package=path, target=target, options=options, runtime=args.runtime)
    seconds = time.perf_counter() - start
    size = path.stat().st_size
    about = {"package": str(path), "bytes": size, "seconds": round(seconds, 3)}
    about["sha256"] = file_hash(path)
    said = f"{path}: {size / 2**10:.0f} KiB in {seconds:.1f} s, sha256 {about['sha256']}"
    _print(args, about, lambda console: console.print(said, soft_wrap=True))
    return 0


def _exported(path: Path) -> torch.export.ExportedProgram:
    try:
        return torch.export.load(path)
    except Exception as error:  # whatever torch makes of a file of another kind
        if isinstance(error, FileNotFoundError):
            raise
        raise _bad(f"{path} is no exported program: {error}") from error


def _bad(said: str) -> OptionError:
    help = "write the program with torch.export.save"
    return OptionError(Diagnostic("GY-AOT-004", said, help=help))


def _list(args: argparse.Namespace) -> int:
    manifest = aot.inspect(args.package)
    about = json.loads(manifest.to_json()) | {"sha256": file_hash(args.package)}
    _print(args, about, lambda console: _show(console, manifest))
    return 0


def _show(console: Console, manifest: PackageManifest) -> None:
    for entry in manifest.entries:
        given = ", ".join(f"{i.name}: {i}" for i in entry.inputs)
        console.print(f"{entry.name}({given})", highlight=False, markup=False, soft_wrap=True)
        for s in entry.symbols:
            most = "" if s.most is None else f" to {s.most}"
            console.print(f"  {s.name} is {s.least}{most or ' or more'}", highlight=False)
        results = (f"{o.dtype}[{', '.join(o.shape)}]" if o.dtype else o.kind for o in entry.outputs)
        console.print(f"  gives {', '.join(results)}", highlight=False, markup=False)
        for p in entry.programs:
            calls = f", calls {', '.join(p.calls)}" if p.calls else ""
            console.print(f"  {p.isa}: {len(p.kernels)} kernels{calls}", highlight=False)
    table = Table("member", "bytes")
    for member in manifest.members:
        table.add_row(member.name, str(member.size))
    console.print(table)
    made = manifest.provenance
    weights = len(manifest.weights)
    console.print(
        f"{weights} weights; format {manifest.format}, {manifest.machine}, runtime "
        f"{manifest.runtime}; made by gyrator "
        f"{made.gyrator} ({made.sources[:12]}) with torch {made.torch}, Python {made.python} and "
        f"{made.compiler or 'no compiler'}; what of it is Gyrator's is {made.licence}",
        highlight=False,
    )


def _library(args: argparse.Namespace) -> int:
    from gyrator.aot.build import levels_of  # what compiles takes a while to import

    session = default_session()
    machine = machine_of(levels_of(args.target or None)[0])
    toolchain = find_cross_toolchain(machine, os.environ, session.cache)
    built = shared_runtime(session.cache, toolchain)
    install(args.out, built)
    about = {"folder": str(args.out), "bytes": built.stat().st_size}
    said = f"{args.out}: include, lib and lib/cmake, {about['bytes']} bytes of library"
    _print(args, about, lambda console: console.print(said, soft_wrap=True))
    return 0


def _check(args: argparse.Namespace) -> int:
    model, entry, eager = _beside(args)
    rows: list[dict[str, Any]] = []
    for turn in range(args.runs):
        given = draw(entry, torch.Generator().manual_seed(args.seed + turn))
        theirs, ours = (_run(f, entry, given, turn) for f in (eager, model.entry(entry.name)))
        error, bound = _difference(ours, theirs)
        sizes = [list(t.shape) for t in given if isinstance(t, torch.Tensor)]
        rows.append({"sizes": sizes, "error": error, "bound": bound, "agrees": error <= bound})
    failed = sum(not row["agrees"] for row in rows)

    def show(console: Console) -> None:
        for row in rows:
            mark = "agrees" if row["agrees"] else "[red]differs[/red]"
            console.print(f"{row['sizes']} {mark}: {row['error']:.2g} of {row['bound']:.2g}")
        console.print(f"{len(rows) - failed} of {len(rows)} inputs agree with eager mode")

    _print(args, {"entry": entry.name, "runs": rows, "failed": failed}, show)
    return int(failed > 0)


def _bench(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    model, entry, eager = _beside(args)
    loaded = time.perf_counter() - start
    given = draw(entry, torch.Generator().manual_seed(args.seed))
    function = model.entry(entry.name)
    times: dict[str, list[float]] = {"package": [], "eager": []}
    for _ in range(args.runs):  # side by side, so that both see the same load of the machine
        for name, call in (("package", function), ("eager", eager)):
            begin = time.perf_counter()
            _run(call, entry, given, 0, copied=False)
            times[name].append(time.perf_counter() - begin)
    best = {name: min(found) for name, found in times.items()}
    ratio = best["package"] / best["eager"]
    about = {**best, "ratio": ratio, "load": loaded, "isa": model.isa, "runner": model.runner}
    said = f"{best['package'] * 1e3:.3f} ms a call, eager mode {best['eager'] * 1e3:.3f}"
    _print(args, about, lambda console: console.print(f"{said}: {ratio:.2f} of it"))
    return 0


def _beside(args: argparse.Namespace) -> tuple[aot.Model, Entry, Callable[..., Any]]:
    """Return a package, its entry point, and the exported program as eager mode runs it."""
    model = aot.load(args.package)
    names = model.entries
    name = args.entry or (names[0] if len(names) == 1 else "forward")
    model.entry(name)  # an error where there is none of that name
    (entry,) = (e for e in model.manifest.entries if e.name == name)
    return model, entry, _exported(args.program).module()


def _run(
    call: Callable[..., Any], entry: Entry, given: Sequence[Any], seed: int, copied: bool = True
) -> list[Any]:
    leaves = [t.clone() if copied and isinstance(t, torch.Tensor) else t for t in given]
    args, kwargs = pytree.tree_unflatten(leaves, pytree.treespec_loads(entry.in_spec))
    torch.manual_seed(seed)
    with torch.no_grad():
        results = pytree.tree_leaves(call(*args, **kwargs))
    return [*results, *(t for t, i in zip(leaves, entry.inputs, strict=True) if i.written)]


def _difference(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[float, float]:
    """Return the relative error of results, and what is allowed: that three quarters of the digits
    of the narrowest type agree. Infinite where they differ in more than values of floats."""
    error = bound = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            error = error if mine == other else math.inf
            continue
        if mine.dtype != other.dtype or mine.shape != other.shape:
            return math.inf, bound
        if other.is_complex():
            mine, other = torch.view_as_real(mine), torch.view_as_real(other)
        if not other.is_floating_point():
            error = error if torch.equal(mine, other) else math.inf
            continue
        bound = max(bound, torch.finfo(other.dtype).eps ** 0.75)
        if not torch.equal(mine.nan_to_num(), other.nan_to_num()):
            error = max(error, worst_error([mine], [other], single=1))
    return error, bound


def draw(entry: Entry, generator: torch.Generator) -> list[Any]:
    """Return leaves of arguments that fit an entry point: floats are normal, integers 0 or 1."""
    sizes: dict[str, int] = {}
    for symbol in entry.symbols:
        most = symbol.least + _SPREAD if symbol.most is None else symbol.most
        high = min(most, symbol.least + _SPREAD) + 1
        sizes[symbol.name] = int(torch.randint(symbol.least, high, (), generator=generator))
    return [_drawn(i, sizes, generator) for i in entry.inputs]


def _drawn(given: Input, sizes: Mapping[str, int], generator: torch.Generator) -> Any:
    if given.kind == "constant":
        return given.value
    shape = [_size(n, sizes) for n in given.shape]
    if given.kind == "integer":
        return shape[0]
    dtype: torch.dtype = getattr(torch, given.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(shape, generator=generator).to(dtype)
    else:
        made = torch.randint(0, 2, shape, generator=generator).to(dtype)
    return made.to(given.device)


def _size(wanted: Dim | int, sizes: Mapping[str, int]) -> int:
    if not isinstance(wanted, Dim):
        return wanted
    return wanted.factor * sizes[wanted.symbol] + wanted.offset


def _print(
    args: argparse.Namespace, data: Mapping[str, Any], show: Callable[[Console], object]
) -> None:
    if args.json:
        sys.stdout.write(json.dumps(data, indent=1) + "\n")
    else:
        show(Console())
