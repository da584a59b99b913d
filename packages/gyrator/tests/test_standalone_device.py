"""The C library with packages for GPUs, over a driver that is none."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.export import Dim

import gyrator.aot as aot
from gyrator.session import default_session
from gyrator_runtime.package.archive import Raw, write_archive
from gyrator_runtime.package.manifest import MANIFEST, Member, PackageManifest
from gyrator_runtime.standalone import shared_runtime
from gyrator_runtime.standalone.ffi import Package, StandaloneError
from gyrator_runtime.toolchain import find_toolchain
from gyrator_runtime.triton.binary import Binary, pack, unpack

HERE = Path(__file__).parent
KERNELS = {
    7: """int64_t *calls = *(int64_t **)a[0]; **(int64_t **)a[1] = ++*calls;
    float *x = *(float **)a[2], *y = *(float **)a[3], *w = *(float **)a[4], *z = *(float **)a[5];
    for (int k = 0; k < 16 * *(int32_t *)a[6]; k++) z[k] = x[k] + y[k] + w[k % 16];""",
    3: """float *v = *(float **)a[0], *out = *(float **)a[2];
    for (int k = 0; k < 64; k++) out[k] = v[k] * **(int64_t **)a[1];""",
}
"""What the program's kernels compute, by how many arguments they have, in C."""


class Counts(nn.Module):
    """The program that device_calls.py knows."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(16.0))
        self.v = nn.Parameter(torch.arange(64.0).reshape(4, 16).t().contiguous().t())
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        return x + y + self.w, self.v * self.calls


def _built(command: list[str]) -> None:
    done = subprocess.run(["gcc", "-std=c11", "-Wall", "-Werror", "-g", *command])
    assert done.returncode == 0


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a driver."""
    file = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    named = "-Wl,-soname,libcuda.so.1"
    _built(["-shared", "-fPIC", str(HERE / "fake_driver.c"), "-o", str(file), named, "-ldl"])
    return file


def _for_the_host(binary: Binary, folder: Path) -> Binary:
    """Return a kernel whose machine code is what the driver takes for such."""
    paths = [folder / f"{binary.symbol}-{k}.so" for k in range(2)]
    source = folder / f"{binary.symbol}.c"
    body = KERNELS[len(binary.job.arguments)]
    source.write_text(f"#include <stdint.h>\nvoid {binary.facts.name}(void **a) {{ {body} }}\n")
    for path in paths:
        _built(["-shared", "-fPIC", str(source), "-o", str(path)])
    first, general = (str(path).encode() for path in paths)
    assert binary.general is not None
    return evolve(binary, code=first, general=(binary.general[0], general))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for two kinds of devices, with machine code of this processor."""
    folder = tmp_path_factory.mktemp("counts")
    result = aot.compile(
        Counts(),
        (torch.randn(8, 16), torch.randn(8, 16)),
        dynamic_shapes=({0: (batch := Dim("batch", min=1, max=64))}, {0: batch}),
        target=("sm_90", "sm_86"),
        runtime="standalone",
        package=folder / "real.gya",
    )
    with zipfile.ZipFile(result) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, data in members.items():
        if name.endswith(".bin"):
            members[name] = pack([_for_the_host(b, folder) for b in unpack(data).values()])
    manifest = PackageManifest.from_json(members[MANIFEST])
    raw = {name: Raw.of(data) for name, data in members.items()}
    described = tuple(
        Member(m.name, raw[m.name].size, raw[m.name].sha256) for m in manifest.members
    )
    raw[MANIFEST] = Raw.of(evolve(manifest, members=described).to_json().encode())
    path = folder / "counts.gya"
    write_archive(path, raw)
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "libtorch"])
def runtime(request: pytest.FixtureRequest) -> Path:
    """The library, and the one with libtorch."""
    cache = default_session().cache
    return shared_runtime(cache, find_toolchain(os.environ, cache), torch=request.param)


CASES = ("runs", "unaligned", "weights", "lends", "refuses", "buffers", "allocates", "threads")


@pytest.mark.parametrize("case", CASES)
def test_by_a_driver(package: Path, runtime: Path, driver: Path, case: str) -> None:
    command = [sys.executable, str(HERE / "device_calls.py"), case, str(package), str(runtime)]
    torch_libraries = str(Path(torch.__file__).parent / "lib")
    env = os.environ | {"LD_PRELOAD": _libtorch(runtime), "LD_LIBRARY_PATH": torch_libraries}
    done = subprocess.run([*command, str(driver)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def _libtorch(runtime: Path) -> str:
    return "libtorch_cpu.so" if "torch" in runtime.name else ""


def test_a_machine_without_a_driver(package: Path, runtime: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(StandaloneError, match=r"GYR_ERROR_MISFIT.*there is no driver"):
        Package.open(package, runtime)


def test_a_package_of_the_cpu_is_for_no_device(tmp_path: Path, runtime: Path) -> None:
    path = aot.compile(
        nn.GELU(), (torch.ones(4),), package=tmp_path / "cpu.gya", runtime="standalone"
    )
    with pytest.raises(StandaloneError, match=r"GYR_ERROR_MISFIT.*runs on cpu, not on cuda:1"):
        Package.open(path, runtime, device=1)
