"""Packages of one file for x86-64 and aarch64: the latter's part runs under qemu, or on such a
machine itself."""

import io
import os
import struct
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

from gyrator import aot
from gyrator.session import default_session
from gyrator_conformance.models import all_models
from gyrator_runtime.standalone import SharedRuntime, install
from gyrator_runtime.standalone.ffi import DTYPES
from gyrator_runtime.toolchain import find_cross_toolchain
from gyrator_testing.kernels.emulator import Machine, machine

MODELS = (
    "activations", "alibi", "bert", "convnext", "cumulative", "gpt", "graph-attention", "gru",
    "layer-norm", "lstm", "mamba", "masked-update", "mlp", "mobilenet",
    "pixel-shuffle", "promotion", "resnet", "rms-norm", "statistics",
    "swin", "unet", "wavenet",
)  # fmt: skip


@pytest.fixture(scope="module")
def aarch64() -> Machine:
    found = machine("aarch64")
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def caller(aarch64: Machine, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that calls a package on aarch64."""
    folder = tmp_path_factory.mktemp("aarch64")
    cache = default_session().cache
    toolchain = find_cross_toolchain("aarch64", os.environ, cache)
    install(folder, SharedRuntime(toolchain).build(cache))
    program, source = folder / "caller", Path(__file__).with_name("package_caller.c")
    paths = [f"-I{folder}/include", f"-L{folder}/lib", f"-Wl,-rpath,{folder}/lib"]
    command = [aarch64.compiler.replace("g++", "gcc"), "-o", program, source, *paths]
    subprocess.run([*command, "-lgyrator_runtime"], check=True)
    return [*aarch64.emulator, str(program)]


def packed(tensor: torch.Tensor) -> bytes:
    """A tensor as `package_caller.c` reads it."""
    plain = tensor.contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    shape = (*plain.shape, *plain.stride(), len(data))
    return struct.pack(f"<{2 + len(shape)}q", DTYPES.index(name), plain.dim(), *shape) + data


def unpacked(file: io.BytesIO) -> torch.Tensor:
    """The next tensor that `package_caller.c` wrote."""
    dtype, ndim = struct.unpack("<2q", file.read(16))
    numbers = struct.unpack(f"<{2 * ndim + 1}q", file.read(16 * ndim + 8))
    data = bytearray(file.read(numbers[-1]))
    kind = getattr(torch, DTYPES[dtype])
    if not data:
        return torch.empty(numbers[:ndim], dtype=kind)
    return torch.frombuffer(data, dtype=kind).as_strided(numbers[:ndim], numbers[ndim:-1])


@pytest.mark.parametrize("name", MODELS)
def test_a_package_for_both_machines(name: str, caller: list[str], tmp_path: Path) -> None:
    model = all_models()[name]
    torch.manual_seed(3)
    module = model.build().eval()
    inputs = model.inputs(torch.Generator().manual_seed(4), model.size)
    with torch.no_grad():
        want = pytree.tree_leaves(module(*(t.clone() for t in inputs)))
    package = aot.compile(
        module, inputs, package=tmp_path / "model.gya", runtime="standalone",
        target=("avx2", "neon"),
    )  # fmt: skip
    programs = aot.inspect(package).entries[0].programs
    assert {p.isa for p in programs} == {"avx2", "neon"}

    done = subprocess.run(
        [*caller, str(package), "neon"], input=b"".join(map(packed, inputs)), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    file = io.BytesIO(done.stdout)
    got = [unpacked(file) for _ in want]

    assert not file.read(1)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        with torch.no_grad():
            here = pytree.tree_leaves(aot.load(package)(*(t.clone() for t in inputs)))
        torch.testing.assert_close(here, want, rtol=2e-5, atol=2e-5)
