import ctypes
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

from gyrator_ir.source import HostUnit
from gyrator_runtime.build import (
    LIBRARY,
    Builder,
    BuildError,
    build_kernels,
    load_library,
)
from gyrator_runtime.cache import Cache
from gyrator_runtime.device import cpu_isa
from gyrator_runtime.native import Buffer, Launch, PlanProgram, load_runner
from gyrator_runtime.toolchain import (
    Toolchain,
    ToolchainError,
    find_toolchain,
    loaded_openmp,
)
from gyrator_runtime.warn import GyratorWarning

THREADS = """
#include <stdint.h>
extern "C" int omp_get_thread_num();
extern "C" double lgamma(double);
extern "C" int64_t gy_threads(void *const *b, const int64_t *s) {
  float *out = (float *)b[0];
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < s[0]; i++) out[i] = (float)omp_get_thread_num();
  out[0] += (float)lgamma(1.0);
  return 0;
}
"""


def fill(number):
    return HostUnit(
        f"fill{number}",
        f'extern "C" long gy_fill{number}(void *const *b, const long *s) {{\n'
        f"  for (long i = 0; i < s[0]; i++) ((float *)b[0])[i] = {number}.0f;\n"
        "  return 0;\n}\n",
        (f"gy_fill{number}",),
    )


def call(address, tensor, *sizes):
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    pointers = (ctypes.c_void_p * 1)(tensor.data_ptr())
    return kind(address)(pointers, (ctypes.c_int64 * len(sizes))(*sizes))


def compiler_script(folder: Path, text: str) -> str:
    path = folder / "fake-g++"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def fake(folder: Path, text: str) -> Toolchain:
    return Toolchain((compiler_script(folder, text),), "fake 1.0", "gcc")


@pytest.fixture
def no_compiler():
    """A toolchain that must not be run."""
    return Toolchain(("/nonexistent/g++",), "never", "gcc")


def test_builds_in_parallel_and_finds_symbols(tmp_path, toolchain):
    units = [fill(n) for n in range(5)]
    found = build_kernels(units, toolchain, Cache(tmp_path / "c"), cpu_isa())
    assert sorted(found) == [f"gy_fill{n}" for n in range(5)]
    for n in range(5):
        out = torch.zeros(10)
        assert call(found[f"gy_fill{n}"], out, 9) == 0
        assert out.tolist() == [float(n)] * 9 + [0.0]


def test_a_hit_runs_no_compiler(tmp_path, toolchain):
    cache = Cache(tmp_path / "c")
    first = Builder(toolchain, cache, "plain")
    first.submit([fill(1)]).result()
    broken = Toolchain(("/nonexistent/g++",), toolchain.version, toolchain.family)
    handle = Builder(broken, cache, "plain").submit([fill(1)])
    assert handle.done()
    assert list(handle.result()) == ["gy_fill1"]
    renamed = HostUnit("another name", fill(1).text, fill(1).symbols)
    assert list(Builder(broken, cache, "plain").submit([renamed]).result()) == ["gy_fill1"]
    first.close()


def test_what_is_in_the_key(tmp_path, toolchain):
    cache = Cache(tmp_path / "c")
    unit = fill(1)
    other = Toolchain(toolchain.command, "g++ 99", toolchain.family)
    keys = {
        Builder(toolchain, cache, "plain").key(unit).hex,
        Builder(toolchain, cache, "avx2").key(unit).hex,
        Builder(other, cache, "plain").key(unit).hex,
        Builder(toolchain, cache, "plain").key(fill(2)).hex,
    }
    assert len(keys) == 4
    moved = Toolchain(("/elsewhere/g++",), toolchain.version, toolchain.family)
    assert Builder(moved, cache, "plain").key(unit) == Builder(toolchain, cache, "plain").key(unit)


def test_nothing_in_an_entry_names_a_folder(tmp_path, toolchain):
    build_kernels([fill(3)], toolchain, Cache(tmp_path / "c"), cpu_isa())
    (library,) = (tmp_path / "c").rglob(LIBRARY)
    assert str(tmp_path).encode() not in library.read_bytes()
    assert list((tmp_path / "c" / "tmp").iterdir()) == []


@pytest.mark.parametrize("openmp_link", [True, False])
def test_kernels_share_torchs_threads(tmp_path, toolchain, openmp_link):
    if not toolchain.threads:
        pytest.skip("this compiler does not target libgomp")
    linked = Toolchain(toolchain.command, toolchain.version, toolchain.family, openmp_link)
    unit = HostUnit("threads", THREADS, ("gy_threads",))
    address = build_kernels([unit], linked, Cache(tmp_path / "c"), cpu_isa())["gy_threads"]
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            out = torch.zeros(64)
            call(address, out, 64)
            assert out.unique().tolist() == [float(i) for i in range(n)]
    finally:
        torch.set_num_threads(before)
    assert len(loaded_openmp()) == 1


def test_isa_flags_compile(tmp_path, toolchain):
    for isa in ("plain", "avx2", "avx512"):
        Builder(toolchain, Cache(tmp_path / "c"), isa).submit([fill(1)]).built()


def test_compiler_error_names_unit_and_last_lines(tmp_path, toolchain):
    bad = HostUnit("bad", "this is no C++", ("gy_bad",))
    builder = Builder(toolchain, Cache(tmp_path / "c"), "plain")
    with pytest.raises(BuildError) as caught:
        builder.submit([fill(1), bad]).result()
    diagnostic = caught.value.diagnostic
    assert diagnostic.code == "GY-BUILD-002"
    assert "bad" in diagnostic.message
    assert any("error" in line for line in diagnostic.provenance)
    assert diagnostic.help
    assert list((tmp_path / "c" / "tmp").iterdir()) == []
    assert list(builder.submit([fill(1)]).result()) == ["gy_fill1"]
    builder.close()


def test_failing_compiler(tmp_path):
    toolchain = fake(tmp_path, "echo it broke >&2; exit 1")
    with pytest.raises(BuildError, match="it broke") as caught:
        build_kernels([fill(1)], toolchain, Cache(tmp_path / "c"), "plain")
    assert caught.value.diagnostic.code == "GY-BUILD-002"


def test_vanished_compiler(tmp_path, no_compiler):
    with pytest.raises(BuildError) as caught:
        build_kernels([fill(1)], no_compiler, Cache(tmp_path / "c"), "plain")
    assert caught.value.diagnostic.code == "GY-BUILD-002"


def test_killed_compiler(tmp_path):
    toolchain = fake(tmp_path, "kill -9 $$")
    with pytest.raises(BuildError) as caught:
        build_kernels([fill(1)], toolchain, Cache(tmp_path / "c"), "plain")
    assert caught.value.diagnostic.code == "GY-BUILD-003"
    assert "signal 9" in caught.value.diagnostic.message


def test_hanging_compiler(tmp_path):
    builder = Builder(fake(tmp_path, "sleep 600"), Cache(tmp_path / "c"), "plain", timeout=0.3)
    with pytest.raises(BuildError) as caught:
        builder.submit([fill(1)]).result()
    assert caught.value.diagnostic.code == "GY-BUILD-003"
    builder.close()


def test_compiler_on_a_full_disk_falls_back(tmp_path, toolchain):
    script = (
        'case "$PWD" in '
        f'{tmp_path}/*) echo "No space left on device" >&2; exit 1;; esac\n'
        f'exec {toolchain.command[0]} "$@"'
    )
    with pytest.warns(GyratorWarning, match="GY-CACHE-002"):
        found = build_kernels([fill(4)], fake(tmp_path, script), Cache(tmp_path / "c"), "plain")
    out = torch.zeros(1)
    call(found["gy_fill4"], out, 1)
    assert out.item() == 4.0


def test_library_that_does_not_load(tmp_path):
    (tmp_path / "x.so").write_bytes(b"not a library")
    with pytest.raises(BuildError) as caught:
        load_library(tmp_path / "x.so", ["gy_x"])
    assert caught.value.diagnostic.code == "GY-BUILD-004"


def test_missing_symbol(tmp_path, toolchain):
    unit = HostUnit("k", fill(1).text, ("gy_other",))
    with pytest.raises(BuildError) as caught:
        build_kernels([unit], toolchain, Cache(tmp_path / "c"), "plain")
    assert caught.value.diagnostic.code == "GY-BUILD-004"


def test_no_compiler(tmp_path):
    with pytest.raises(ToolchainError) as caught:
        find_toolchain({"PATH": str(tmp_path)})
    assert caught.value.diagnostic.code == "GY-BUILD-001"
    with pytest.raises(ToolchainError, match="tried no-such-compiler"):
        find_toolchain({"PATH": os.environ["PATH"], "CXX": "no-such-compiler -m64"})


def test_cxx_and_its_arguments(tmp_path, toolchain):
    found = find_toolchain({"PATH": os.environ["PATH"], "CXX": f"{toolchain.command[0]} -m64"})
    assert found.command == (toolchain.command[0], "-m64")
    assert found.identity != toolchain.identity
    broken = compiler_script(tmp_path, "exit 1")
    with pytest.raises(ToolchainError):
        find_toolchain({"CXX": broken, "PATH": os.environ["PATH"]})


def test_version_is_asked_once(tmp_path):
    log = tmp_path / "log"
    script = compiler_script(tmp_path, f"echo asked >> {log}\necho 'clang version 1.2.3'")
    env = {"CXX": script, "PATH": os.environ["PATH"]}
    for _ in range(3):
        found = find_toolchain(env, Cache(tmp_path / "c"))
        assert (found.family, found.version) == ("clang", "clang version 1.2.3")
        assert not found.threads
    assert log.read_text() == "asked\n"


def test_submit_does_not_wait(tmp_path, toolchain):
    gate = tmp_path / "gate"
    script = f'while [ ! -e {gate} ]; do sleep 0.02; done; exec {toolchain.command[0]} "$@"'
    builder = Builder(fake(tmp_path, script), Cache(tmp_path / "c"), "plain")
    handle = builder.submit([fill(1)])
    assert not handle.done()
    gate.touch()
    assert list(handle.result()) == ["gy_fill1"]
    assert handle.done()
    builder.close()


def test_what_is_built_in_time_can_be_had_without_the_rest(tmp_path, toolchain):
    gate = tmp_path / "gate"
    script = f'while [ ! -e {gate} ]; do sleep 0.02; done; exec {toolchain.command[0]} "$@"'
    builder = Builder(fake(tmp_path, script), Cache(tmp_path / "c"), "plain", jobs=1)
    gate.touch()
    builder.submit([fill(1)]).result()
    gate.unlink()

    handle = builder.submit([fill(n) for n in (1, 2, 3)])
    assert list(handle.within(0.1)) == ["gy_fill1"]
    assert list(handle.only({"gy_fill1"}).result()) == ["gy_fill1"]
    gate.touch()
    assert sorted(handle.within(60)) == ["gy_fill1", "gy_fill2"]  # the third was given up
    builder.close()


def test_interrupt_kills_the_compilers_and_leaves_nothing(tmp_path):
    # A real SIGINT, in a process of its own, while its compiler sleeps.
    script = compiler_script(tmp_path, f"echo $$ > {tmp_path}/pid; echo half > $6; sleep 600")
    # A job that a shell runs in the background ignores SIGINT, and its children inherit that.
    code = f"""
import signal
import sys
from pathlib import Path
import torch
from gyrator_ir.source import HostUnit
from gyrator_runtime.build import Builder
from gyrator_runtime.cache import Cache
from gyrator_runtime.toolchain import Toolchain
cache = Cache(Path({str(tmp_path / "c")!r}))
builder = Builder(Toolchain(({script!r},), "1", "gcc"), cache, "plain")
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    builder.submit([HostUnit("u", "int x;", ("gy_x",))]).result()
except KeyboardInterrupt:
    sys.exit(33)
"""
    child = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    compiler = int((tmp_path / "pid").read_text())
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 33
    with pytest.raises(ProcessLookupError):
        os.kill(compiler, 0)
    assert list((tmp_path / "c" / "tmp").iterdir()) == []
    assert not (tmp_path / "c" / "entries" / "kernels").exists()


def _build_in_process(root, script, barrier, queue):
    barrier.wait(60)
    toolchain = Toolchain((script,), "counting", "gcc")
    found = build_kernels([fill(6)], toolchain, Cache(root), "plain")
    out = torch.zeros(1)
    call(found["gy_fill6"], out, 1)
    queue.put(out.item())


def test_two_processes_compile_a_unit_once(tmp_path, toolchain):
    log = tmp_path / "log"
    script = compiler_script(
        tmp_path, f'echo ran >> {log}\nsleep 0.3\nexec {toolchain.command[0]} "$@"'
    )
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(2), context.Queue()
    args = (tmp_path / "c", script, barrier, queue)
    children = [context.Process(target=_build_in_process, args=args) for _ in range(2)]
    for child in children:
        child.start()
    assert [queue.get(timeout=120) for _ in children] == [6.0, 6.0]
    for child in children:
        child.join(60)
    assert log.read_text() == "ran\n"


def test_fork(tmp_path, toolchain, shared_cache):
    cache = Cache(tmp_path / "c")
    builder = Builder(toolchain, cache, "plain")
    found = builder.submit([fill(1)]).result()
    runner = load_runner(shared_cache, toolchain)
    launch = Launch(found["gy_fill1"], (Buffer(0),), (4,))
    plan = runner.plan(PlanProgram(1, 1, (launch,)))
    gate = tmp_path / "gate"
    script = f'while [ ! -e {gate} ]; do sleep 0.02; done; exec {toolchain.command[0]} "$@"'
    slow = Builder(fake(tmp_path, script), cache, "plain")
    pending = slow.submit([fill(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            out = torch.zeros(4)
            plan(out)  # loaded code and plans still work
            fresh = builder.submit([fill(3)]).result()  # so does building
            gate.touch()
            waited = pending.result()  # and what the parent has not finished
            good = out.sum() == 4 and list(fresh) == ["gy_fill3"] and list(waited) == ["gy_fill2"]
            status = 0 if good else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(pending.result()) == ["gy_fill2"]
    builder.close()
    slow.close()


def test_fork_after_threads_have_run(tmp_path, toolchain, runner):
    # Eager torch hangs in such a child: libgomp's threads do not survive a fork.
    if not toolchain.threads:
        pytest.skip("this compiler does not target libgomp")
    unit = HostUnit("threads", THREADS, ("gy_threads",))
    address = build_kernels([unit], toolchain, Cache(tmp_path / "c"), "plain")["gy_threads"]
    launch = Launch(address, (Buffer(0),), (64,), release_gil=True)
    plan = runner.plan(PlanProgram(1, 1, (launch,)))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        out = torch.zeros(64)
        plan(out)
        assert out.unique().tolist() == [0.0, 1.0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            status = 1
            try:
                alone = torch.full((64,), 9.0)
                plan(alone)
                status = 0 if alone.unique().tolist() == [0.0] else 2
            finally:
                os._exit(status)
        deadline = time.monotonic() + 60
        ended, state = os.waitpid(pid, os.WNOHANG)
        while not ended and time.monotonic() < deadline:
            time.sleep(0.02)
            ended, state = os.waitpid(pid, os.WNOHANG)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert ended, "the child hangs"
        assert os.waitstatus_to_exitcode(state) == 0
        plan(out)
        assert out.unique().tolist() == [0.0, 1.0]
    finally:
        torch.set_num_threads(before)


def test_many_threads_use_one_builder(tmp_path, toolchain):
    builder = Builder(toolchain, Cache(tmp_path / "c"), "plain")
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(builder.submit([fill(8)]).result()))
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4
    assert all(list(f) == ["gy_fill8"] for f in found)
    builder.close()


def test_runner_without_a_compiler_is_the_pure_one(tmp_path):
    cache = Cache(tmp_path / "c")
    with pytest.warns(GyratorWarning, match="GY-RUNTIME-001") as caught:
        assert load_runner(cache, None).name == "pure"
    assert len(caught) == 1
    with pytest.warns(GyratorWarning, match="it broke"):
        assert load_runner(cache, fake(tmp_path, "echo it broke >&2; exit 1")).name == "pure"


def test_runner_without_headers_is_the_pure_one(tmp_path, toolchain, monkeypatch):
    import sysconfig

    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.warns(GyratorWarning, match=r"no Python\.h"):
        assert load_runner(Cache(tmp_path / "c"), toolchain).name == "pure"


def test_runner_from_the_cache_needs_neither(shared_cache, toolchain):
    load_runner(shared_cache, toolchain)
    gone = Toolchain(("/nonexistent/g++",), toolchain.version, toolchain.family)
    assert load_runner(shared_cache, gone).name == "native"
