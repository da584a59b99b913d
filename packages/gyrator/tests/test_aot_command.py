"""`gyrator aot`: from a .pt2 file to a package, and what the package is."""

import json
import logging
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from torch import nn
from torch.export import Dim, export, save

from gyrator import aot
from gyrator.cli.aot import random_inputs
from gyrator.cli.main import main
from gyrator_runtime.standalone.ffi import Array, Package


class Scores(nn.Module):
    """An embedding, its mean, and which of the scores are positive."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 16), nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor, bias: torch.Tensor) -> Any:
        scores = self.out(self.embed(tokens).mean(1)) + bias
        return scores, scores > 0, tokens.shape[0]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported program with a dynamic batch."""
    path = tmp_path_factory.mktemp("aot") / "scores.pt2"
    inputs = torch.zeros(4, 5, dtype=torch.int64), torch.zeros(3)
    with torch.no_grad():
        save(export(Scores(), inputs, dynamic_shapes=({0: Dim("n", max=40)}, None)), path)
    return path


@pytest.fixture(scope="module")
def package(program: Path) -> Path:
    """Its package."""
    assert main(["aot", "compile", str(program)]) == 0
    return program.with_suffix(".gya")


def _json(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> Any:
    capsys.readouterr()
    assert main(["aot", *map(str, arguments), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_a_package_is_made_listed_and_checked(
    program: Path, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = _json(capsys, "list", package)
    assert [i["name"] for i in listed["entries"][0]["inputs"]] == ["tokens", "bias"]
    checked = _json(capsys, "check", package, program, "--runs", 4)
    assert checked["failed"] == 0
    assert len({tuple(map(tuple, run["sizes"])) for run in checked["runs"]}) > 1
    measured = _json(capsys, "bench", package, program, "--runs", 3)
    assert measured["ratio"] > 0
    assert main(["aot", "list", str(package)]) == 0
    output = capsys.readouterr().out
    assert "tokens: int64[" in output
    assert "BSD-3-Clause" in output


def test_a_package_of_another_program_does_not_agree(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.no_grad():
        inputs = torch.zeros(4, 5, dtype=torch.int64), torch.zeros(3)
        save(export(Scores(), inputs), tmp_path / "other.pt2")
    output = _json(capsys, "compile", tmp_path / "other.pt2", "-o", tmp_path / "other.gya")
    assert output["bytes"] == (tmp_path / "other.gya").stat().st_size
    checked = _json(capsys, "check", tmp_path / "other.gya", program, status=1)
    assert checked["failed"] == 5

    class Two(torch.nn.Module):
        def forward(self, tokens: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tokens + 1, weights + 1

    save(export(Two(), inputs), tmp_path / "two.pt2")
    assert main(["aot", "check", str(tmp_path / "other.gya"), str(tmp_path / "two.pt2")]) == 1
    assert "differs: 3 results, eager mode 2" in capsys.readouterr().out


def test_a_standalone_package_and_its_library(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "standalone.gya"
    _json(capsys, "compile", program, "-o", path, "--runtime", "standalone")
    assert main(["aot", "list", str(path)]) == 0
    assert "runtime standalone" in capsys.readouterr().out
    installed = _json(capsys, "library", "--out", tmp_path / "prefix")
    library = tmp_path / "prefix" / "lib" / "libgyrator_runtime.so"
    assert library.stat().st_size == installed["bytes"] <= 300_000
    assert (tmp_path / "prefix" / "include" / "gyrator.hpp").exists()
    with Package.open(path, library) as package, package.instance() as model:
        tokens = Array("int64", (2, 5), bytes(80))
        scores, positive, count = model.run([tokens, Array("float32", (3,), bytes(12))])
    assert (scores.sizes, positive.dtype) == ((2, 3), "bool")
    assert int.from_bytes(count.data, "little") == 2


def test_several_programs_have_names(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.gya"
    _json(capsys, "compile", f"a={program}", f"b={program}", "-o", path, "--target", "plain")
    assert aot.load(path).entries == ("a", "b")
    for names, message in (
        ((f"{program}", f"{program}"), "several programs need names: NAME=FILE"),
        ((f"a={program}", f"a={program}"), "the names of the programs must differ"),
    ):
        with pytest.raises(SystemExit):
            main(["aot", "compile", *names])
        assert message in capsys.readouterr().err
    assert main(["aot", "check", str(path), str(program)]) == 2
    assert "GY-PACKAGE-005" in capsys.readouterr().err
    (tmp_path / "text.pt2").write_text("no program")
    assert main(["aot", "compile", str(tmp_path / "text.pt2")]) == 2
    assert capsys.readouterr().err.startswith("GY-AOT-004")


def test_other_archives_are_refused_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ZipFile(tmp_path / "empty.pt2", "w"):
        pass
    torch.save({"a": torch.ones(2)}, tmp_path / "weights.pt2")
    log, handler = logging.getLogger("torch.export"), BufferingHandler(9)
    log.addHandler(handler)
    try:
        for name, reason in (
            ("empty.pt2", "does not contain any files\n"),
            ("weights.pt2", "archive_format: file not found\n"),
        ):
            assert main(["aot", "compile", str(tmp_path / name)]) == 2
            message = capsys.readouterr().err
            assert message.startswith("GY-AOT-004")
            assert reason in message
            assert "warnings above" not in message
        assert not handler.buffer
        log.warning("", exc_info=ValueError())  # other entries are still logged
        assert len(handler.buffer) == 1
    finally:
        log.removeHandler(handler)


@pytest.mark.parametrize("when", ["compile", "load"])
def test_constants_are_computed_when_it_is_said(
    tmp_path: Path, when: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    program, path = tmp_path / "model.pt2", tmp_path / "model.gya"
    save(export(model, (torch.randn(1, 3, 8, 8),)), program)
    chosen = ("--option", "freezing=true", "--constants", when)
    _json(capsys, "compile", program, *chosen)
    assert ("1.running_mean" in aot.load(path).weights) == (when == "load")
    assert _json(capsys, "check", path, program, "--runs", 2)["failed"] == 0


def test_inputs_are_drawn_within_their_ranges(package: Path) -> None:
    entry = aot.inspect(package).entries[0]
    sizes = set()
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        tokens, bias = random_inputs(entry, generator, torch.device("cpu"))
        assert tokens.dtype == torch.int64
        assert bias.shape == (3,)
        sizes.add(tokens.shape[0])
    assert min(sizes) >= entry.symbols[0].least
    assert max(sizes) <= 40
    assert len(sizes) > 10
