"""`gyrator opt`: the product's pipeline on text, from any level to any."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from gyrator import Session
from gyrator.cli.main import main
from gyrator.cli.opt import OptError, OptRequest, run_opt
from gyrator.options import make_options
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.diagnostics import ParseError, UnsupportedError
from gyrator_ir.levels import LEVELS, parse_program
from gyrator_ir.passes import PassError, Tracer
from gyrator_ir.source import TranslationUnit


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of a compile: what the product makes at each level."""
    folder = tmp_path_factory.mktemp("trace")
    options = {"trace_dir": str(folder), "cache": False, "progress": False, "strict": True}
    with Session(options=options) as session:
        torch._dynamo.reset()
        norm = lambda x, w: torch.softmax(x @ w, -1).relu().sum(0)  # noqa: E731
        torch.compile(norm, backend=session.backend)(torch.randn(64, 48), torch.randn(48, 33))
    return folder / "000_inference"


@pytest.fixture
def loop(traced: Path) -> str:
    return (traced / "loop.gy").read_text()


@pytest.mark.parametrize("start", ["fx", "loop", "kernel", "host"])
@pytest.mark.parametrize("to", ["fx", *LEVELS, "kernels", "python"])
def test_it_runs_what_the_product_runs(traced: Path, start: str, to: str) -> None:
    text = (traced / f"{start}.gy").read_text()
    order = ["fx", *LEVELS, "kernels", "python"]
    if order.index(to) < order.index(start):
        with pytest.raises(OptError, match="GY-OPT-002: no stage leads from"):
            run_opt(text, OptRequest(to=to))
        return
    result = run_opt(text, OptRequest(to=to))
    if to == "python":
        assert result == (traced / "host.py").read_text()
    elif to == "kernels":
        (file,) = traced.glob("*.cpp")
        assert result == file.read_text()
    elif to == "loop":
        changed = sorted(traced.glob("passes/*-loop-*.gy"))
        assert result == changed[-1].read_text()
    else:
        assert result == (traced / f"{to}.gy").read_text()


def test_tiled_kernels_are_printed_and_passed_over(traced: Path) -> None:
    text = (traced / "tile.gy").read_text()
    (file,) = traced.glob("*.cpp")

    assert run_opt(text, OptRequest(to="kernels")) == file.read_text()
    assert run_opt(text, OptRequest(passes="merge-repeats")) == text
    bound = run_opt(text, OptRequest(passes="bind-choices"))
    assert "choice" in text and "choice" not in bound
    assert run_opt(bound, OptRequest(to="kernels")) == file.read_text()
    with pytest.raises(OptError, match="no stage leads from tile to 'host'"):
        run_opt(text, OptRequest(to="host"))
    with pytest.raises(OptError, match="use --passes to select the passes"):
        run_opt(text, OptRequest(without=("vectorize",)))
    elsewhere = text.replace(" on cpu", " on vector9")
    with pytest.raises(UnsupportedError, match="GY-OPT-003"):
        run_opt(elsewhere, OptRequest(to="kernels"))


def test_options_are_those_of_torch_compile(loop: str) -> None:
    kernels = {}
    for fusion in (True, False):
        options = make_options(options={"fusion": fusion})
        result = run_opt(loop, OptRequest(to="kernel", options=options))
        kernels[fusion] = len(parse_program(result).kernels)
    assert kernels[True] < kernels[False]


def test_it_stops_before_and_after_a_pass(loop: str, traced: Path) -> None:
    (inlined,) = traced.glob("passes/*-loop-inline-pointwise.gy")
    after = run_opt(loop, OptRequest(after="inline-pointwise"))
    assert after == inlined.read_text()
    tracer = Tracer()
    before = run_opt(loop, OptRequest(before="inline-pointwise", to="host"), tracer)
    assert [s.name for s in tracer.steps] == [
        "drop-dead-buffers", "update-in-place", "simplify-indices", "unit-reductions"
    ]  # fmt: skip
    assert run_opt(before, OptRequest(passes="inline-pointwise")) == after


def test_passes_take_the_place_of_those_of_the_level(loop: str) -> None:
    def ran(**request: object) -> list[str]:
        tracer = Tracer()
        run_opt(loop, OptRequest(**request), tracer)
        return [s.name for s in tracer.steps]

    assert ran() == []
    assert ran(passes="merge-axes") == ["merge-axes"]
    assert ran(passes="inline-pointwise{cost=0},merge-axes", to="kernel")[:2] == [
        "inline-pointwise", "merge-axes"
    ]  # fmt: skip
    without = ran(without=("merge-axes", "split-scans"))
    assert without == [n for n in ran(to="loop") if n not in ("merge-axes", "split-scans")]
    with pytest.raises(PassError, match=r"GY-PASS-001(.|\n)*did you mean 'merge-axes'"):
        ran(without=("merge-axe",))
    with pytest.raises(PassError, match=r"no pass 'merge-axes'(.|\n)*loop: split-scans"):
        ran(passes="split-scans", after="merge-axes")
    with pytest.raises(ParseError, match="GY-PASS-001: there is no pass 'cse'"):
        ran(passes="cse")


@pytest.mark.parametrize("text", ["", "def f(): pass\n", "; a comment\n\nnonsense"])
def test_text_that_is_no_program_is_refused(text: str) -> None:
    """The level is read from the first line."""
    with pytest.raises(OptError) as error:
        run_opt(text, OptRequest())
    diagnostic = error.value.diagnostic
    assert diagnostic.code == "GY-OPT-001"
    assert diagnostic.message == "the text is not a program"
    assert "fx.graph, loop.program, kernel.schedule, host.program" in diagnostic.help


@pytest.mark.parametrize(
    ("level", "request_", "message"),
    [
        ("kernel", OptRequest(to="loop"), "no stage leads from kernel to 'loop'"),
        ("kernel", OptRequest(to="fortran"), "no stage leads from kernel to 'fortran'"),
        (
            "kernel",
            OptRequest(after="merge-axes"),
            "pass 'merge-axes' of the level loop comes befo",
        ),
        ("host", OptRequest(passes="cse"), "there are no passes for the level host"),
        (
            "loop",
            OptRequest(start="asm"),
            "there is no level 'asm'; known levels are: fx, loop, kernel",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    traced: Path, level: str, request_: OptRequest, message: str
) -> None:
    with pytest.raises(OptError) as error:
        run_opt((traced / f"{level}.gy").read_text(), request_)
    assert error.value.diagnostic.code == "GY-OPT-002"
    assert error.value.diagnostic.message.startswith(message)
    assert "gyrator opt --help" in error.value.diagnostic.help


def test_the_command_line(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(traced / "loop.gy")
    assert main(["opt", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "joint   replace-random           Replace ATen's random ops" in listed
    assert "loop    inline-pointwise" in listed
    arguments = ["--to", "kernel", "--without", "split-scans", "--time", "--print-changed"]
    assert main(["opt", file, *arguments, "--option", "fusion=false"]) == 0
    output = capsys.readouterr()
    assert parse_program(output.out).nodes
    assert "+++ loop after merge-axes" in output.err
    assert "split-reductions" in output.err and "split-scans" not in output.err
    assert "inline-pointwise" not in output.err
    assert main(["opt", file, "--option", "fusio=false"]) == 2
    assert "GY-OPTION-001" in capsys.readouterr().err
    assert main(["opt", file, "--to", "kernel", "--option", "threads=x"]) == 2
    assert "GY-OPTION-003" in capsys.readouterr().err


@pytest.mark.parametrize("level", [*LEVELS])
def test_a_saved_level_runs(traced: Path, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(traced / f"{level}.gy")
    assert main(["opt", file, "--run", "--seed", "3", "--json", "--option", "progress=false"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["level"], output["difference"]) == (level, "") and output["results"]
    if level in ("loop", "kernel"):
        assert output["results"] == [output["results"][0]]
        assert output["results"][0].startswith("result 0: f32[33] strides [1] from 0.")


@pytest.mark.parametrize("level", [*LEVELS])
def test_what_runs_otherwise_than_its_text_is_found(
    traced: Path, level: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = CppBackend.emit_tiled

    def wrong(*args: Any) -> tuple[TranslationUnit, ...]:
        return tuple(evolve(u, text=u.text.replace("gy_sub(", "gy_add(")) for u in emit(*args))

    monkeypatch.setattr(CppBackend, "emit_tiled", wrong)
    status = main(["opt", str(traced / f"{level}.gy"), "--run", "--option", "progress=false"])
    output = "".join(capsys.readouterr())
    assert "agrees" not in output
    assert (status, "GY-VERIFY-011" in output) == ((2, True) if level == "host" else (1, False))


def test_what_is_no_program_of_ours_does_not_run(
    traced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", str(traced / "fx.gy"), "--run"]) == 2
    assert "`gyrator repro` for graphs" in capsys.readouterr().err
    assert main(["opt", str(traced / "loop.gy"), "--run", "--to", "kernels"]) == 2
    assert "GY-OPT-002: --run requires" in capsys.readouterr().err


@pytest.mark.parametrize("level", [*LEVELS])
def test_the_kernels_of_any_level_are_verified(
    traced: Path, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(traced / f"{level}.gy")]) == 0
    assert " runs" in capsys.readouterr().out
