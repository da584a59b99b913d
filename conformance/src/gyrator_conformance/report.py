"""Reports for people and machines: a table, an HTML matrix, JUnit and JSON."""

import json
import platform
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import accumulate, groupby, pairwise
from typing import Any

import torch
from attrs import asdict, fields, frozen
from jinja2 import Environment, PackageLoader, select_autoescape
from rich.table import Table
from rich.text import Text

from gyrator_conformance.cells import Cell, Reason
from gyrator_conformance.running import Result


@frozen
class Score:
    """The cells of one capability: the numbers that passed, failed, and did not run for a
    reason."""

    capability: str
    passed: int
    failed: int
    excused: int

    @property
    def share(self) -> float:
        """The share of passed cells among those that ran; 1 if none ran."""
        ran = self.passed + self.failed
        return self.passed / ran if ran else 1.0


def scores(results: Iterable[Result]) -> list[Score]:
    """Return a score for each family, for each value of the other properties of a cell, and in
    total."""
    groups: dict[str, list[Result]] = {}
    for r in results:
        c = r.cell
        for name in (
            f"family {c.family}",
            f"shapes {c.shapes}",
            f"mode {c.mode}",
            f"dtype {c.dtype}",
            f"wrapper {c.wrapper}",
            f"graphs {c.graphs}",
            f"package {c.package}",
            f"target {c.target}",
            "in all",
        ):
            groups.setdefault(name, []).append(r)
    kinds = ("family", "shapes", "mode", "dtype", "wrapper", "graphs", "package", "target", "in")
    order = sorted(groups, key=lambda name: kinds.index(name.partition(" ")[0]))
    return [
        Score(name, *(sum(r.status == s for r in groups[name]) for s in ("pass", "fail", "reason")))
        for name in order
    ]


def versions() -> dict[str, str]:
    """Return the versions for which the results hold."""
    return {
        "gyrator": version("gyrator"),
        "gyrator-conformance": version("gyrator-conformance"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def table(results: Sequence[Result]) -> Table:
    """Return a table with one row per model and one column per target and host language: passed
    cells of those that ran."""
    columns = sorted({r.cell.column[:2] for r in results})
    grid = Table(title="Conformance: cells passed / run", header_style="bold")
    grid.add_column("model", overflow="fold")
    grid.add_column("family")
    for target, host in columns:
        grid.add_column(f"{target}\n{host}", justify="right")
    for model in dict.fromkeys(r.cell.model for r in results):
        own = [r for r in results if r.cell.model == model]
        row = [_count([r for r in own if r.cell.column[:2] == c]) for c in columns]
        grid.add_row(model, own[0].cell.family, *row)
    return grid


def score_table(results: Sequence[Result]) -> Table:
    """Return the scores as a table."""
    grid = Table(title="Score per capability", header_style="bold")
    for name in ("capability", "score", "passed", "failed", "reason"):
        grid.add_column(name, justify="left" if name == "capability" else "right")
    for s in scores(results):
        numbers = (f"{100 * s.share:.1f} %", str(s.passed), str(s.failed), str(s.excused))
        grid.add_row(s.capability, *numbers, style="" if s.failed == 0 else "red")
    return grid


def _count(results: Sequence[Result]) -> Text:
    passed = sum(r.status == "pass" for r in results)
    ran = sum(r.status != "reason" for r in results)
    if not ran:
        return Text("-", style="dim")
    return Text(f"{passed}/{ran}", style="green" if passed == ran else "bold red")


def as_json(results: Sequence[Result], command: str) -> str:
    """Return the results, scores and versions as JSON."""
    data = {
        "schema": 1,
        "versions": versions(),
        "command": command,
        "scores": [{**asdict(s), "share": s.share} for s in scores(results)],
        "reasons": {reason.value: reason.meaning for reason in Reason},
        "cells": [],
    }
    # One cell a line: thousands of them stay readable, and so do their differences.
    cells = ",\n".join(f"  {json.dumps(_flat(r))}" for r in results)
    return json.dumps(data, indent=1).replace('"cells": []', f'"cells": [\n{cells}\n ]') + "\n"


def read_json(text: str) -> tuple[dict[str, str], list[Result]]:
    """Return the versions and the results that `as_json` wrote."""
    data = json.loads(text)
    return data["versions"], [_unflat(r) for r in data["cells"]]


def _unflat(data: dict[str, Any]) -> Result:
    of_cell = {f.name for f in fields(Cell)}
    cell = Cell(**{k: v for k, v in data.items() if k in of_cell})
    numbers = ("error", "eager_error", "bound")
    rest: dict[str, Any] = {
        k: float(v) if k in numbers else v for k, v in data.items() if k not in of_cell
    }
    return Result(cell=cell, **rest)


def _flat(result: Result) -> dict[str, Any]:
    data = asdict(result)
    values = {k: v for k, v in data.items() if k != "cell" and v not in ("", 0.0, 0)}
    return {**data["cell"], **_finite(values)}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace infinity, which JSON lacks."""
    return {k: str(v) if v == float("inf") else v for k, v in values.items()}


def as_junit(results: Sequence[Result]) -> str:
    """Return the results as JUnit's XML: a suite for each target and host language."""
    root = ET.Element("testsuites", name="gyrator-conformance")
    for target, host in sorted({r.cell.column[:2] for r in results}):
        own = [r for r in results if r.cell.column[:2] == (target, host)]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=f"{target}.{host}",
            tests=str(len(own)),
            failures=str(sum(r.status == "fail" for r in own)),
            skipped=str(sum(r.status == "reason" for r in own)),
            errors="0",
            time=f"{sum(r.seconds for r in own):.3f}",
        )
        for r in own:
            c = r.cell
            name = f"{c.shapes}-{c.mode}-{c.dtype}"
            where = f"{target}.{host}.{c.model}"
            case = ET.SubElement(
                suite, "testcase", classname=where, name=name, time=f"{r.seconds:.3f}"
            )
            if r.status == "fail":
                ET.SubElement(case, "failure", message=_plain(r.message))
            elif r.status == "reason":
                ET.SubElement(case, "skipped", message=f"{r.reason}: {r.message}")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _plain(text: str) -> str:
    """Drop characters that XML does not allow."""
    return "".join(c for c in text if c in "\n\t" or ord(c) >= 32)


def as_html(results: Sequence[Result], command: str) -> str:
    """Return the matrix as one self-contained page."""
    environment = Environment(
        loader=PackageLoader("gyrator_conformance", "."),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    columns = list(dict.fromkeys(r.cell.column for r in results))
    by_cell = {(r.cell.model, *r.cell.column): r for r in results}
    families: dict[str, list[str]] = {}
    for r in results:
        names = families.setdefault(r.cell.family, [])
        if r.cell.model not in names:
            names.append(r.cell.model)
    template = environment.get_template("report.html.jinja")
    return template.render(
        columns=columns,
        heads=[_spans(columns, depth) for depth in range(5)],
        edges=_edges(columns),
        families=families,
        cell=lambda model, column: by_cell.get((model, *column)),
        scores=[(k, list(group)) for k, group in groupby(scores(results), _kind)],
        versions=versions(),
        command=command,
        reasons={reason.value: reason.meaning for reason in Reason},
        marks={reason.value: reason.mark for reason in Reason},
        used=sorted({r.reason for r in results if r.reason}),
        failures=[r for r in results if r.status == "fail"],
        count=len(results),
    )


def _kind(score: Score) -> str:
    """Return the kind of capability of a score."""
    return score.capability.partition(" ")[0]


def _edges(columns: Sequence[tuple[str, ...]]) -> set[int]:
    """Return the 1-based columns after which another target or host language begins."""
    pairs = pairwise(columns)
    return {k for k, (a, b) in enumerate(pairs, 1) if a[:2] != b[:2]}


def _spans(columns: Sequence[tuple[str, ...]], depth: int) -> list[tuple[str, int, bool]]:
    """Return the heads of one level of columns, over how many each stands, and edges after it."""
    spans: list[tuple[tuple[str, ...], int]] = []
    for column in columns:
        head = column[: depth + 1]
        if spans and spans[-1][0] == head:
            spans[-1] = (head, spans[-1][1] + 1)
        else:
            spans.append((head, 1))
    ends = accumulate(span for _, span in spans)
    edges = _edges(columns)
    return [(head[-1], span, end in edges) for (head, span), end in zip(spans, ends, strict=True)]
