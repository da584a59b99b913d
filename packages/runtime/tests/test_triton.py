"""Triton kernels are built by workers and launched with what the driver wants.

The driver is a stand-in, written in C, that notes what it is asked to launch: the real one needs a
device. Kernels are compiled for a real one.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from attrs import asdict, evolve

from gyrator_ir.expr import Sym, expr, minimum
from gyrator_ir.grid import grid_of
from gyrator_ir.source import Configuration, KernelArgument, KernelSource, TranslationUnit
from gyrator_runtime.build import BuildError
from gyrator_runtime.cache import Cache
from gyrator_runtime.native.load import PureRunner
from gyrator_runtime.native.program import Buffer, Launch, PlanProgram, SizeArg
from gyrator_runtime.triton.binary import Binary, pack, unpack
from gyrator_runtime.triton.build import Language, TritonBuilder, grid_code, load_binaries
from gyrator_runtime.triton.compile import CODE, FACTS, Facts, Job
from gyrator_runtime.triton.driver import NVIDIA, open_driver
from gyrator_runtime.triton.launch import DeviceKernel
from gyrator_runtime.triton.pool import WorkerPool

DRIVER = r"""
#include <stdint.h>
#include <string.h>
extern "C" {
int64_t gy_log[64];
char gy_name[64];
int gy_fail, gy_lost, gy_version = 12030;
int cuInit(unsigned) { return 0; }
int cuLibraryLoadData(void **m, const char *code, void *, void *, unsigned, void *, void *,
                      unsigned) {
  *m = (void *)(intptr_t)(100 + code[0]);
  return code[0] == 'X' ? 200 : 0;
}
int cuLibraryGetKernel(void **f, void *m, const char *name) {
  *f = (void *)((intptr_t)m + 1000);
  strncpy(gy_name, name, 63);
  return 0;
}
int cuLibraryUnload(void *) { gy_log[60]++; return 0; }
int cuKernelSetAttribute(int, int value, void *, int) { gy_log[61] = value; return 0; }
int cuKernelGetAttribute(int *value, int what, void *, int) { *value = 7 * what; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int) { *c = 0; return 0; }
int cuCtxSetCurrent(void *) { gy_lost = 0; gy_log[62]++; return 0; }
int cuGetErrorString(int, const char **s) { *s = "no luck"; return 0; }
int aoti_torch_get_current_cuda_stream(int32_t device, void **s) { *s = (void *)77; return device; }
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned, unsigned,
                   unsigned shared, void *stream, void **parameters, void **) {
  if (gy_lost) return 201;
  int64_t *l = gy_log;
  *l++ = (int64_t)f; *l++ = x; *l++ = y; *l++ = z; *l++ = bx; *l++ = shared; *l++ = (int64_t)stream;
  for (int k = 0; k < 3; k++) *l++ = *(int64_t *)parameters[k];
  return gy_fail;
}
struct Config {
  unsigned grid[3], block[3], shared;
  void *stream;
  const int *attributes;
  unsigned n;
};
int cuLaunchKernelEx(const Config *c, void *f, void **parameters, void **none) {
  gy_log[63] += c->n == 1 && c->attributes[0] == 6 && c->attributes[2] == 1;
  return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                        c->block[2], c->shared, c->stream, parameters, none);
}
int cuDriverGetVersion(int *version) { *version = gy_version; return 0; }
}
"""
TEXT = """
import triton
import triton.language as tl


@triton.jit
def k0(x, y, s0, XBLOCK: tl.constexpr):
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < s0) * 2, mask=i < s0)

"""
ARGUMENTS = (("x", "*fp32", 16), ("y", "*fp32", 16), ("s0", "i32", 16))
JOB = Job(
    text=TEXT, symbol="k0", arguments=ARGUMENTS, values=(("XBLOCK", 128), ("num_warps", 4)),
    backend="cuda", code="cubin", arch="90", warp=32,
)  # fmt: skip
S0, S1, XBLOCK = Sym("s0"), Sym("s1"), Sym("XBLOCK")
SOURCE = KernelSource(
    "k0",
    "k0",
    TEXT,
    candidates=(Configuration(JOB.values),),
    arguments=tuple(KernelArgument(*a) for a in ARGUMENTS),
    grid=((S0 + XBLOCK - 1) // XBLOCK,),
)
BINARY = Binary(
    symbol="k0",
    job=JOB,
    facts=Facts(name="k0", threads=128, shared=65536),
    grid=grid_code(SOURCE, 1, {"XBLOCK": 128}),
    code=b"A aligned",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory, toolchain) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    command = (*toolchain.command, "-shared", "-fPIC", "-o", "libfake.so", "-x", "c++", "-")
    subprocess.run(command, input=DRIVER.encode(), cwd=folder, check=True)
    return folder / "libfake.so"


@pytest.fixture
def driver(library, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    result = open_driver(evolve(NVIDIA, library=str(library), torch_library=str(library)))
    ctypes.memset(_address(result, "gy_log"), 0, 512)
    for flag in ("gy_fail", "gy_lost"):
        ctypes.c_int.in_dll(result.library, flag).value = 0
    yield result
    gc.collect()  # kernels are unloaded while nothing has to be waited for


def _address(driver, name):
    return ctypes.addressof(ctypes.c_char.in_dll(driver.library, name))


def _log(driver):
    return list((ctypes.c_int64 * 64).in_dll(driver.library, "gy_log"))


def _plan(runner, kernel):
    launch = Launch(kernel, (Buffer(0), Buffer(1)), (SizeArg(2),), name="k0")
    return runner.plan(PlanProgram(3, 3, (launch,)))


def test_a_launch_passes_addresses_sizes_and_grid(runner, driver):
    plan = _plan(runner, DeviceKernel(driver, BINARY))
    x, y = torch.zeros(320), torch.zeros(320)

    plan(x, y, 320)

    module = 100 + ord("A")
    assert _log(driver)[:7] == [module + 1000, 3, 1, 1, 128, 65536, 77]
    assert _log(driver)[7:10] == [x.data_ptr(), y.data_ptr(), 320]
    assert _log(driver)[61] == 65536  # more shared memory than is allowed unasked


@pytest.mark.parametrize(
    ("version", "waits", "count"), [(12030, True, 1), (12030, False, 0), (12020, True, 0)]
)
def test_a_launch_starts_early_if_its_programs_wait(library, runner, driver, version, waits, count):
    ctypes.c_int.in_dll(driver.library, "gy_version").value = version
    names = evolve(NVIDIA, library=str(library), torch_library=str(library))
    binary = evolve(BINARY, facts=evolve(BINARY.facts, waits=waits))
    kernel = DeviceKernel(open_driver.__wrapped__(names), binary)
    launch = Launch(kernel, (Buffer(0), Buffer(1)), (SizeArg(2),))
    plan = runner.plan(PlanProgram(3, 3, (launch, evolve(launch, overlap=True))))
    x, y = torch.zeros(320), torch.zeros(320)

    plan(x, y, 320)

    assert _log(driver)[63] == (0 if isinstance(runner, PureRunner) else count)
    assert _log(driver)[:7] == [1100 + ord("A"), 3, 1, 1, 128, 65536, 77]
    assert _log(driver)[7:10] == [x.data_ptr(), y.data_ptr(), 320]


def test_nothing_is_launched_without_points(runner, driver):
    _plan(runner, DeviceKernel(driver, BINARY))(torch.zeros(0), torch.zeros(0), 0)
    assert _log(driver)[0] == 0


def test_an_error_is_told_in_the_drivers_words(runner, driver):
    plan = _plan(runner, DeviceKernel(driver, BINARY))
    ctypes.c_int.in_dll(driver.library, "gy_fail").value = 2
    with pytest.raises(RuntimeError, match="kernel k0: no luck"):
        plan(torch.zeros(16), torch.zeros(16), 16)


def test_a_thread_new_to_the_device_enters_its_context(runner, driver, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    plan = _plan(runner, DeviceKernel(driver, BINARY))
    ctypes.c_int.in_dll(driver.library, "gy_lost").value = 1
    plan(torch.zeros(16), torch.zeros(16), 16)
    assert _log(driver)[62] == 1
    assert _log(driver)[9] == 16


def test_other_arguments_get_a_build_that_assumes_nothing(runner, driver, monkeypatch):
    requests = []

    def compile_again(job):
        requests.append(job.arguments)
        return Facts(name="k0", threads=128, shared=0), b"B general"

    monkeypatch.setattr("gyrator_runtime.triton.launch.compile_alone", compile_again)
    plan = _plan(runner, DeviceKernel(driver, BINARY))
    x, y = torch.zeros(33), torch.zeros(33)
    for inputs in ((x[1:17], y, 16), (x, y, 33)):
        plan(*inputs)
        assert _log(driver)[0] == 1100 + ord("B")
    assert requests == [(("x", "*fp32", 1), ("y", "*fp32", 1), ("s0", "i32", 1))]
    plan(x, y, 32)
    assert _log(driver)[0] == 1100 + ord("A")


def test_a_build_that_fails_at_a_launch_raises_there(runner, driver):
    plan = _plan(runner, DeviceKernel(driver, evolve(BINARY, code=b"X")))
    with pytest.raises(BuildError, match="no luck"):
        plan(torch.zeros(16), torch.zeros(16), 16)


def test_code_is_given_back(driver):
    kernel = DeviceKernel(driver, BINARY)
    assert kernel.registers == (28, 21)
    del kernel
    assert _log(driver)[60] == 1


def test_a_missing_driver_is_an_error():
    with pytest.raises(BuildError) as caught:
        open_driver(evolve(NVIDIA, library="libno-such-driver.so"))
    assert caught.value.diagnostic.code == "GY-BUILD-004"


def test_binaries_survive_storage(tmp_path, driver):
    other = evolve(BINARY, symbol="k1", code=b"another")
    (tmp_path / "lib").write_bytes(pack((BINARY, other)))
    assert unpack((tmp_path / "lib").read_bytes()) == {"k0": BINARY, "k1": other}
    assert set(load_binaries(driver, tmp_path / "lib", ["k1"])) == {"k1"}


def test_a_grid_is_a_formula_of_the_sizes():
    arguments = tuple(KernelArgument(n, "i64") for n in ("s0", "s1"))
    grid = (minimum(S0, S1) // XBLOCK, expr(4))
    source = KernelSource("f", "f", "", arguments=arguments, grid=grid)
    size = (("arg", 0), ("arg", 1), ("min", 0), ("const", 8), ("floordiv", 0))
    assert grid_code(source, 2, {"XBLOCK": 8}) == (size, (("const", 4),))
    assert grid_of(source, (40, 17), {"XBLOCK": 8}) == (2, 4)


@pytest.fixture(scope="module")
def pool():
    result = WorkerPool(1)
    yield result
    result.close()


def test_units_are_compiled_once_and_stored(tmp_path, shared_cache, driver, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # as on a user's machine
    unit = TranslationUnit("unit0", "triton", TEXT, (SOURCE,))
    language = Language(backend="cuda", code="cubin", arch="90", warp=32, version="any")
    builder = TritonBuilder(language, shared_cache, lambda: driver, jobs=1)

    (library,) = builder.submit((unit,)).libraries()
    builder.close()

    (binary,) = unpack(library.data).values()
    assert binary.code.startswith(b"\x7fELF")
    assert (binary.facts.name, binary.facts.threads) == ("k0", 128)
    assert binary.grid == BINARY.grid

    def start(*_args, **_kwargs):
        raise AssertionError("a hit starts no process")

    monkeypatch.setattr(subprocess, "Popen", start)
    assert list(builder.submit((unit,)).addresses()) == ["k0"]


def test_kernels_that_are_built_in_time_can_be_had_without_the_rest(tmp_path, driver, monkeypatch):
    names = ("early", "wrong", "late", "never")
    language = Language(backend="cuda", code="cubin", arch="90", warp=32, version="any")
    builder = TritonBuilder(language, Cache(tmp_path), lambda: driver, jobs=1)
    gate = threading.Event()

    def run(job, folder):
        if job.symbol == "wrong":
            raise BuildError.of("GY-BUILD-002", "refused")
        if job.symbol == "late":
            gate.wait()
        (folder / CODE).write_bytes(b"code")
        (folder / FACTS).write_text(json.dumps(asdict(BINARY.facts)))

    monkeypatch.setattr(builder.pool, "run", run)
    monkeypatch.setattr(builder.pool, "warm", lambda count: None)
    texts = {n: TEXT.replace("k0", n) for n in names}
    sources = [evolve(SOURCE, kernel=n, symbol=n, text=texts[n]) for n in names]
    build = builder.submit([TranslationUnit("unit0", "triton", TEXT, tuple(sources))])

    assert list(build.within(0.2)) == ["early"]
    (library,) = build.only({"early"}).libraries()
    assert library.symbols == ("early",)
    gate.set()
    assert list(build.within(60)) == ["early", "late"]  # the last was given up
    builder.close()


def test_a_refused_text_says_what_triton_said(tmp_path, pool):
    bad = evolve(JOB, text=TEXT.replace("tl.load(x + i", "tl.no_such(x + i"))
    with pytest.raises(BuildError, match="no_such") as caught:
        pool.run(bad, tmp_path)
    assert caught.value.diagnostic.code == "GY-BUILD-002"


def test_a_worker_that_dies_is_replaced(tmp_path, pool):
    marker = tmp_path / "once"
    dying = f"import os\nif not os.path.exists({str(marker)!r}):\n"
    dying += f"    open({str(marker)!r}, 'w').close()\n    os._exit(3)\n"
    bad = evolve(JOB, text=dying + TEXT.replace("tl.load(x + i", "tl.no_such(x + i"))
    with pytest.raises(BuildError, match="no_such"):
        pool.run(bad, tmp_path)
    assert marker.exists()
    with pytest.raises(BuildError, match="processes died") as caught:
        pool.run(evolve(JOB, text="import os\nos._exit(3)\n"), tmp_path)
    assert caught.value.diagnostic.code == "GY-BUILD-003"
    hasty = WorkerPool(1, seconds=0.2)
    with pytest.raises(BuildError, match="took more than") as caught:
        hasty.run(evolve(JOB, text="import time\ntime.sleep(60)\n"), tmp_path)
    assert caught.value.diagnostic.code == "GY-BUILD-003"
    hasty.close()
    pool.close()
    assert not _children("gyrator_runtime.triton.worker")


def _children(word: str) -> list[str]:
    actual = str(os.getpid())
    listed = subprocess.run(
        ("ps", "-o", "args=", "--ppid", actual), capture_output=True, text=True, check=False
    )
    return [line for line in listed.stdout.splitlines() if word in line]


def test_a_worker_does_not_read_all_of_triton_to_name_what_it_makes():
    text = (
        "from gyrator_runtime.triton.compile import import_compiler; import_compiler();"
        "import builtins; del builtins.open;"
        "from triton.runtime.cache import triton_key; print(triton_key())"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.stdout.strip(), done.stderr
