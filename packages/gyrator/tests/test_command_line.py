"""The command line itself: its start, its errors, its help, and every example in that help."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from gyrator import Session
from gyrator.cli.main import main
from gyrator.cli.output import size
from gyrator.cli.parser import SHELLS, make_parser

SUBJECT = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(16, 8), nn.Softmax(-1)).requires_grad_(False), torch.randn(4, 16)
"""


def parsers(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    """Yield a parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for part in action.choices.values():
                yield from parsers(part)


ALL = {part.prog: part for part in parsers(make_parser())}
EXAMPLES = {
    line: part.prog
    for part in ALL.values()
    for line in (part.epilog or "").splitlines()[1:]
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "model.py").write_text(SUBJECT)
    model, x = nn.Sequential(nn.Linear(16, 8), nn.Softmax(-1)), torch.randn(4, 16)
    model.requires_grad_(False)
    torch.export.save(torch.export.export(model, (x,)), folder / "model.pt2")
    options = {"trace_dir": str(folder / "trace"), "progress": False}
    torch._dynamo.reset()
    with Session(options=options) as session:
        torch.compile(model, backend=session.backend)(x)
    trace = folder / "trace" / "000_inference"
    for name in ("loop.gy", "kernel.gy"):
        shutil.copy(trace / name, folder)
    return folder


LIGHT = """
import contextlib, io, json, sys
from gyrator.cli.main import main

for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(sys.stdout):
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = stop.code
    heavy = sorted({"torch", "sympy", "numpy", "triton"} & {*sys.modules})
    assert not heavy and status in (0, 2, None), (arguments, status, heavy)
"""
EARLY = [
    *([*prog.split()[1:], "--help"] for prog in ALL),
    ["--version"],
    [],
    ["explian"],
    ["opt", "--lst"],
    ["aot", "compile", "model.pt2", "--runtime", "pyton"],
    *(
        [*command.split(), "nowhere"]
        for command in ("aot compile", "aot list", "opt", "verify", "repro", "minify", "bisect")
    ),
    ["aot", "check", "nowhere", "nowhere"],
    ["aot", "bench", "nowhere", "nowhere"],
    ["opt", "--option", "numerics=fsat"],
    ["explain", "nowhere.py:make"],
    ["explain", "nowhere.py"],
    ["options", "--json"],
    ["modes"],
    ["cache"],
    ["completion", "zsh"],
]


def test_what_needs_no_compiler_imports_no_torch() -> None:
    subprocess.run([sys.executable, "-c", LIGHT, json.dumps(EARLY)], check=True)


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("explian model.py:make", "explain"),
        ("aot lst model.gya", "list"),
        ("opt loop.gy --pases cse", "--passes"),
        ("aot compile model.pt2 --runtime pyton", "python"),
        ("minify graph.gy --for=wrng", "wrong"),
        ("doctor --jsn=1", "--json"),
    ],
)
def test_a_misspelt_word_gets_a_suggestion(
    line: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"(did you mean {suggestion}?)" in _refused(capsys, *line.split())


def test_what_resembles_nothing_gets_none(capsys: pytest.CaptureFixture[str]) -> None:
    output = _refused(capsys, "doctor", "--quux")
    assert "unrecognized arguments: --quux" in output and "did you mean" not in output


@pytest.mark.parametrize(
    "line",
    [
        "report model.py:make --runs -1",
        "aot check model.gya model.pt2 --runs 0",
        "aot bench model.gya model.pt2 --runs x",
        "minify fx.gy --seconds nan",
    ],
)
def test_numbers_of_runs_are_checked(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a whole number from " in _refused(capsys, *line.split())


def test_a_report_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The function, which takes time, is not even looked for."""
    folder = tmp_path / "nowhere"
    output = _refused(capsys, "report", "model.py:make", "-o", str(folder / "report.html"))
    assert f"there is no folder {folder}" in output


@pytest.mark.parametrize("command", ["aot compile", "opt", "verify", "repro"])
def test_a_file_that_is_not_there_is_named(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no file nowhere.gy" in _refused(capsys, *command.split(), "nowhere.gy")


def test_a_folder_without_a_graph_gets_a_suggestion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{tmp_path} has no graph fx.gy\n" in _refused(capsys, "repro", str(tmp_path))
    folder = tmp_path / "000_inference"
    folder.mkdir()
    (folder / "fx.gy").touch()
    output = _refused(capsys, "minify", str(tmp_path))
    assert f"has no graph fx.gy; did you mean {folder}?" in output


def test_an_option_needs_a_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loop.gy"
    file.write_text("loop.program 1 @main\n  return\n")
    assert main(["opt", str(file), "--option", "fusion"]) == 2
    assert "'fusion' is no option with a value\n  help: write it as NAME=VALUE" in (
        capsys.readouterr().err
    )


def test_brackets_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    assert "gyrator[verify]" in capsys.readouterr().out


def test_the_cache_is_pruned_or_moved(capsys: pytest.CaptureFixture[str]) -> None:
    assert "separate commands" in _refused(capsys, "cache", "export", "x.zip", "--prune", "1MB")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model", "is called without arguments: missing a required argument: 'input'"),
        ("double", "is called without arguments: missing a required argument: 'x'"),
        ("few", "returned 0 arguments: missing a required argument: 'input'"),
        ("many", "returned 2 arguments: too many positional arguments"),
    ],
)
def test_a_subject_lacks_arguments(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "subjects.py"
    file.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "def double(x): return x * 2\n"
        "def few(): return model\n"
        "def many(): return model, torch.ones(2), 3\n"
    )
    assert main(["explain", f"{file}:{name}"]) == 2
    assert f"{file}:{name} {message}" in capsys.readouterr().err


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_commands_and_options(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert "gyrator" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "word"),
    [("gyrator expl", "explain"), ("gyrator opt --pri", "--print-changed"),
     ("gyrator opt x.gy --option nume", "numerics="), ("gyrator opt x.gy --to ti", "tile")],
)  # fmt: skip
def test_a_line_is_completed(line: str, word: str, tmp_path: Path) -> None:
    # As the function that bash calls does it: argcomplete answers on a file descriptor.
    requested = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "words"),
             "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
             "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}  # fmt: skip
    program = "import sys; sys.argv[0] = 'gyrator'; from gyrator.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **requested}, check=True)
    assert word in (tmp_path / "words").read_text().split("\n")


def test_every_command_has_an_example() -> None:
    commands = {prog for prog, part in ALL.items() if part.get_default("run")}
    assert commands == {*EXAMPLES.values()}


def test_the_examples_of_the_help_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for line in EXAMPLES:
        words = shlex.split(line, comments=True)
        if words[0] != "gyrator" or ">" in words:
            continue  # what shells do with the scripts is theirs
        with monkeypatch.context() as here:
            if words[1] == "cache":  # it may prune
                here.setenv("GYRATOR_CACHE_DIR", str(folder / "cache"))
            if words[1] == "minify":  # a graph is made small while something is wrong with it
                here.setenv("CXX", "false")
                here.setenv("GYRATOR_TARGETS", "cpu")  # LLVM would take the compiler's place
                here.setenv("GYRATOR_CACHE_DIR", str(folder / "empty"))
            assert main(words[1:]) == 0, f"{line}\n{capsys.readouterr()}"
    assert (folder / "report.html").exists() and (folder / "small" / "repro.py").exists()


def test_sizes_have_units() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536 << 20, 5 << 50)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "1.5 GiB", "5120.0 TiB",
    ]  # fmt: skip


@pytest.mark.parametrize("command", [["cache"], ["doctor"], ["options"], ["modes"],
                                     ["opt", "--list"]], ids=" ".join)  # fmt: skip
def test_facts_are_printed_as_data(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)


def test_the_cache_says_how_large_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(folder / "own"))
    monkeypatch.setenv("GYRATOR_CACHE_BYTES", "3 GiB")
    (folder / "own").mkdir()
    (folder / "own" / "file").write_bytes(b"x" * 2048)
    assert main(["cache"]) == 0
    assert re.search(r"own: 2\.0 KiB in 1 files, of 3\.0 GiB$", capsys.readouterr().out.strip())
