import ctypes
import multiprocessing
import os
import platform
import re
import shlex
import shutil
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
from gyrator_runtime import library
from gyrator_runtime.build import LIBRARY, Builder, BuildError, load_library
from gyrator_runtime.cache import Cache
from gyrator_runtime.device import cpu_isa
from gyrator_runtime.native import load_runner
from gyrator_runtime.native.program import Buffer, Launch, PlanProgram
from gyrator_runtime.process import Limited
from gyrator_runtime.toolchain import (
    Toolchain,
    ToolchainError,
    find_cross_toolchain,
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


def build_kernels(units, toolchain, cache, isa):
    """Return the addresses of kernels, built by a builder of their own."""
    builder = Builder(toolchain, cache, isa)
    try:
        return builder.submit(units).addresses()
    finally:
        builder.close()


def call(address, tensor, *sizes):
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    pointers = (ctypes.c_void_p * 1)(tensor.data_ptr())
    return kind(address)(pointers, (ctypes.c_int64 * len(sizes))(*sizes))


def compiler_script(folder: Path, text: str) -> str:
    path = folder / "fake-g++"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


_CLANG = "PLEASE submit a bug report to https://example.org and include the crash backtrace."


def fake(folder: Path, text: str) -> Toolchain:
    return Toolchain((compiler_script(folder, text),), "fake 1.0", "gcc")


@pytest.fixture
def no_compiler():
    """A toolchain that must not be run."""
    return Toolchain(("/nonexistent/g++",), "never", "gcc")


def test_builds_in_parallel_and_finds_symbols(tmp_path, toolchain):
    units = [fill(n) for n in range(5)]
    result = build_kernels(units, toolchain, Cache(tmp_path / "c"), cpu_isa())
    assert sorted(result) == [f"gy_fill{n}" for n in range(5)]
    for n in range(5):
        out = torch.zeros(10)
        assert call(result[f"gy_fill{n}"], out, 9) == 0
        assert out.tolist() == [float(n)] * 9 + [0.0]


def test_a_hit_runs_no_compiler(tmp_path, toolchain):
    cache = Cache(tmp_path / "c")
    first = Builder(toolchain, cache, "plain")
    first.submit([fill(1)]).addresses()
    broken = Toolchain(("/nonexistent/g++",), toolchain.version, toolchain.family)
    handle = Builder(broken, cache, "plain").submit([fill(1)])
    assert handle.done()
    assert list(handle.addresses()) == ["gy_fill1"]
    renamed = HostUnit("another name", fill(1).text, fill(1).symbols)
    assert list(Builder(broken, cache, "plain").submit([renamed]).addresses()) == ["gy_fill1"]
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
        builder.submit([fill(1), bad]).addresses()
    diagnostic = caught.value.diagnostic
    assert diagnostic.code == "GY-BUILD-002"
    assert "bad" in diagnostic.message
    assert any("error" in line for line in diagnostic.provenance)
    assert diagnostic.help
    assert list((tmp_path / "c" / "tmp").iterdir()) == []
    assert list(builder.submit([fill(1)]).addresses()) == ["gy_fill1"]
    builder.close()


def test_failing_compiler(tmp_path):
    toolchain = fake(tmp_path, "echo it broke >&2; exit 1")
    with pytest.raises(BuildError, match="it broke") as caught:
        build_kernels([fill(1)], toolchain, Cache(tmp_path / "c"), "plain")
    assert caught.value.diagnostic.code == "GY-BUILD-002"


@pytest.mark.parametrize("words", ["internal compiler error: in f, at g.cc:2", _CLANG])
def test_an_internal_error_of_a_compiler_is_avoided_by_fewer_optimisations(
    tmp_path, toolchain, words
):
    program = shlex.join(toolchain.command)
    text = f'case "$*" in *-O1) exec {program} "$@";; esac\necho "{words}" >&2; exit 1'
    faulty = Toolchain(fake(tmp_path, text).command, "faulty 1.0", toolchain.family)
    address = build_kernels([fill(3)], faulty, Cache(tmp_path / "c"), cpu_isa())["gy_fill3"]
    out = torch.zeros(8)
    call(address, out, 8)
    assert out.tolist() == [3.0] * 8


def test_an_internal_error_that_recurs_is_raised(tmp_path):
    toolchain = fake(tmp_path, "echo internal compiler error >&2; exit 1")
    with pytest.raises(BuildError, match="-O1") as caught:
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
        builder.submit([fill(1)]).addresses()
    assert caught.value.diagnostic.code == "GY-BUILD-003"
    builder.close()


def test_compiler_on_a_full_disk_falls_back(tmp_path, toolchain):
    script = (
        'case "$PWD" in '
        f'{tmp_path}/*) echo "No space left on device" >&2; exit 1;; esac\n'
        f'exec {toolchain.command[0]} "$@"'
    )
    with pytest.warns(GyratorWarning, match="GY-CACHE-002"):
        result = build_kernels([fill(4)], fake(tmp_path, script), Cache(tmp_path / "c"), "plain")
    out = torch.zeros(1)
    call(result["gy_fill4"], out, 1)
    assert out.item() == 4.0


def test_library_that_does_not_load(tmp_path):
    (tmp_path / "x.so").write_bytes(b"not a library")
    with pytest.raises(BuildError) as caught:
        load_library(tmp_path / "x.so", ["gy_x"])
    assert caught.value.diagnostic.code == "GY-BUILD-004"


def whole_library(folder: Path, toolchain: Toolchain, number: int = 1) -> Path:
    builder = Builder(toolchain, Cache(folder / "whole"), "plain")
    (built,) = builder.submit([fill(number)]).built()
    return built.library


def test_a_library_that_is_not_whole_is_not_mapped(tmp_path, toolchain):
    # The loader would map what there is, and die of the rest.
    data = whole_library(tmp_path, toolchain).read_bytes()
    part = tmp_path / "part.so"
    for length in (0, 10, 64, 200, len(data) // 4, len(data) // 2, len(data) - 1):
        part.write_bytes(data[:length])
        with pytest.raises(BuildError, match="incomplete library"):
            load_library(part, ["gy_fill1"])
    part.write_bytes(data)
    assert load_library(part, ["gy_fill1"])["gy_fill1"]


def mappings(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(name)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_library_goes_with_its_last_address(tmp_path, toolchain, runner):
    path = whole_library(tmp_path, toolchain)
    addresses = load_library(path, ["gy_fill1"])
    again = load_library(path, ["gy_fill1"])["gy_fill1"]
    launch = Launch(addresses["gy_fill1"], (Buffer(0),), (3,))
    plan = runner.plan(PlanProgram(1, 1, (launch,)))
    del addresses, launch
    assert mappings(str(path))
    del again
    assert mappings(str(path))
    out = torch.zeros(3)
    plan(out)
    assert out.tolist() == [1.0] * 3
    del plan
    assert not mappings(str(path))


def test_a_library_with_threads_goes_too(tmp_path, toolchain):
    unit = HostUnit("threads", THREADS, ("gy_threads",))
    for _ in range(20):
        builder = Builder(toolchain, Cache(tmp_path / "c"), cpu_isa())
        address = builder.submit([unit]).addresses()["gy_threads"]
        out = torch.zeros(64)
        call(address, out, 64)
        builder.close()
        del address
        assert not mappings(str(tmp_path))


def test_a_running_call_keeps_its_library(tmp_path, toolchain, runner):
    text = (
        'extern "C" int usleep(unsigned);\n'
        'extern "C" long gy_slow(void *const *b, const long *s) {\n'
        "  usleep(300000);\n  ((float *)b[0])[0] = 7.0f;\n  return 0;\n}\n"
    )
    builder = Builder(toolchain, Cache(tmp_path / "c"), "plain")
    address = builder.submit([HostUnit("slow", text, ("gy_slow",))]).addresses()["gy_slow"]
    builder.close()
    plan = runner.plan(PlanProgram(1, 1, (Launch(address, (Buffer(0),), release_gil=True),)))
    out = torch.zeros(1)
    calling = threading.Thread(target=plan, args=(out,))
    calling.start()
    time.sleep(0.1)
    del plan, address
    assert mappings(str(tmp_path))
    calling.join()
    assert out.item() == 7.0 and not mappings(str(tmp_path))


def test_libraries_and_files_do_not_pile_up(tmp_path, toolchain):
    data = whole_library(tmp_path, toolchain).read_bytes()

    def cycle(number):
        path = tmp_path / f"copy{number}.so"
        path.write_bytes(data)
        assert call(load_library(path, ["gy_fill1"])["gy_fill1"], torch.zeros(1), 1) == 0

    cycle(0)
    before = (mappings("\n"), open_files())
    for number in range(1, 200):
        cycle(number)
    after = (mappings("\n"), open_files())
    assert after[0] <= before[0] + 5 and after[1] == before[1]  # the heap may have grown


def refuse(monkeypatch, refused):
    """Let the loader refuse paths, as it does on file systems that are mounted noexec."""
    load = library.dlopen

    def dlopen(name, mode):
        if refused(name):
            raise OSError(f"{name}: failed to map segment from shared object")
        return load(name, mode)

    monkeypatch.setattr(library, "dlopen", dlopen)


@pytest.mark.parametrize("memory", [False, True])
def test_a_folder_in_which_nothing_may_run(tmp_path, toolchain, monkeypatch, memory):
    path = whole_library(tmp_path, toolchain)
    other = whole_library(tmp_path, toolchain, 2)
    refuse(monkeypatch, lambda n: str(tmp_path) in n or (memory and "/proc/self" not in n))
    library._warn_once.cache_clear()
    before = open_files()
    with pytest.warns(GyratorWarning, match="GY-CACHE-010") as caught:
        result = [load_library(path, ["gy_fill1"]), load_library(other, ["gy_fill2"])]
    assert len(caught) == 1
    out = torch.zeros(2)
    for number, addresses in enumerate(result, 1):
        call(addresses[f"gy_fill{number}"], out, number)
        assert out[0] == number
    assert open_files() == before
    refuse(monkeypatch, lambda n: True)
    with pytest.raises(BuildError, match="failed to map segment"):
        load_library(path, ["gy_fill1"])


def once(folder: Path, first: str, toolchain: Toolchain) -> Toolchain:
    """Return a compiler that behaves so the first time, and well from then on."""
    done = folder / "done"
    return fake(
        folder, f'if mkdir {done} 2>/dev/null; then {first}; fi\nexec {toolchain.command[0]} "$@"'
    )


CUT = '{0} "$@"; for last; do :; done; f=kernels.so; head -c 1000 $f > x; mv x $f; exit 0'


@pytest.mark.parametrize(
    "first",
    [
        "kill -9 $$",
        "exit 0",
        "echo nonsense > kernels.so; exit 0",
        "echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1",
        CUT,
    ],
)
def test_a_compiler_that_misbehaves_once(tmp_path, toolchain, first):
    odd = once(tmp_path, first.format(toolchain.command[0]), toolchain)
    result = build_kernels([fill(1)], odd, Cache(tmp_path / "c"), "plain")
    out = torch.zeros(1)
    call(result["gy_fill1"], out, 1)
    assert out.item() == 1.0
    assert list((tmp_path / "c" / "tmp").iterdir()) == []


@pytest.mark.parametrize("bad", ["exit 1", "exit 0", CUT])
def test_a_failure_is_not_stored(tmp_path, toolchain, bad):
    root = tmp_path / "c"
    gate = tmp_path / "gate"
    script = f'if [ ! -e {gate} ]; then {bad}; fi\nexec {toolchain.command[0]} "$@"'
    odd = fake(tmp_path, script.replace("{0}", toolchain.command[0]))
    with pytest.raises(BuildError):
        build_kernels([fill(1)], odd, Cache(root), "plain")
    assert not list(root.rglob(LIBRARY))
    gate.touch()
    assert list(build_kernels([fill(1)], odd, Cache(root), "plain")) == ["gy_fill1"]


def test_a_stored_library_that_does_not_load_is_built_again(tmp_path, toolchain):
    cache = Cache(tmp_path / "c")
    builder = Builder(toolchain, cache, "plain")
    cache.put(builder.key(fill(1)), {LIBRARY: b"not a library", "kernels.cpp": b""})
    with pytest.warns(GyratorWarning, match="GY-CACHE-001"):
        assert list(builder.submit([fill(1)]).addresses()) == ["gy_fill1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(builder.submit([fill(1)]).addresses()) == ["gy_fill1"]
    builder.close()


@pytest.fixture
def started(monkeypatch):
    """The commands that were started with a time limit."""
    commands = []

    def start(command, *rest):
        commands.append(command)
        return Limited(command, *rest)

    for module in ("build", "toolchain"):
        monkeypatch.setattr(f"gyrator_runtime.{module}.Limited", start)
    return commands


# What a hanging program leaves behind keeps its output open, which must not be waited for.
HANGS = "setsid sleep 600 & sleep 600"


def test_a_compiler_that_hangs_is_given_up(tmp_path, started):
    toolchain = fake(tmp_path, HANGS)
    for number in (1, 1, 2, 3):
        builder = Builder(toolchain, Cache(tmp_path / "c"), "plain", timeout=0.5)
        with pytest.raises(BuildError) as caught:
            builder.submit([fill(number)]).addresses()
        assert caught.value.diagnostic.code == "GY-BUILD-003"
        builder.close()
    assert len(started) == 2  # once for each of the first two units


def test_text_in_other_alphabets_whatever_the_locale(tmp_path):
    code = f"""
import os, sys, torch
from pathlib import Path
from gyrator_ir.source import HostUnit
from gyrator_runtime.build import Builder
from gyrator_runtime.cache import Cache
from gyrator_runtime.toolchain import find_toolchain
assert not sys.flags.utf8_mode and sys.getfilesystemencoding() == "ascii"
text = {"// Größe λ 数"!a} + chr(10) + {fill(1).text!r}
cache = Cache(Path({str(tmp_path / "c")!r}))
unit = HostUnit("u", text, ("gy_fill1",))
Builder(find_toolchain(os.environ), cache, "plain").submit([unit]).addresses()
"""
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **plain})
    (stored,) = (tmp_path / "c" / "entries" / "kernels").rglob("kernels.cpp")
    assert "Größe λ 数" in stored.read_text("utf-8")


def test_missing_symbol(tmp_path, toolchain):
    unit = HostUnit("k", fill(1).text, ("gy_other",))
    with pytest.raises(BuildError) as caught:
        build_kernels([unit], toolchain, Cache(tmp_path / "c"), "plain")
    assert caught.value.diagnostic.code == "GY-BUILD-004"


def test_a_compiler_for_another_machine(tmp_path):
    name, other = "acme", {"PATH": os.environ["PATH"]}
    with pytest.raises(ToolchainError, match=r"GY-BUILD-001: no C\+\+ compiler for acme") as caught:
        find_cross_toolchain(name, other)
    assert "GYRATOR_CXX_ACME" in str(caught.value)
    usual = find_toolchain(other)
    inputs = {**other, "GYRATOR_CXX_ACME": f"{usual.command[0]} -m64"}
    result = find_cross_toolchain(name, inputs)
    assert result.foreign and result.machine == name and result.command[1:] == ("-m64",)
    assert result.identity != usual.identity
    own = find_cross_toolchain(platform.machine(), other)
    assert own == usual and not own.foreign
    # it is built, not loaded: what it holds is not for this process
    unit = HostUnit("u", 'extern "C" long gy_x() { return 1; }', ("gy_missing",))
    (built,) = Builder(result, Cache(tmp_path), "plain").submit([unit]).built()
    assert built.library.stat().st_size


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(ToolchainError) as caught:
        find_toolchain({"PATH": str(tmp_path)})
    assert caught.value.diagnostic.code == "GY-BUILD-001"
    with pytest.raises(ToolchainError, match="tried no-such-compiler"):
        find_toolchain({"PATH": os.environ["PATH"], "CXX": "no-such-compiler -m64"})


def test_cxx_and_its_arguments(tmp_path, toolchain):
    result = find_toolchain({"PATH": os.environ["PATH"], "CXX": f"{toolchain.command[0]} -m64"})
    assert result.command == (toolchain.command[0], "-m64")
    assert result.identity != toolchain.identity
    broken = compiler_script(tmp_path, "exit 1")
    with pytest.raises(ToolchainError):
        find_toolchain({"CXX": broken, "PATH": os.environ["PATH"]})


def packaged_compiler(folder, monkeypatch):
    """Install a package `ziglang` whose compiler passes on to the one under test; log its calls."""
    package = folder / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    real, log = shutil.which("g++"), folder / "log"
    text = f"""#!/bin/sh
echo "$ZIG_GLOBAL_CACHE_DIR $@" >> {log}
mkdir -p "$ZIG_GLOBAL_CACHE_DIR/o"
[ "$1" = c++ ] && [ "$2" = --version ] && echo "clang version 99.1" && exit
[ "$1 $2" = "c++ -target" ] || exit 2
shift 4
exec {real} "$@"
"""
    (package / "zig").write_text(text)
    (package / "zig").chmod(0o755)
    monkeypatch.syspath_prepend(str(folder / "site"))
    return package / "zig", log


def test_the_packaged_compiler_comes_last(tmp_path, monkeypatch):
    zig, log = packaged_compiler(tmp_path, monkeypatch)
    other = compiler_script(tmp_path, "echo g++ 9.9")
    (tmp_path / "g++").symlink_to(other)
    assert find_toolchain({"PATH": str(tmp_path)}).command == (str(tmp_path / "g++"),)
    with pytest.raises(ToolchainError, match=r"tried nothing\)"):
        find_toolchain({"PATH": str(tmp_path / "none"), "CXX": "nothing"})
    assert not log.exists()
    result = find_toolchain({"PATH": str(tmp_path / "none")}, Cache(tmp_path / "c"))
    assert (result.command[0], result.family, result.packaged) == (str(zig), "clang", True)
    assert result.command[1] == "c++"
    assert not result.threads


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the target's name is Linux's")
def test_the_packaged_compiler_leaves_nothing_behind(tmp_path, monkeypatch):
    _, log = packaged_compiler(tmp_path, monkeypatch)
    cache = Cache(tmp_path / "c")
    toolchain = find_toolchain({"PATH": str(tmp_path / "none")}, cache)
    unit = HostUnit("u", 'extern "C" int f() { return 7; }', ("f",))
    (built,) = Builder(toolchain, cache, "plain").submit([unit]).built()
    assert {p.name for p in built.library.parent.iterdir()} == {
        "kernels.cpp", "kernels.so", "manifest.json",
    }  # fmt: skip
    folders = [Path(line.partition(" ")[0]) for line in log.read_text().splitlines()]
    assert len(folders) == 2
    assert all(f.is_absolute() and not f.exists() for f in folders)


@pytest.mark.parametrize("cxx", ['g++ "-O2', "'"])
def test_cxx_that_is_no_command_line(cxx):
    with pytest.raises(ToolchainError, match="CXX is not a command line"):
        find_toolchain({"CXX": cxx, "PATH": os.environ["PATH"]})


def test_cxx_that_asks_for_this_processor(toolchain):
    env = {"PATH": os.environ["PATH"], "CXX": f"{toolchain.command[0]} -march=native -m64"}
    with pytest.warns(GyratorWarning, match="GY-BUILD-010"):
        assert find_toolchain(env).command == (toolchain.command[0], "-m64")


def test_a_version_that_is_no_text(tmp_path):
    odd = compiler_script(tmp_path, r"printf '\377\376 \200 9.1'")
    env = {"CXX": odd, "PATH": os.environ["PATH"]}
    assert find_toolchain(env, Cache(tmp_path / "c")).version.endswith(" 9.1")
    compiler_script(tmp_path, r"printf '\377\376 \n'")
    with pytest.raises(ToolchainError):
        find_toolchain(env, Cache(tmp_path / "c"))


def test_a_probe_that_hangs_is_made_once(tmp_path, started):
    env = {"CXX": compiler_script(tmp_path, HANGS), "PATH": os.environ["PATH"]}
    for _ in range(3):
        with pytest.raises(ToolchainError):
            find_toolchain(env, Cache(tmp_path / "c"), seconds=0.5)
    assert len(started) == 1


def test_a_probe_that_fails_is_made_again(tmp_path):
    log = tmp_path / "log"
    script = compiler_script(
        tmp_path, f"echo x >> {log}; [ $(wc -l < {log}) = 1 ] && exit 1; echo g++ 9.9"
    )
    env = {"CXX": script, "PATH": os.environ["PATH"]}
    with pytest.raises(ToolchainError):
        find_toolchain(env, Cache(tmp_path / "c"))
    assert find_toolchain(env, Cache(tmp_path / "c")).version == "g++ 9.9"


def test_version_is_asked_once(tmp_path):
    log = tmp_path / "log"
    script = compiler_script(tmp_path, f"echo asked >> {log}\necho 'clang version 1.2.3'")
    env = {"CXX": script, "PATH": os.environ["PATH"]}
    for _ in range(3):
        result = find_toolchain(env, Cache(tmp_path / "c"))
        assert (result.family, result.version) == ("clang", "clang version 1.2.3")
        assert not result.threads
    assert log.read_text() == "asked\n"


def test_submit_does_not_wait(tmp_path, toolchain):
    gate = tmp_path / "gate"
    script = f'while [ ! -e {gate} ]; do sleep 0.02; done; exec {toolchain.command[0]} "$@"'
    builder = Builder(fake(tmp_path, script), Cache(tmp_path / "c"), "plain")
    handle = builder.submit([fill(1)])
    assert not handle.done()
    gate.touch()
    assert list(handle.addresses()) == ["gy_fill1"]
    assert handle.done()
    builder.close()


def test_what_is_built_in_time_can_be_had_without_the_rest(tmp_path, toolchain):
    gate = tmp_path / "gate"
    script = f'while [ ! -e {gate} ]; do sleep 0.02; done; exec {toolchain.command[0]} "$@"'
    builder = Builder(fake(tmp_path, script), Cache(tmp_path / "c"), "plain", jobs=1)
    gate.touch()
    builder.submit([fill(1)]).addresses()
    gate.unlink()

    handle = builder.submit([fill(n) for n in (1, 2, 3)])
    assert list(handle.within(0.1)) == ["gy_fill1"]
    assert list(handle.only({"gy_fill1"}).addresses()) == ["gy_fill1"]
    gate.touch()
    assert sorted(handle.within(60)) == ["gy_fill1", "gy_fill2"]  # the third was given up
    builder.close()


def test_what_was_cancelled_is_built_when_it_is_asked_for(tmp_path, toolchain):
    gate = tmp_path / "gate"
    script = f'while [ ! -e {gate} ]; do sleep 0.02; done; exec {toolchain.command[0]} "$@"'
    builder = Builder(fake(tmp_path, script), Cache(tmp_path / "c"), "plain", jobs=1)
    handle = builder.submit([fill(1), fill(2)])
    builder.cancel()
    assert not handle.done()
    gate.touch()
    assert sorted(handle.addresses()) == ["gy_fill1", "gy_fill2"]
    assert handle.done()
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
    builder.submit([HostUnit("u", "int x;", ("gy_x",))]).addresses()
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
    result = build_kernels([fill(6)], toolchain, Cache(root), "plain")
    out = torch.zeros(1)
    call(result["gy_fill6"], out, 1)
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
    result = builder.submit([fill(1)]).addresses()
    runner = load_runner(shared_cache, toolchain)
    launch = Launch(result["gy_fill1"], (Buffer(0),), (4,))
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
            fresh = builder.submit([fill(3)]).addresses()  # so does building
            gate.touch()
            waited = pending.addresses()  # and what the parent has not finished
            good = out.sum() == 4 and list(fresh) == ["gy_fill3"] and list(waited) == ["gy_fill2"]
            status = 0 if good else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(pending.addresses()) == ["gy_fill2"]
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
    result = []
    threads = [
        threading.Thread(target=lambda: result.append(builder.submit([fill(8)]).addresses()))
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(result) == 4
    assert all(list(f) == ["gy_fill8"] for f in result)
    builder.close()


def test_runner_without_a_compiler_is_the_pure_one(tmp_path):
    cache = Cache(tmp_path / "c")
    with pytest.warns(GyratorWarning, match="GY-RUNTIME-001") as caught:
        assert load_runner(cache, None).name == "pure"
    assert len(caught) == 1
    broken = fake(tmp_path, "echo it broke >&2; exit 1")
    with pytest.warns(GyratorWarning, match=f"by {re.escape(broken.command[0])}: it broke"):
        assert load_runner(cache, broken).name == "pure"


def test_runner_without_headers_is_the_pure_one(tmp_path, toolchain, monkeypatch):
    import sysconfig

    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.warns(GyratorWarning, match=r"no Python\.h"):
        assert load_runner(Cache(tmp_path / "c"), toolchain).name == "pure"


def test_a_stored_runner_that_does_not_load_is_built_again(tmp_path, toolchain, shared_cache):
    from gyrator_runtime.native import runner_extension

    cache = Cache(tmp_path / "c")
    extension = runner_extension()
    cache.put(extension.key(), {extension.file: b"not a module"})
    with pytest.warns(GyratorWarning) as caught:
        assert load_runner(cache, toolchain).name == "native"
    assert any("GY-CACHE-001" in str(w.message) for w in caught)
    assert not any("GY-RUNTIME" in str(w.message) for w in caught)


def test_a_runner_cut_short_is_not_stored(tmp_path, toolchain):
    cache = Cache(tmp_path / "c")
    text = f'{toolchain.command[0]} "$@"; f=$(ls *.so); head -c 9000 $f > x; mv x $f'
    with pytest.warns(GyratorWarning, match="GY-RUNTIME-001"):
        assert load_runner(cache, fake(tmp_path, text)).name == "pure"
    assert not list((tmp_path / "c" / "entries").rglob("*.so"))


def test_runner_from_the_cache_needs_neither(shared_cache, toolchain):
    load_runner(shared_cache, toolchain)
    missing = Toolchain(("/nonexistent/g++",), toolchain.version, toolchain.family)
    assert load_runner(shared_cache, missing).name == "native"
