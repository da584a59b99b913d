"""Packages for a GPU, made and refused where there is none."""

import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.export import Dim, export
from torch.utils import _pytree as pytree

import gyrator.aot as aot
from gyrator.aot.move import move
from gyrator.aot.targets import package_targets
from gyrator.cli.aot import random_inputs
from gyrator.options import OptionError
from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_runtime.build import BuildError
from gyrator_runtime.package import PackageError, accelerated
from gyrator_runtime.package.manifest import PackageManifest
from gyrator_runtime.plan.stored import parse
from gyrator_runtime.triton.architecture import fit
from gyrator_runtime.triton.binary import Binary, unpack
from gyrator_runtime.triton.driver import NVIDIA

BATCH = Dim("batch", min=1, max=64)


class Attends(nn.Module):
    """A constant, a written buffer, tensors made on the argument's device, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        y = torch.nn.functional.gelu(self.inner(x))
        heads = y.unflatten(-1, (2, 16)).transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        indices = torch.arange(16, device=x.device)
        return attended + indices + torch.tensor([0.5]) + torch.zeros(16, device="cpu")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of a module of the CPU, for two kinds of machine code."""
    path = tmp_path_factory.mktemp("device") / "attends.gya"
    aot.compile(
        Attends().eval(),
        (torch.randn(3, 8, 32),),
        dynamic_shapes=({0: BATCH},),
        target=("sm_90", "sm_86+"),
        package=path,
    )
    return path


def binaries(path: Path, arch: str) -> dict[str, Binary]:
    """Return the kernels for an architecture."""
    programs = aot.inspect(path).entries[0].programs
    (program,) = (p for p in programs if p.isa == arch)
    with zipfile.ZipFile(path) as archive:
        actual = [unpack(archive.read(library.member)) for library in program.libraries]
    return {symbol: binary for part in actual for symbol, binary in part.items()}


def test_a_program_of_the_host_is_made_one_of_the_device(package: Path) -> None:
    manifest = aot.inspect(package)
    (entry,) = manifest.entries
    assert (manifest.device, entry.inputs[0].device) == ("cuda", "cuda:0")
    assert [p.isa for p in entry.programs] == ["sm_90", "sm_86+"]
    assert not any(w.hosted for w in manifest.weights)
    for program in entry.programs:
        assert all(library.driven for library in program.libraries)
        assert {name for name in program.calls if "attention" in name} <= {
            "aten.scaled_dot_product_attention.default"
        }
        with zipfile.ZipFile(package) as archive:
            text = archive.read(program.plan).decode()
        assert '"cuda:0"' in text
        assert '"cpu"' not in text
        assert {name for plan in parse(text).plans for _, name in plan.devices} <= {"cuda:0"}


def test_machine_code_is_what_the_driver_loads(package: Path) -> None:
    own, later = binaries(package, "sm_90"), binaries(package, "sm_86+")
    assert own.keys() == later.keys() != set()
    for binary in own.values():
        assert binary.code.startswith(b"\x7fELF")
    for binary in later.values():
        assert b".target sm_86" in binary.code
        assert b".entry " + binary.facts.name.encode() in binary.code


def test_no_compiler_is_needed_for_addresses_that_are_not_aligned(package: Path) -> None:
    for binary in binaries(package, "sm_90").values():
        aligned = any(divisor > 1 for _, _, divisor in binary.job.arguments)
        assert (binary.general is not None) == aligned
        assert binary.general is None or binary.general[1] != binary.code
        assert not binary.job.text


def test_parts_that_graphs_may_replay_are_named(tmp_path: Path) -> None:
    for graphs in (True, False):
        path = aot.compile(
            nn.Softmax(-1),
            (torch.randn(2, 8),),
            target="sm_90",
            package=tmp_path / "model.gya",
            options={"device_graphs": graphs},
        )
        assert aot.inspect(path).entries[0].programs[0].graphs == ({"": ()} if graphs else {})


def test_the_bytes_depend_on_the_model_alone(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.gya", "b.gya")]
    program = export(nn.GELU(), (torch.randn(4, 8),))
    for path in paths:
        aot.compile(program, target="sm_90", package=path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


FITS = {
    ("sm_80", "sm_80"): True, ("sm_80", "sm_86"): True, ("sm_86", "sm_80"): False,
    ("sm_80", "sm_90"): False, ("sm_90", "sm_90"): True, ("sm_100", "sm_103"): False,
    ("sm_86+", "sm_80"): False, ("sm_86+", "sm_86"): True, ("sm_86+", "sm_120"): True,
    ("avx2", "sm_90"): False, ("sm_90", "gfx942"): False, ("gfx942", "gfx942"): True,
}  # fmt: skip


@pytest.mark.parametrize(("code", "device"), FITS, ids=":".join)
def test_which_code_a_device_runs(code: str, device: str) -> None:
    assert (fit(code, device) is not None) == FITS[code, device]


@pytest.mark.parametrize(
    ("device", "chosen"),
    [("sm_80", "sm_80"), ("sm_86", "sm_86"), ("sm_89", "sm_86"), ("sm_90", "sm_90"),
     ("sm_100", "sm_86+"), ("sm_87", "sm_86")],
)  # fmt: skip
def test_the_closest_code_is_chosen(device: str, chosen: str) -> None:
    codes = {code: fit(code, device) for code in ("sm_86+", "sm_80", "sm_90", "sm_86")}
    actual = {code: how for code, how in codes.items() if how is not None}
    assert max(actual, key=lambda code: actual[code]) == chosen


def test_targets_by_name() -> None:
    usual = [t.arch for t in package_targets("cuda", "cpu")]
    assert usual == list(NVIDIA_GPU.usual)
    assert {t.device for t in package_targets("cuda", "cpu")} == {"cuda"}
    assert [t.arch for t in package_targets(("avx2", "plain"), "cpu")] == ["plain", "avx2"]


@pytest.mark.parametrize("word", ["sm_", "sm_70", "sm_90+", "compute_90", "gfx942", "nothing", ""])
def test_there_are_no_such_targets(word: str) -> None:
    with pytest.raises(OptionError, match=r"GY-AOT-002.*there is no target"):
        package_targets(word, "cpu")


def test_what_does_not_go_together(tmp_path: Path) -> None:
    inputs = {"inputs": (torch.randn(2, 8),), "package": tmp_path / "model.gya"}
    with pytest.raises(OptionError, match=r"GY-AOT-002.*several device types"):
        aot.compile(nn.GELU(), target=("avx2", "sm_90"), **inputs)
    lstm = nn.LSTM(8, 8).eval()
    with pytest.raises(UnsupportedError, match=r"GY-AOT-001.*of the CPU calls aten.mkldnn_rnn"):
        aot.compile(lstm, target="sm_90", **inputs | {"inputs": (torch.randn(3, 2, 8),)})
    with pytest.raises(OptionError, match=r"GY-AOT-002.*has no cuda"):
        package_targets(None, "cuda")
    assert not list(tmp_path.iterdir())


class NoDriver:
    """A process whose torch is built for a device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, arch: tuple[int, int]) -> None:
        here = torch.device("cuda")
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: here)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
        monkeypatch.setattr(accelerated, "names_here", lambda: NVIDIA)
        monkeypatch.setattr(accelerated, "open_driver", self.opened)
        actual = SimpleNamespace(
            name="a device", major=arch[0], minor=arch[1], multi_processor_count=1, total_memory=1
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: actual)
        self.error: Exception | None = None

    def opened(self, names: object) -> object:
        """Stand for `open_driver`."""
        if self.error is not None:
            raise self.error
        return SimpleNamespace()


def test_launches_overlap_where_the_device_can(tmp_path: Path) -> None:
    layers = [nn.Linear(256, 256) for _ in range(3)]
    path = aot.compile(
        nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2]).eval(),
        (torch.randn(1, 256),),
        target=("sm_90", "sm_80"),
        package=tmp_path / "row.gya",
    )
    assert {b.facts.waits for b in binaries(path, "sm_90").values()} == {True}
    assert {b.facts.waits for b in binaries(path, "sm_80").values()} == {False}


def refused(path: Path, **inputs: object) -> str:
    with pytest.raises(PackageError) as caught:
        aot.load(path, **inputs)
    assert caught.value.diagnostic.code == "GY-PACKAGE-004"
    assert caught.value.diagnostic.help
    return caught.value.diagnostic.message


def test_a_torch_without_the_device(package: Path) -> None:
    if torch.accelerator.current_accelerator() is None:
        assert "for which torch" in refused(package)
    assert "it runs on cuda, not on cpu" in refused(package, device="cpu")


def test_a_machine_without_the_device(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NoDriver(monkeypatch, 0, (9, 0))
    assert "no driver or no device" in refused(package)


def test_a_device_that_is_not_there(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NoDriver(monkeypatch, 2, (9, 0))
    assert "there is no cuda:2; there are 2" in refused(package, device=2)
    assert "there is no cuda:3" in refused(package, device="cuda:3")


def test_a_driver_that_cannot_be_opened(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = NoDriver(monkeypatch, 1, (9, 0))
    with pytest.raises(BuildError) as caught:
        NVIDIA_GPU.open()  # this machine has none
    process.error = caught.value
    assert "cannot be loaded" in refused(package)


def test_an_architecture_that_no_code_fits(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NoDriver(monkeypatch, 1, (8, 0))
    assert "is built for sm_90, sm_86+, this device is sm_80" in refused(package)


def test_a_package_of_the_cpu_is_for_no_device(tmp_path: Path) -> None:
    path = aot.compile(nn.GELU(), (torch.randn(2, 8),), package=tmp_path / "model.gya")
    assert aot.load(path, device="cpu").device == torch.device("cpu")
    assert "it runs on cpu, not on cuda:1" in refused(path, device="cuda:1")


def test_the_command_draws_inputs_on_the_devices_of_a_model(package: Path) -> None:
    (entry,) = aot.inspect(package).entries
    (result,) = random_inputs(entry, torch.Generator(), torch.device("meta"))
    assert (result.device.type, result.shape[1:]) == ("meta", (8, 32))
    own = evolve(entry, inputs=(evolve(entry.inputs[0], device="cpu"),))
    assert random_inputs(own, torch.Generator(), torch.device("meta"))[0].device.type == "cpu"


class Widened(nn.Module):
    """What kernels compute, and a sort, which they do not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, 3).values * 2


class Chunks(nn.Module):
    """Parts of one tensor, each at a place of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = (x + 1).chunk(3, -1)
        return torch.bmm(first, second.transpose(1, 2)) @ third


def _places(gm: torch.fx.GraphModule) -> tuple[list[tuple[Any, ...]], set[str]]:
    """Return how a graph's values lie, with which others in one storage, and on what."""
    leaves = pytree.tree_leaves([n.meta.get("val") for n in gm.graph.nodes])
    values = [v for v in leaves if isinstance(v, torch.Tensor)]
    storages = [v.untyped_storage()._cdata for v in values]
    lie = [(str(v.shape), str(v.stride()), v.storage_offset()) for v in values]
    shared = [storages.index(s) for s in storages]
    return [(*p, k) for p, k in zip(lie, shared, strict=True)], {v.device.type for v in values}


@pytest.mark.parametrize("shapes", [None, ({0: BATCH},)])
def test_parts_of_a_tensor_stay_at_their_places(tmp_path: Path, shapes: object) -> None:
    x = torch.randn(3, 4, 12)
    program = export(Chunks(), (x,), dynamic_shapes=shapes).run_decompositions()
    gm = program.graph_module
    before, _ = _places(gm)
    assert {4, 8} <= {offset for _, _, offset, _ in before}
    move(gm, torch.device("cuda", 0))
    assert _places(gm) == (before, {"cuda"})
    path = aot.compile(
        Chunks(), (x,), dynamic_shapes=shapes, target="sm_90", package=tmp_path / "model.gya"
    )
    (result,) = aot.inspect(path).entries[0].programs
    with zipfile.ZipFile(path) as archive:
        (plan,) = parse(archive.read(result.plan).decode()).plans
    assert {16, 32} <= set(plan.ints)  # bytes


def test_packages_for_c(tmp_path: Path) -> None:
    inputs = {"target": "sm_90", "package": tmp_path / "model.gya"}
    x = torch.randn(2, 8)
    aot.compile(nn.Sequential(nn.Linear(8, 8), nn.GELU()), (x,), runtime="standalone", **inputs)
    manifest = aot.inspect(tmp_path / "model.gya")
    assert (manifest.runtime, manifest.device, manifest.entries[0].programs[0].calls) == (
        "standalone", "cuda", ()
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"GY-AOT-005.*aten\.topk"):
        aot.compile(Widened(), (x,), runtime="standalone", **inputs)
    aot.compile(Widened(), (x,), runtime="libtorch", **inputs)
    assert [o.name for o in aot.inspect(tmp_path / "model.gya").operators] == ["aten.topk.default"]


@pytest.mark.parametrize("when", ["compile", "load"])
def test_constants_of_weights_are_the_devices(tmp_path: Path, when: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).eval()
    path, options = tmp_path / "model.gya", {"freezing": True}
    inputs = torch.randn(2, 3, 8, 8)
    aot.compile(model, (inputs,), package=path, target="sm_90", options=options, constants=when)
    (entry,) = aot.inspect(path).entries
    assert not any(w.hosted for w in aot.inspect(path).weights)
    names = tuple(f"forward/folded.{n}" for n in (0, 1))
    assert entry.weights == (names if when == "compile" else ())
    if when == "load":
        assert entry.constants is not None
        assert set(entry.constants.weights) < model.state_dict().keys()
        assert all(lib.driven for p in entry.constants.programs for lib in p.libraries)


def test_the_manifest_can_be_read_back(package: Path) -> None:
    manifest = aot.inspect(package)
    assert PackageManifest.from_json(manifest.to_json().encode()) == manifest
