"""What goes wrong around the compiler must not cost a result: right answers, one clear warning."""

import gc
import hashlib
import json
import os
import shutil
import signal
import stat
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from forked import start_forked
from runner_cache import with_runner

from gyrator.cli.doctor import examine
from gyrator.config import Config, read_config
from gyrator.options import OptionError, list_modes, list_options, make_options
from gyrator.reports.records import GraphRecord
from gyrator.reports.tracing import Trace
from gyrator.session import Session
from gyrator.targets import discover
from gyrator_ir.passes import NO_EDITS, PassEdits
from gyrator_lowering.default import default_table
from gyrator_lowering.table import LoweringTable
from gyrator_runtime.device import cpu_isa
from gyrator_runtime.native import PureRunner
from gyrator_runtime.warn import GyratorWarning

from .conftest import PREAMBLE, Child, child_environment, run_child

COMPARE = """
session = Session(observer=records.append)
g = torch.compile(f, backend=session.backend)
got = [g(x, w) for _ in range(3)]
again = torch.compile(lambda x, w: f(x, w) * 2, backend=session.backend)(x, w)
close = lambda a, b: torch.allclose(a, b, rtol=1e-5, atol=1e-6)
report(right=all(close(a, f(x, w)) for a in got) and close(again, f(x, w) * 2))
"""


def test_without_a_compiler_everything_runs_eagerly_with_one_warning(child: Child) -> None:
    alone = {"CXX": "/nonexistent/c++", "PATH": "", "GYRATOR_TARGETS": "cpu"}
    actual = child(COMPARE, alone)
    assert actual["right"]
    (warning,) = set(actual["warnings"])
    assert "GY-BUILD-001" in warning


def test_a_failing_compiler(child: Child, tmp_path: Path) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo "g++ 99"; exit 0; }\nexit 1\n')
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    actual = child(COMPARE, {"CXX": str(broken)})
    assert actual["right"]
    (warning,) = set(actual["warnings"])
    assert "GY-BUILD" in warning


def test_a_cache_folder_that_cannot_be_used(child: Child, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    actual = child(COMPARE, cache=file)
    assert actual["right"]
    (warning,) = set(actual["warnings"])
    assert "GY-CACHE" in warning
    assert file.read_text() == "no folder"


def test_an_unknown_device_runs_eagerly_with_one_warning(config: Config) -> None:
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Session(config=config, targets={}) as session:
            x = torch.randn(3, 4, requires_grad=True)
            y = torch.compile(lambda x: x.sin().sum(), backend=session.backend)(x)
            y.backward()
    assert torch.allclose(y, x.sin().sum()) and x.grad is not None
    assert torch.allclose(x.grad, x.detach().cos())
    texts = {str(w.message) for w in caught if issubclass(w.category, GyratorWarning)}
    assert 1 <= len(texts) <= 2 and all("GY-TARGET-003" in t for t in texts)


def test_a_second_process_runs_no_pass_and_no_compiler(child: Child, tmp_path: Path) -> None:
    script = """
session = Session(observer=records.append)
w.requires_grad_()
y = torch.compile(lambda x, w: f(x, w) + 0 * torch.rand(9), backend=session.backend)(x, w)
y.square().sum().backward()
v = w.detach().clone().requires_grad_()
f(x, v).square().sum().backward()
with torch.no_grad():
    z = torch.compile(lambda x: x.exp() + 1, backend=session.backend, dynamic=True)(x)
right = torch.allclose(y, f(x, w), atol=1e-5) and torch.allclose(w.grad, v.grad, atol=1e-4)
report(right=right and torch.allclose(z, x.exp() + 1))
"""
    cache = tmp_path / "kept"
    first = child(script, cache=cache)
    assert first["right"] and not any(cached for _, _, cached, _ in first["records"])
    second = child(script, {"PATH": "", "CXX": "", "SEED": "2"}, cache)
    assert second["right"] and second["warnings"] == []
    assert len(second["records"]) == 3 and all(cached for _, _, cached, _ in second["records"])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache that a process has filled. It may be moved: tests copy it."""
    cache = tmp_path_factory.mktemp("filled") / "kept"
    assert run_child(COMPARE, {}, cache)["right"]
    return cache


@pytest.mark.parametrize("kind", ["programs", "graphs"])
@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_damaged_cache_entries_are_built_again(
    child: Child, filled: Path, tmp_path: Path, kind: str, damage: str
) -> None:
    cache = tmp_path / "kept"
    shutil.copytree(filled, cache)
    files = [p for p in (cache / "entries" / kind).rglob("*") if p.is_file()]
    assert files
    for path in files:
        if damage == "truncated":
            path.write_bytes(path.read_bytes()[:-1])
        elif path.name != "manifest.json":
            path.unlink()
    actual = child(COMPARE, cache=cache)
    assert actual["right"] and not any(fallback for *_, fallback in actual["records"])


def _replace(cache: Path, kind: str, pattern: str, data: bytes) -> None:
    """Put other data, with its hash, in place of stored files."""
    for manifest in list((cache / "entries" / kind).rglob("manifest.json")):
        path = next(p for p in manifest.parent.glob(pattern) if p != manifest)
        path.write_bytes(data)
        facts = json.loads(manifest.read_bytes())
        digest = hashlib.sha256(data).hexdigest()
        facts["files"][path.name] = {"size": len(data), "sha256": digest}
        manifest.write_text(json.dumps(facts))


def _compiled(
    root: Path,
    inputs: Callable[..., Any],
    isa: str = "",
    passes: PassEdits = NO_EDITS,
    rules: LoweringTable | None = None,
    **options: Any,
) -> tuple[list[GraphRecord], list[str], Callable[..., Any]]:
    """Compile and check a function in a session with the cache `root / "cache"`; return records and
    warnings."""
    actual: list[GraphRecord] = []
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = {"progress": False, **options}
        with Session(
            options=settings,
            config=Config(with_runner(root / "cache"), 1 << 30, isa),
            observer=actual.append,
            passes=passes,
            rules=rules,
        ) as session:
            call = torch.compile(inputs, backend=session.backend)
            for shape in ((4, 5), (3, 7)):
                x = torch.randn(shape)
                torch.testing.assert_close(call(x), inputs(x))
    texts = [str(w.message) for w in caught if issubclass(w.category, GyratorWarning)]
    return actual, texts, call


def _small(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1).sum(-1)


@pytest.mark.parametrize(
    ("kinds", "pattern", "data"),
    [
        (("programs",), "*.so", b"no library"),
        (("programs", "kernels"), "*.so", b"no library"),
        (("programs",), "plan.json", b"no program"),
        (("programs",), "artifact.json", b"{}"),
        (("programs", "graphs"), "*.json", b"[]"),
    ],
)
def test_what_is_stored_and_does_not_load_is_built_again(
    tmp_path: Path, kinds: tuple[str, ...], pattern: str, data: bytes
) -> None:
    options = {"strict": True}
    assert _compiled(tmp_path, _small, **options)[1] == []
    for kind in kinds:
        _replace(tmp_path / "cache", kind, pattern, data)
    actual, texts, _ = _compiled(tmp_path, _small, **options)
    assert texts and all("GY-CACHE-001" in t for t in texts)
    assert not any(r.cached or r.fallback for r in actual)
    actual, texts, _ = _compiled(tmp_path, _small, **options)
    assert texts == [] and actual and all(r.cached for r in actual)


def test_what_another_processor_stored_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cpu_isa() == "plain":
        pytest.skip("there is no lesser processor")
    _compiled(tmp_path, _small)
    monkeypatch.setattr("gyrator_runtime.artifact.cpu_isa", lambda: "plain")
    actual, texts, _ = _compiled(tmp_path, _small, strict=True)
    assert actual and not any(r.cached for r in actual)
    assert "this CPU has plain" in "".join(texts)


def test_a_stored_program_says_which_instructions_it_needs(tmp_path: Path) -> None:
    _compiled(tmp_path, _small, isa="plain")
    actual = (tmp_path / "cache" / "entries" / "programs").rglob("artifact.json")
    assert {json.loads(p.read_bytes())["isa"] for p in actual} == {"plain"}


@pytest.mark.parametrize("wrapper", ["python", "cpp"])
def test_programs_that_are_dropped_leave_nothing(tmp_path: Path, wrapper: str) -> None:
    def counts() -> tuple[int, int, int]:
        torch._dynamo.reset()
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        locks = list((tmp_path / "cache" / "locks").iterdir())
        return maps.count(str(tmp_path)), len(os.listdir("/proc/self/fd")), len(locks)

    def cycle(number: int) -> None:
        inputs = lambda x: (x * number).sin().sum(-1)  # noqa: E731
        _, texts, _ = _compiled(tmp_path, inputs, strict=True, wrapper=wrapper)
        assert texts == []

    cycle(1)
    before = counts()
    for number in range(2, 4):
        cycle(number)
    assert counts() == before and before[2] == 0


@pytest.mark.parametrize("cxx", ['g++ "-O2', "/bin/false", "/nonexistent/g++"])
def test_a_compiler_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cxx: str) -> None:
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setattr("gyrator.targets.cpu.find_spec", lambda name: None)
    actual, texts, _ = _compiled(tmp_path, _small)
    assert all(r.fallback for r in actual) and "GY-BUILD-001" in "".join(texts)


def test_an_instruction_set_that_is_not_there(tmp_path: Path) -> None:
    actual, texts, _ = _compiled(tmp_path, _small, isa="avx9")
    assert not any(r.fallback for r in actual) and "GY-DEVICE-004" in "".join(texts)


def test_a_compiler_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow-c++"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo "g++ 99"; exit 0; }\nsleep 600\n')
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr("gyrator.engine.context.host_runner", lambda cache: PureRunner())
    actual, texts, _ = _compiled(tmp_path, _small, compile_seconds=1)
    assert all(r.fallback for r in actual) and "GY-BUILD-003" in "".join(texts)


@attrs.frozen
class Slow:
    """A pass that takes an hour, by a clock of its own."""

    name = "slow"
    clock: list[float]

    @property
    def content_hash(self) -> str:
        """What this pass does."""
        return "slow"

    def run(self, program: Any) -> Any:
        """Return the program, or on the level of FX graphs that it is the same."""
        self.clock[0] += 3600
        return False if isinstance(program, torch.fx.GraphModule) else program


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock for deadlines, which stands still until a test moves it."""
    now = [0.0]
    monkeypatch.setattr("gyrator_ir.deadline.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("level", "seconds", "message"),
    [
        ("fx", 600, "the stage 'lower'"),
        ("loop", 600, "the stage 'schedule'"),
        ("kernel", 600, ""),  # the pass is the last step of its stage
        ("tile", 600, "the stage 'emit'"),
        ("joint", 600, "the stage 'joint'"),
        ("loop", 0, ""),
        ("loop", 7200, ""),
    ],
)
def test_a_stage_that_takes_too_long(
    tmp_path: Path, clock: list[float], level: str, seconds: int, message: str
) -> None:
    passes = PassEdits().first(level, Slow(clock))
    actual, texts, _ = _compiled(tmp_path, _small, passes=passes, stage_seconds=seconds)
    assert actual and all(bool(r.fallback) is bool(message) for r in actual)
    assert bool(texts) is bool(message)
    assert all("GY-COMPILE-003" in t and message in t for t in texts)


def test_an_op_that_takes_too_long_to_lower(tmp_path: Path, clock: list[float]) -> None:
    table = default_table()

    def slow(b: Any, x: Any) -> Any:
        clock[0] += 3600
        return table.rules["aten.sin.default"](b, x)

    rules = LoweringTable({**table.rules, "aten.sin.default": slow})
    inputs = lambda x: (x.exp().sin() + x).sum(0)  # noqa: E731
    for _ in range(2):  # what time has decided is not stored
        actual, texts, _ = _compiled(tmp_path, inputs, rules=rules)
        assert not any(r.fallback for r in actual) and any(r.kernels for r in actual)
        assert texts and all("GY-COMPILE-003" in t for t in texts)
        left = {e.target: e.reason for r in actual for e in r.externs}
        assert left.keys() == {"aten.sin.default"}
        assert left["aten.sin.default"].startswith("GY-COMPILE-003")
    clock[0] = -1e9
    assert not any(r.externs for r in _compiled(tmp_path, inputs)[0])


@pytest.mark.parametrize("fails", ["exit 1", "kill -9 $$"])
def test_a_compiler_that_fails_on_one_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    picky = tmp_path / "picky-c++"
    picky.write_text(
        '#!/bin/sh\nif grep -qs "aten.sort" kernels.cpp; then '
        f'{fails}; fi\nexec {shutil.which("g++")} "$@"\n'
    )
    picky.chmod(picky.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(picky))
    monkeypatch.setattr(
        "gyrator_codegen.language.balanced", lambda sizes, *_: [[n] for n in range(len(sizes))]
    )

    def given(x: torch.Tensor) -> Any:
        return x.sort(0), (x.exp() + 1).sum(-1), (x @ x.t()).cumsum(1), x.t().sort(-1)

    actual, texts, _ = _compiled(tmp_path, given, fusion=False)
    assert not any(r.fallback for r in actual)
    assert "aten.exp.default" in {op for r in actual for k in r.kernels for op in k.ops}
    left = {e.target for r in actual for e in r.externs if "GY-BUILD" in e.reason}
    assert left == {"aten.sort.default"}
    assert "GY-BUILD" in "".join(texts)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 4 << 30), ("1000", 1000), ("4GiB", 4 << 30), ("4 gib", 4 << 30), ("2G", 2 << 30),
        ("3MB", 3_000_000), ("1.5k", 1536), (" 7 ", 7), ("10b", 10), ("0", 0),
    ],
)  # fmt: skip
def test_sizes_have_units(text: str, size: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_config({"GYRATOR_CACHE_BYTES": text}).cache_bytes == size


@pytest.mark.parametrize("text", ["much", "-1", "4XB", "GiB", "4ib", "1e400", "1_000", "٤", "nan"])
def test_what_is_no_size_is_warned_of(text: str) -> None:
    with pytest.warns(GyratorWarning, match="GY-CACHE-011"):
        assert read_config({"GYRATOR_CACHE_BYTES": text}).cache_bytes == 4 << 30


def test_a_cache_of_no_size_keeps_what_is_needed(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with Session(options={"strict": True}, config=Config(tmp_path, 0, "")) as session:
        x = torch.randn(4, 5)
        torch.testing.assert_close(torch.compile(_small, backend=session.backend)(x), _small(x))


def test_names_of_targets_may_have_spaces() -> None:
    assert read_config({"GYRATOR_TARGETS": " a, b,,"}).targets == {"a", "b"}


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_dies_in_mid_compile_harms_nobody(
    child: Child, tmp_path: Path, end: signal.Signals
) -> None:
    started = tmp_path / "started"
    slow = tmp_path / "slow-c++"
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "g++ 99"; exit 0; }}\n'
        f"touch {started}\nsleep 60\n"
    )
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    cache = tmp_path / "kept"
    # A job that a shell runs in the background ignores SIGINT, and its children inherit that.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    variables = child_environment(cache, {"CXX": str(slow)})
    dying = start_forked(heed + PREAMBLE + COMPARE, tmp_path, environment=variables)
    deadline = time.monotonic() + 200
    while not started.exists() and dying.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert started.exists() and dying.pid is not None
    for _ in range(5):  # Python drops an interrupt that falls into a finaliser: press again
        os.kill(dying.pid, end)
        dying.join(2)
        if not dying.is_alive():
            break
    if end == signal.SIGINT:
        assert dying.exitcode == 1
        assert "KeyboardInterrupt" in (tmp_path / "errors").read_text()
    else:
        assert dying.exitcode == -end
    actual = child(COMPARE, cache=cache)
    assert actual["right"] and actual["warnings"] == []
    assert not any(fallback for *_, fallback in actual["records"])


def test_two_processes_compile_the_same_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(lambda _: run_child(COMPARE, {}, tmp_path / "shared"), range(2))
        for actual in both:
            assert actual["right"] and actual["warnings"] == []


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="Dynamo starts CUDA up, after which no process may fork"
)
def test_a_forked_caller(child: Child) -> None:
    script = """
torch.set_num_threads(1)
session = Session(observer=records.append)
g = torch.compile(f, backend=session.backend)
g(x, w)
pid = os.fork()
if pid == 0:
    good = torch.allclose(g(x * 2, w), f(x * 2, w), atol=1e-5)
    h = torch.compile(lambda x: x.cos() * 3, backend=session.backend)
    os._exit(0 if good and torch.allclose(h(x), x.cos() * 3) else 1)
report(status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert child(script)["status"] == 0


def test_threads_compile_and_call_at_once(session: Session) -> None:
    def work(k: int) -> bool:
        def f(x: torch.Tensor) -> torch.Tensor:
            return (x * (k % 3 + 2)).sin() + x.sum()

        compiled = torch.compile(f, backend=session.backend)
        inputs = [torch.randn(5, k + 2) for _ in range(3)]
        return all(torch.allclose(compiled(x), f(x), atol=1e-5) for x in inputs)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(6)))


def test_one_compiled_function_in_many_threads(session: Session) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() @ x.t()).softmax(0) + 1

    compiled = torch.compile(f, backend=session.backend)
    compiled(torch.randn(9, 17))

    def call(_: int) -> bool:
        x = torch.randn(9, 17)
        return torch.allclose(compiled(x), f(x), rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(200)))


def test_options_are_checked_and_near_names_suggested() -> None:
    with pytest.raises(OptionError, match=r"GY-OPTION-001(.|\n)*did you mean 'fusion'"):
        make_options(options={"fussion": True})
    with pytest.raises(OptionError, match=r"GY-OPTION-002(.|\n)*did you mean 'max-autotune'"):
        make_options(mode="max-autotun")
    with pytest.raises(OptionError, match="GY-OPTION-002: unknown mode 3"):
        make_options(mode=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="GY-OPTION-003"):
        make_options(options={"fusion": 1})
    with pytest.raises(OptionError, match="GY-OPTION-003"):
        make_options(options={"numerics": "sloppy"})
    for mode, sets in list_modes().items():
        assert attrs.asdict(make_options(mode)) == {
            name: sets.get(name, facts["default"]) for name, facts in list_options().items()
        }


def test_an_unknown_option_reaches_the_user(config: Config) -> None:
    torch._dynamo.reset()
    with Session(config=config) as session, pytest.raises(Exception, match="GY-OPTION-001"):
        torch.compile(lambda x: x + 1, backend=session.backend, options={"fusoin": True})(
            torch.ones(3)
        )


def test_the_doctor_finds_this_machine_well(config: Config) -> None:
    wrong: list[Any] = [f for f in examine(config) if f.state == "no"]
    assert wrong == []


def test_records_tell_what_was_compiled(session: Session, records: list[GraphRecord]) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu().sum(-1)

    torch.compile(f, backend=session.backend)(torch.randn(3, 4), torch.randn(4, 5))
    (record,) = records
    assert [e.target for e in record.externs] in (["aten.mm.out"], ["aten.mm.default"])
    assert record.launches == len(record.kernels) == 1 and not record.fallback


def test_a_trace_that_cannot_be_written_costs_no_graph(tmp_path: Path, config: Config) -> None:
    (tmp_path / "file").touch()
    records: list[GraphRecord] = []
    options = {"trace_dir": str(tmp_path / "file" / "traces"), "strict": True, "progress": False}
    torch._dynamo.reset()
    with Session(options=options, config=config, observer=records.append) as session:
        compiled, x = torch.compile(lambda x: x + 1, backend=session.backend), torch.randn(3)
        with pytest.warns(GyratorWarning, match=r"GY-OPTION-008.*file/traces.*Not a directory"):
            assert torch.equal(compiled(x), x + 1)
    assert len(records[0].kernels) == 1


def test_a_trace_whose_folder_vanishes_costs_no_graph(tmp_path: Path) -> None:
    trace = Trace.open(str(tmp_path / "traces"), "inference")
    shutil.rmtree(tmp_path)
    with pytest.warns(GyratorWarning, match=r"GY-OPTION-008.*000_inference.*No such file"):
        trace.text("host.py", "text")


def test_a_preferred_target_that_is_not_installed_is_warned_of() -> None:
    with pytest.warns(GyratorWarning, match=r"GY-TARGET-009.*'haldie'\n.*'halide'\?"):
        assert "cpu" in discover(read_config({"GYRATOR_TARGETS": "haldie,cpu"}))
