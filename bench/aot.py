"""Packages of `gyrator.aot` against those of AOTInductor, on this machine's CPU.

    nox -s bench -- aot [--models tiny,MLP,...] [--rounds 20] [--json FILE]

Prints a table of ratios, Gyrator over AOTInductor but for the speed, and writes it with every
number behind it to a JSON file. What each number means: docs/benchmarks.md.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from _aot import SIDES, models
from _child import measure
from _clock import geomean
from _environment import environment
from _tables import Sheet, failed_row
from rich.console import Console

RESULTS = Path(__file__).parent / "results"
_COLUMNS = (
    "model", "build s", "AOTI s", "build CPU", "size KB", "AOTI KB", "size", "load ms", "AOTI ms",
    "load", "call us", "AOTI us", "speed",
)  # fmt: skip
_NATIVE_COLUMNS = ("model", "load ms", "AOTI ms", "load", "call us", "AOTI us", "speed")


def main(arguments: list[str]) -> int:
    """Measure the chosen models; 1 if one failed."""
    chosen = parse(arguments)
    found: dict[str, Any] = {}
    sheets = (table(found), native_table(found))
    with tempfile.TemporaryDirectory(prefix="gyrator-bench-") as folder:
        native = measure("build_native", {"folder": folder}, Path(folder))
        for name in chosen.models:
            print(name, file=sys.stderr, flush=True)
            found[name] = one(name, chosen.rounds, chosen.threads, native)
            sheets = (table(found), native_table(found))
            text = "\n".join(sheet.markdown() for sheet in sheets)
            report = {"environment": environment(), "arguments": arguments, "table": text,
                      "models": found}  # fmt: skip
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    console = Console(width=160)
    for sheet in sheets:
        sheet.print(console)
    console.print(f"written: {chosen.json}")
    failed = ("error" in made or "error" in made["native"] for made in found.values())
    return int(any(failed))


def table(found: dict[str, Any]) -> Sheet:
    """Return the rows of the models that are measured, and means of their ratios."""
    sheet = Sheet("packages, Gyrator against AOTInductor", _COLUMNS)
    ratios: dict[str, list[float]] = {"build CPU": [], "size": [], "load": [], "speed": []}
    for name, made in found.items():
        sheet.rows.append(row(name, made, ratios))
    for what, values in ratios.items():
        if values:
            said = f"{what}: geometric mean {geomean(values):.2f}, {min(values):.2f} to "
            sheet.summary.append(f"{said}{max(values):.2f}")
    return sheet


def native_table(found: dict[str, Any]) -> Sheet:
    """Return what a program without Python takes for the models that are measured."""
    sheet = Sheet("the same without Python: libgyrator_torch, AOTInductor in C++", _NATIVE_COLUMNS)
    for name, made in found.items():
        native = made if "error" in made else made["native"]
        if "error" in native:
            sheet.rows.append(tuple(failed_row(name, native, len(_NATIVE_COLUMNS))))
            continue
        load = [1e3 * native["load"][side] for side in SIDES]
        call = [1e6 * native["call"][side] for side in SIDES]
        sheet.rows.append((name, *load, load[0] / load[1], *call, call[1] / call[0]))
    return sheet


def one(name: str, rounds: int, threads: int, native: dict[str, Any]) -> dict[str, Any]:
    """Return what is measured of a model: each build in a process of its own, with empty caches.

    `native` has the program that calls packages without Python, or why there is none.
    """
    with tempfile.TemporaryDirectory(prefix="gyrator-bench-") as folder:
        caches = Path(folder)
        paths = {"gyrator": str(caches / "model.gya"), "inductor": str(caches / "model.pt2")}
        built: dict[str, Any] = {}
        for side in SIDES:
            given = {"model": name, "side": side, "path": paths[side], "threads": threads}
            built[side] = measure("build_package", given, caches / side)
            if "error" in built[side]:
                return {"error": f"{side}: {built[side]['error']}"}
        given = {"model": name, "paths": paths, "threads": threads, "rounds": rounds}
        used = measure("use_packages", given, caches / "use")
        if "error" in used:
            return used
        if "error" not in native:
            given |= {"batch": used["batch"], **native}
            native = measure("use_native", given, caches / "native")
        return {"built": built, "native": native, **used}


def row(name: str, made: dict[str, Any], ratios: dict[str, list[float]]) -> tuple[Any, ...]:
    """Return a model's row, and add its ratios to those of the others."""
    if "error" in made:
        return tuple(failed_row(name, made, len(_COLUMNS)))
    ours, theirs = (made["built"][side] for side in SIDES)
    load = [1e3 * made["load"][side] for side in SIDES]
    call = [1e6 * made["times"][side]["thread_min"] for side in SIDES]
    here = {
        "build CPU": ours["cpu"] / theirs["cpu"],
        "size": ours["code"] / theirs["code"],
        "load": load[0] / load[1],
        "speed": call[1] / call[0],
    }
    for what, value in here.items():
        ratios[what].append(value)
    return (
        name, ours["cpu"], theirs["cpu"], here["build CPU"], ours["code"] / 1e3,
        theirs["code"] / 1e3, here["size"], *load, here["load"], *call, here["speed"],
    )  # fmt: skip


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench/aot.py")
    known = models()
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(known))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "aot.json")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.models) - known.keys())
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
