"""`gyrator aot`: packages made of exported programs, listed, checked and measured."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from gyrator import aot
from gyrator.aot.entry import EntryPoint
from gyrator.cli.output import emit, say, size, table
from gyrator.options import OptionError, options_of_text
from gyrator.reports.accuracy import worst_error
from gyrator.session import default_session
from gyrator_ir.types import HOST
from gyrator_runtime.package.archive import file_hash
from gyrator_runtime.package.manifest import Dim, Entry, Input, PackageManifest
from gyrator_runtime.standalone import install, shared_runtime
from gyrator_runtime.toolchain import find_cross_toolchain

_SPREAD = 64
"""How far above its least value a size is drawn that may be anything."""


def run_compile(args: argparse.Namespace) -> int:
    """Compile exported programs into a package."""
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
    held = path.stat().st_size
    about = {"package": str(path), "bytes": held, "seconds": round(seconds, 3)}
    about["sha256"] = file_hash(path)
    said = f"{path}: {size(held)} in {seconds:.1f} s, sha256 {about['sha256']}"
    emit(args, about, lambda console: say(console, said))
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
    return OptionError.of("GY-AOT-004", said, help=help)


def run_list(args: argparse.Namespace) -> int:
    """Show what a package holds."""
    manifest = aot.inspect(args.package)
    about = json.loads(manifest.to_json()) | {"sha256": file_hash(args.package)}
    emit(args, about, lambda console: _show(console, manifest))
    return 0


def _show(console: Console, manifest: PackageManifest) -> None:
    for entry in manifest.entries:
        given = ", ".join(f"{i.name}: {i}" for i in entry.inputs)
        say(console, f"{entry.name}({given})")
        for s in entry.symbols:
            most = "" if s.most is None else f" to {s.most}"
            say(console, f"  {s.name} is {s.least}{most or ' or more'}")
        results = (f"{o.dtype}[{', '.join(o.shape)}]" if o.dtype else o.kind for o in entry.outputs)
        say(console, f"  gives {', '.join(results)}")
        for p in entry.programs:
            calls = f", calls {', '.join(p.calls)}" if p.calls else ""
            say(console, f"  {p.isa}: {len(p.kernels)} kernels{calls}")
    console.print(table(("member", "size"), [(m.name, size(m.size)) for m in manifest.members]))
    made = manifest.provenance
    weights = len(manifest.weights)
    console.print(
        f"{weights} weights; format {manifest.format}, {manifest.machine}, runtime "
        f"{manifest.runtime}; made by gyrator "
        f"{made.gyrator} ({made.sources[:12]}) with torch {made.torch}, Python {made.python} and "
        f"{made.compiler or 'no compiler'}; what of it is Gyrator's is {made.licence}",
        highlight=False,
    )


def run_library(args: argparse.Namespace) -> int:
    """Install the C libraries that run packages without Python."""
    from gyrator.aot.targets import package_targets  # what compiles takes a while to import

    session = default_session()
    machine = package_targets(args.target or None, HOST)[0].machine
    toolchain = find_cross_toolchain(machine, os.environ, session.cache)
    built = [shared_runtime(session.cache, toolchain, torch=torch) for torch in (False, True)]
    install(args.out, *built)
    held = [file.stat().st_size for file in built]
    about = {"folder": str(args.out), "bytes": held[0], "torch_bytes": held[1]}
    said = f"{args.out}: include, lib and lib/cmake, libraries of {' and '.join(map(size, held))}"
    emit(args, about, lambda console: say(console, said))
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Compare a package with eager mode on random inputs; 1 if any differs."""
    model, entry, eager = _beside(args)
    rows: list[dict[str, Any]] = []
    for turn in range(args.runs):
        given = draw(entry, torch.Generator().manual_seed(args.seed + turn), model.device)
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

    emit(args, {"entry": entry.name, "runs": rows, "failed": failed}, show)
    return int(failed > 0)


def run_bench(args: argparse.Namespace) -> int:
    """Time a package beside eager mode."""
    start = time.perf_counter()
    model, entry, eager = _beside(args)
    loaded = time.perf_counter() - start
    given = draw(entry, torch.Generator().manual_seed(args.seed), model.device)
    function = model.entry(entry.name)
    times: dict[str, list[float]] = {"package": [], "eager": []}
    for _ in range(args.runs):  # side by side, so that both see the same load of the machine
        for name, call in (("package", function), ("eager", eager)):
            begin = time.perf_counter()
            _run(call, entry, given, 0, copied=False)
            if model.device.type != HOST:
                torch.accelerator.synchronize(model.device)
            times[name].append(time.perf_counter() - begin)
    best = {name: min(found) for name, found in times.items()}
    ratio = best["package"] / best["eager"]
    about = {**best, "ratio": ratio, "load": loaded, "isa": model.isa, "runner": model.runner}
    said = f"{best['package'] * 1e3:.3f} ms a call, eager mode {best['eager'] * 1e3:.3f}"
    emit(args, about, lambda console: console.print(f"{said}: {ratio:.2f} of it"))
    return 0


def _beside(args: argparse.Namespace) -> tuple[aot.Model, Entry, Callable[..., Any]]:
    """Return a package, its entry point, and the exported program as eager mode runs it on the
    package's device."""
    model = aot.load(args.package)
    names = model.entries
    name = args.entry or (names[0] if len(names) == 1 else "forward")
    model.entry(name)  # an error where there is none of that name
    (entry,) = (e for e in model.manifest.entries if e.name == name)
    program = _exported(args.program)
    if model.device.type != HOST:
        program = move_to_device_pass(program, str(model.device))
    return model, entry, program.module()


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


def draw(entry: Entry, generator: torch.Generator, device: torch.device) -> list[Any]:
    """Return leaves of arguments that fit an entry point of a model which runs on a device: floats
    are normal, integers 0 or 1."""
    sizes: dict[str, int] = {}
    for symbol in entry.symbols:
        most = symbol.least + _SPREAD if symbol.most is None else symbol.most
        high = min(most, symbol.least + _SPREAD) + 1
        sizes[symbol.name] = int(torch.randint(symbol.least, high, (), generator=generator))
    return [_drawn(i, sizes, generator, device) for i in entry.inputs]


def _drawn(
    given: Input, sizes: Mapping[str, int], generator: torch.Generator, device: torch.device
) -> Any:
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
    return made if torch.device(given.device).type == HOST else made.to(device)


def _size(wanted: Dim | int, sizes: Mapping[str, int]) -> int:
    if not isinstance(wanted, Dim):
        return wanted
    return wanted.factor * sizes[wanted.symbol] + wanted.offset
