"""What goes wrong around the compiler must not cost a result: right answers, one clear warning."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from gyrator.config import Config
from gyrator.doctor import examine
from gyrator.options import OptionError, list_modes, list_options, make_options
from gyrator.records import GraphRecord
from gyrator.session import Session
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
    found = child(COMPARE, {"CXX": "/nonexistent/c++", "PATH": ""})
    assert found["right"]
    (warning,) = set(found["warnings"])
    assert "GY-BUILD-001" in warning


def test_a_failing_compiler(child: Child, tmp_path: Path) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo "g++ 99"; exit 0; }\nexit 1\n')
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    found = child(COMPARE, {"CXX": str(broken)})
    assert found["right"]
    (warning,) = set(found["warnings"])
    assert "GY-BUILD" in warning


def test_a_cache_folder_that_cannot_be_used(child: Child, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    found = child(COMPARE, cache=file)
    assert found["right"]
    (warning,) = set(found["warnings"])
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
    found = child(COMPARE, cache=cache)
    assert found["right"] and not any(fallback for *_, fallback in found["records"])


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
    dying = subprocess.Popen(
        [sys.executable, "-c", heed + PREAMBLE + COMPARE],
        env=child_environment(cache, {"CXX": str(slow)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 200
    while not started.exists() and dying.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert started.exists()
    errors = b""
    for _ in range(5):  # Python drops an interrupt that falls into a finaliser: press again
        os.kill(dying.pid, end)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, errors = dying.communicate(timeout=10)
            break
    assert dying.returncode != 0
    if end == signal.SIGINT:
        assert b"KeyboardInterrupt" in errors
    found = child(COMPARE, cache=cache)
    assert found["right"] and found["warnings"] == []
    assert not any(fallback for *_, fallback in found["records"])


def test_two_processes_compile_the_same_at_once(tmp_path: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + COMPARE],
            env=child_environment(tmp_path / "shared"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        out, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors[-2000:]
        assert '"right": true' in out and '"warnings": []' in out


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
    wrong: list[Any] = [f for f in examine(config) if not f.ok]
    assert wrong == []


def test_records_tell_what_was_compiled(session: Session, records: list[GraphRecord]) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu().sum(-1)

    torch.compile(f, backend=session.backend)(torch.randn(3, 4), torch.randn(4, 5))
    (record,) = records
    assert [e.target for e in record.externs] in (["aten.mm.out"], ["aten.mm.default"])
    assert record.launches == len(record.kernels) == 1 and not record.fallback
