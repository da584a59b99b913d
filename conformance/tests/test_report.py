"""Reports say what happened, to people and to machines."""

import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from attrs import evolve
from rich.console import Console

from gyrator_conformance.__main__ import main
from gyrator_conformance.cells import Cell
from gyrator_conformance.models import all_models
from gyrator_conformance.report import (
    as_html,
    as_json,
    as_junit,
    read_json,
    score_table,
    scores,
    table,
    versions,
)
from gyrator_conformance.running import Result
from gyrator_conformance.worker import as_json as result_json
from gyrator_conformance.worker import from_json


def result(model, family, wrapper, status, **more):
    cell = Cell(model, family, "cpu", wrapper, "static", "training", "float32")
    return Result(cell=cell, status=status, **more)


RESULTS = [
    result("mlp", "pointwise", "python", "pass", error=1e-7, bound=2e-7, kernels=3),
    result("mlp", "pointwise", "fx", "fail", message="<b>bad</b> & wrong\x00", error=float("inf")),
    result("sgd", "pointwise", "python", "reason", reason="no-gradient", message="nothing"),
    result("vit", "attention", "python", "pass"),
]


def test_scores_leave_reasons_out():
    found = {s.capability: s for s in scores(RESULTS)}
    assert found["in all"].share == pytest.approx(2 / 3)
    assert found["family pointwise"].share == 0.5 and found["family pointwise"].excused == 1
    assert found["family attention"].share == found["wrapper python"].share == 1.0
    assert list(found)[-1] == "in all"


def test_tables_count_cells():
    console = Console(width=100, record=True)
    console.print(table(RESULTS), score_table(RESULTS))
    text = console.export_text()
    assert "0/1" in text and "1/1" in text and "66.7 %" in text


def test_json_holds_every_cell():
    data = json.loads(as_json(RESULTS, "run"))
    assert [c["status"] for c in data["cells"]] == ["pass", "fail", "reason", "pass"]
    assert data["cells"][1]["error"] == "inf" and data["versions"]["torch"]
    assert data["reasons"]["no-gradient"]


def test_json_is_read_again():
    assert read_json(as_json(RESULTS, "python -m gyrator_conformance")) == (versions(), RESULTS)


def test_a_run_goes_on_where_an_earlier_one_stopped(tmp_path, capsys):
    first, page = tmp_path / "first.json", tmp_path / "page.json"
    family = all_models()["swiglu"].family
    chosen = ["-k", "swiglu and static", "--dtypes", "float32"]
    assert main([*chosen, "--seconds", "0", "--json", str(first)]) == 1
    assert "2 cells did not run" in capsys.readouterr().out
    held = [
        Result(
            cell=Cell("swiglu", family, "cpu", "python", "static", mode, "float32"),
            status="pass",
            error=mark,
        )
        for mode, mark in (("inference", 0.5), ("training", 0.25))
    ]
    first.write_text(as_json(held, ""))
    assert main([*chosen, "--resume", str(first), "--json", str(page)]) == 0
    assert read_json(page.read_text())[1] == held
    others = tmp_path / "others.json"
    failing = [evolve(held[0], status="fail", message="bad"), held[1]]
    first.write_text(as_json(failing[:1], ""))
    others.write_text(as_json(failing[1:], ""))
    both = ["--resume", str(first), "--resume", str(others)]
    assert main([*chosen, *both, "--seconds", "0", "--json", str(page)]) == 1
    assert read_json(page.read_text())[1] == failing
    assert "did not run" not in capsys.readouterr().out
    first.write_text(as_json(held, "").replace(versions()["torch"], "0.1"))
    assert main([*chosen, "--resume", str(first), "--seconds", "0"]) == 1
    assert "other versions" in capsys.readouterr().out


def test_an_interrupted_run_keeps_what_it_found(tmp_path, monkeypatch, capsys):
    def interrupted(cells, models, targets, workers, shown, seconds):
        shown(Result(cell=cells[0], status="pass"))
        raise KeyboardInterrupt

    monkeypatch.setattr("gyrator_conformance.__main__.run_cells", interrupted)
    page = tmp_path / "page.json"
    chosen = ["-k", "swiglu and static", "--dtypes", "float32"]
    assert main([*chosen, "--json", str(page)]) == 130
    out = capsys.readouterr().out
    assert "interrupted after 1 of 2 cells" in out and f"`--resume {page}` runs the others" in out
    assert main(chosen) == 130 and "--json would keep them" in capsys.readouterr().out
    assert [r.status for r in read_json(page.read_text())[1]] == ["pass"]


@pytest.mark.parametrize("text", ["{bad", "[1]", "{}", '{"versions": {}, "cells": [{"a": 1}]}'])
def test_a_file_that_holds_no_results_is_refused(tmp_path, capsys, text):
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    assert main(["-k", "swiglu and static", "--resume", str(bad), "--seconds", "0"]) == 2
    assert "bad.json holds no results of a run" in capsys.readouterr().out.replace("\n", "")


def test_what_is_not_there_to_resume_is_told_of(tmp_path, capsys):
    chosen = ["-k", "swiglu and static", "--dtypes", "float32", "--seconds", "0"]
    assert main([*chosen, "--resume", str(tmp_path / "none.json")]) == 1
    assert "none.json does not exist" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("option", ["--json", "--junit", "--html"])
def test_a_report_that_cannot_be_written_is_refused_first(tmp_path, capsys, option):
    assert main(["-k", "swiglu and static", option, str(tmp_path)]) == 2
    assert "is a folder; give the name of a file" in capsys.readouterr().out.replace("\n", "")


def test_junit_counts_failures_and_reasons():
    root = ET.fromstring(as_junit(RESULTS))
    counts = {s.get("name"): (s.get("tests"), s.get("failures"), s.get("skipped")) for s in root}
    assert counts == {"cpu.fx": ("1", "1", "0"), "cpu.python": ("3", "0", "1")}
    (failure,) = root.iter("failure")
    assert failure.get("message") == "<b>bad</b> & wrong"


class Page(HTMLParser):
    """Checks that tags are closed, and collects cells."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self):
        super().__init__()
        self.open, self.cells, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.links += [given[k] for k in ("src", "href") if k in given]
        if "cell" in (given.get("class") or "").split():
            self.cells.append(given["class"].removesuffix(" edge"))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_other_file():
    page = Page()
    text = as_html(RESULTS, "python -m gyrator_conformance")
    page.feed(text)
    assert page.open == [] and set(page.links) == {"#failures"}
    assert sorted(page.cells) == [
        "cell",
        "cell",
        "cell fail",
        "cell pass",
        "cell pass",
        "cell reason",
    ]
    assert "<b>bad" not in text and "&lt;b&gt;bad" in text


def test_results_cross_processes():
    assert [from_json(json.loads(json.dumps(result_json(r)))) for r in RESULTS] == RESULTS


def test_the_command_line_refuses_what_makes_no_sense(capsys):
    assert main(["--target", "abacus"]) == 2
    assert main(["-k", "("]) == 2
    for listed in ([], ["--list"]):
        assert main(["-k", "nothing-like-this", *listed]) == 2
        assert "no cell matches" in capsys.readouterr().out
    assert main(["--list", "-k", "bert and static and training and float32"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "cpu/python/bert/static/training/float32"
    for option, name in (("--dtypes", "int3"), ("--wrapper", "rust")):
        with pytest.raises(SystemExit):
            main([option, name])
        assert f"'{name}': choose from" in capsys.readouterr().err
