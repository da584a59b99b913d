"""`gyrator aot`: compile exported programs to packages, and list, check and time packages."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

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

_SIZE_RANGE = 64
"""The range above its minimum from which an unbounded size is sampled."""


def run_compile(args: argparse.Namespace) -> int:
    """Compile exported programs into a package."""
    named = [text.rpartition("=") for text in args.program]
    names = [name for name, _, _ in named]
    if len(names) > 1 and not all(names):
        args.parser.error("several programs need names: NAME=FILE")
    if len(names) > len(set(names)):
        args.parser.error("the names of the programs must differ")
    entries = {name or "forward": EntryPoint(_exported(Path(file))) for name, _, file in named}
    path = args.package or Path(named[0][2]).with_suffix(".gya")
    target = tuple(filter(None, args.target.split(","))) or None
    start = time.perf_counter()
    options = options_of_text(args.option)
    aot.compile(
        entries,
        package=path,
        target=target,
        options=options,
        runtime=args.runtime,
        constants=args.constants,
    )
    seconds = time.perf_counter() - start
    bytes_written = path.stat().st_size
    about = {"package": str(path), "bytes": bytes_written, "seconds": round(seconds, 3)}
    about["sha256"] = file_hash(path)
    message = f"{path}: {size(bytes_written)} in {seconds:.1f} s, sha256 {about['sha256']}"
    emit(args, about, lambda console: say(console, message))
    return 0


def _exported(path: Path) -> torch.export.ExportedProgram:
    path.stat()  # raises if there is no such file, where torch prints a traceback as well
    log, entries = logging.getLogger(torch.export.__name__), _WithoutTracebacks()
    log.addFilter(entries)
    try:
        if not is_zipfile(path):
            raise ValueError("it is no zip archive")
        return torch.export.load(path)
    except Exception as error:  # torch raises various errors for other files
        message = f"{path} is not an exported program: {entries.reason or error}"
        help = "write the program with torch.export.save"
        raise OptionError.of("GY-AOT-004", message, help=help) from error
    finally:
        log.removeFilter(entries)


class _WithoutTracebacks(logging.Filter):
    """Drops log entries with a traceback and remembers the last error's text.

    torch logs why it cannot read a file, and raises an error that only refers to that entry.
    """

    reason = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether an entry is logged."""
        if not record.exc_info:
            return True
        # The first sentence, without the line of torch's sources.
        self.reason = str(record.exc_info[1]).rpartition("] . ")[2].partition(". ")[0]
        return False


def run_list(args: argparse.Namespace) -> int:
    """Show the contents of a package."""
    manifest = aot.inspect(args.package)
    about = json.loads(manifest.to_json()) | {"sha256": file_hash(args.package)}
    emit(args, about, lambda console: _show(console, manifest))
    return 0


def _show(console: Console, manifest: PackageManifest) -> None:
    for entry in manifest.entries:
        inputs = ", ".join(f"{i.name}: {i}" for i in entry.inputs)
        say(console, f"{entry.name}({inputs})")
        for s in entry.symbols:
            most = "" if s.most is None else f" to {s.most}"
            say(console, f"  {s.name} is {s.least}{most or ' or more'}")
        results = (f"{o.dtype}[{', '.join(o.shape)}]" if o.dtype else o.kind for o in entry.outputs)
        say(console, f"  returns {', '.join(results)}")
        for p in entry.programs:
            calls = f", calls {', '.join(p.calls)}" if p.calls else ""
            say(console, f"  {p.isa}: {len(p.kernels)} kernels{calls}")
    console.print(table(("member", "size"), [(m.name, size(m.size)) for m in manifest.members]))
    provenance = manifest.provenance
    weights = len(manifest.weights)
    console.print(
        f"{weights} weights; format {manifest.format}, {manifest.machine}, runtime "
        f"{manifest.runtime}; created by gyrator "
        f"{provenance.gyrator} ({provenance.sources[:12]}) with torch {provenance.torch}, Python "
        f"{provenance.python} and {provenance.compiler or 'no compiler'}; Gyrator's parts are "
        f"under {provenance.licence}",
        highlight=False,
    )


def run_library(args: argparse.Namespace) -> int:
    """Install the C libraries that run packages without Python."""
    from gyrator.aot.targets import package_targets  # slow to import

    session = default_session()
    machine = package_targets(args.target or None, HOST)[0].machine
    toolchain = find_cross_toolchain(machine, os.environ, session.cache)
    built = [shared_runtime(session.cache, toolchain, torch=torch) for torch in (False, True)]
    install(args.out, *built)
    sizes = [file.stat().st_size for file in built]
    about = {"folder": str(args.out), "bytes": sizes[0], "torch_bytes": sizes[1]}
    message = (
        f"{args.out}: include, lib and lib/cmake, libraries of {' and '.join(map(size, sizes))}"
    )
    emit(args, about, lambda console: say(console, message))
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Compare a package with eager mode on random inputs; return 1 if any differs."""
    model, entry, eager = _load_both(args)
    rows: list[dict[str, Any]] = []
    for run in range(args.runs):
        inputs = random_inputs(entry, torch.Generator().manual_seed(args.seed + run), model.device)
        expected, results = (_run(f, entry, inputs, run) for f in (eager, model.entry(entry.name)))
        error, bound = _difference(results, expected)
        sizes = [list(t.shape) for t in inputs if isinstance(t, torch.Tensor)]
        rows.append({"sizes": sizes, "error": error, "bound": bound, "agrees": error <= bound})
        if len(results) != len(expected):
            rows[-1]["counts"] = [len(results), len(expected)]
    failed = sum(not row["agrees"] for row in rows)

    def show(console: Console) -> None:
        for row in rows:
            mark = "matches" if row["agrees"] else "[red]differs[/red]"
            measured = f"{row['error']:.2g} of {row['bound']:.2g}"
            if "counts" in row:
                measured = "{} results, eager mode {}".format(*row["counts"])
            console.print(f"{row['sizes']} {mark}: {measured}")
        console.print(f"{len(rows) - failed} of {len(rows)} inputs match eager mode")

    emit(args, {"entry": entry.name, "runs": rows, "failed": failed}, show)
    return int(failed > 0)


def run_bench(args: argparse.Namespace) -> int:
    """Time a package and eager mode."""
    start = time.perf_counter()
    model, entry, eager = _load_both(args)
    loaded = time.perf_counter() - start
    inputs = random_inputs(entry, torch.Generator().manual_seed(args.seed), model.device)
    function = model.entry(entry.name)
    times: dict[str, list[float]] = {"package": [], "eager": []}
    for _ in range(args.runs):  # interleaved, so that both see the same machine load
        for name, call in (("package", function), ("eager", eager)):
            begin = time.perf_counter()
            _run(call, entry, inputs, 0, copied=False)
            if model.device.type != HOST:
                torch.accelerator.synchronize(model.device)
            times[name].append(time.perf_counter() - begin)
    best = {name: min(samples) for name, samples in times.items()}
    ratio = best["package"] / best["eager"]
    about = {**best, "ratio": ratio, "load": loaded, "isa": model.isa, "runner": model.runner}
    message = f"{best['package'] * 1e3:.3f} ms per call, eager mode {best['eager'] * 1e3:.3f} ms"
    emit(args, about, lambda console: console.print(f"{message}: ratio {ratio:.2f}"))
    return 0


def _load_both(args: argparse.Namespace) -> tuple[aot.Model, Entry, Callable[..., Any]]:
    """Return a package, its entry point, and the exported program for eager mode on the
    package's device."""
    model = aot.load(args.package)
    names = model.entries
    name = args.entry or (names[0] if len(names) == 1 else "forward")
    model.entry(name)  # raises if there is no such entry
    (entry,) = (e for e in model.manifest.entries if e.name == name)
    program = _exported(args.program)
    if model.device.type != HOST:
        program = move_to_device_pass(program, str(model.device))
    return model, entry, program.module()


def _run(
    call: Callable[..., Any], entry: Entry, inputs: Sequence[Any], seed: int, copied: bool = True
) -> list[Any]:
    leaves = [t.clone() if copied and isinstance(t, torch.Tensor) else t for t in inputs]
    args, kwargs = pytree.tree_unflatten(leaves, pytree.treespec_loads(entry.in_spec))
    torch.manual_seed(seed)
    with torch.no_grad():
        results = pytree.tree_leaves(call(*args, **kwargs))
    return [*results, *(t for t, i in zip(leaves, entry.inputs, strict=True) if i.written)]


def _difference(ours: Sequence[Any], expected: Sequence[Any]) -> tuple[float, float]:
    """Return the relative error of results, and its bound: three quarters of the digits of the
    narrowest dtype must match. Infinite if they differ in anything but float values."""
    error = bound = 0.0
    for result, other in zip(ours, expected, strict=True):
        if not isinstance(other, torch.Tensor):
            error = error if result == other else math.inf
            continue
        if result.dtype != other.dtype or result.shape != other.shape:
            return math.inf, bound
        if other.is_complex():
            result, other = torch.view_as_real(result), torch.view_as_real(other)
        if not other.is_floating_point():
            error = error if torch.equal(result, other) else math.inf
            continue
        bound = max(bound, torch.finfo(other.dtype).eps ** 0.75)
        if not torch.equal(result.nan_to_num(), other.nan_to_num()):
            error = max(error, worst_error([result], [other], single=1))
    return error, bound


def random_inputs(entry: Entry, generator: torch.Generator, device: torch.device) -> list[Any]:
    """Return random argument leaves for an entry point of a model on a device: floats are
    normal, integers 0 or 1."""
    sizes: dict[str, int] = {}
    for symbol in entry.symbols:
        most = symbol.least + _SIZE_RANGE if symbol.most is None else symbol.most
        high = min(most, symbol.least + _SIZE_RANGE) + 1
        sizes[symbol.name] = int(torch.randint(symbol.least, high, (), generator=generator))
    return [_random_input(i, sizes, generator, device) for i in entry.inputs]


def _random_input(
    spec: Input, sizes: Mapping[str, int], generator: torch.Generator, device: torch.device
) -> Any:
    if spec.kind == "constant":
        return spec.value
    shape = [_size(n, sizes) for n in spec.shape]
    if spec.kind == "integer":
        return shape[0]
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        tensor = torch.randn(shape, generator=generator).to(dtype)
    else:
        tensor = torch.randint(0, 2, shape, generator=generator).to(dtype)
    return tensor if torch.device(spec.device).type == HOST else tensor.to(device)


def _size(size: Dim | int, sizes: Mapping[str, int]) -> int:
    if not isinstance(size, Dim):
        return size
    return size.factor * sizes[size.symbol] + size.offset
