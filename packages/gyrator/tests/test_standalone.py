"""The C library: it gives what eager mode gives, without Python; anything else is an error."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_float, c_int64, c_void_p, cast
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.export import Dim

import gyrator.aot as aot
from gyrator.options import OptionError
from gyrator.session import default_session
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_runtime.cache import Cache
from gyrator_runtime.device import cpu_isa, isa_levels
from gyrator_runtime.package.archive import Raw, write_archive
from gyrator_runtime.package.manifest import MANIFEST, PackageManifest
from gyrator_runtime.standalone import (
    LibraryError,
    SharedRuntime,
    install,
    library,
    unsupported_features,
)
from gyrator_runtime.standalone.ffi import (
    DTYPES,
    Array,
    Instance,
    Package,
    RawTensor,
    StandaloneError,
    raw_tensor,
)
from gyrator_runtime.toolchain import Toolchain, find_toolchain

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "runtime" / "examples"
SOURCES = Path(library.__file__).parent
BATCH = Dim("batch", min=1, max=64)


class Small(nn.Module):
    """Products with weights, of which one does not lie in order."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 32)
        self.outer = nn.Parameter(torch.randn(4, 32).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.inner(x)) @ self.outer


class Pair(nn.Module):
    """Two weights, side by side in the result."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.ones(64)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.a * 1, self.b * 1]) + 0 * x.sum()


class Frozen(nn.Module):
    """A norm that becomes a part of the product before it, and a result of weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        nn.init.uniform_(self.norm.running_mean, 0.5, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.norm(self.layer(x))), self.norm.weight + self.norm.bias


def _toolchain() -> Toolchain:
    return find_toolchain(os.environ, default_session().cache)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the library is installed."""
    folder = tmp_path_factory.mktemp("prefix")
    install(folder, SharedRuntime(_toolchain()).build(default_session().cache))
    return folder


@pytest.fixture(scope="module")
def runtime(prefix: Path) -> Path:
    """The library's file."""
    return prefix / "lib" / library.soname(library.LIBRARY)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """A module and its package, with a dynamic batch, for every instruction set level."""
    torch.manual_seed(0)
    model = Small().eval()
    path = tmp_path_factory.mktemp("small") / "small.gya"
    levels = ("plain", "avx2", "avx512")
    shapes = ({0: BATCH},)
    inputs = (torch.randn(3, 16),)
    aot.compile(
        model, inputs, dynamic_shapes=shapes, package=path, runtime="standalone", target=levels
    )
    return model, path


def _array(tensor: torch.Tensor) -> Array:
    arranged = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
    data: Any = torch.empty(0, dtype=torch.uint8).set_(arranged.untyped_storage())
    name = str(tensor.dtype).removeprefix("torch.")
    return Array(name, tuple(tensor.shape), data.numpy().tobytes(), tensor.stride())


def _value(array: Array) -> Any:
    if array.dtype == "none":
        return None
    if not array.data:
        return torch.empty(array.sizes, dtype=getattr(torch, array.dtype))
    assert array.strides is not None
    plain = torch.frombuffer(array.data, dtype=getattr(torch, array.dtype))
    return plain.as_strided(array.sizes, array.strides)


def _run(model: Instance, *inputs: torch.Tensor | int) -> list[Any]:
    arguments = [_array(torch.as_tensor(i)) for i in inputs]
    return [_value(a) for a in model.run(arguments)]


def _model(folder: Path, runtime: Path, module: nn.Module, *inputs: Any, **more: Any) -> Instance:
    path = aot.compile(module, inputs, package=folder / "model.gya", runtime="standalone", **more)
    with Package.open(path, runtime, verify=True) as package:
        return package.instance()


# What it gives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512"])
def test_it_gives_what_the_module_gives(
    small: tuple[nn.Module, Path], runtime: Path, isa: str
) -> None:
    model, path = small
    levels = isa_levels()
    if isa not in levels[: levels.index(cpu_isa()) + 1]:
        pytest.skip(f"this processor has no {isa}")
    with Package.open(path, runtime, isa=isa) as package, package.instance() as fast:
        assert package.isa == isa
        (entry,) = package.entries
        assert [i.text for i in entry.inputs] == [f"float32[{next(iter(entry.symbols))}, 16]"]
        assert list(entry.symbols.values()) == [(1, 64)]
        for n in (1, 2, 5, 64):
            x = torch.randn(n, 16)
            with torch.no_grad():
                torch.testing.assert_close(_run(fast, x), [model(x)])


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32,
     torch.int16, torch.uint8],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (0, 6)])
def test_types_and_sizes(
    tmp_path: Path, runtime: Path, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    class Mixed(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return a * b + a, a.amax(1), a > b

    def made() -> torch.Tensor:
        return (torch.randn(shape) * 8).to(dtype)

    turned = [made().t().contiguous().t() for _ in range(4)]
    with _model(tmp_path, runtime, Mixed(), *turned[:2]) as fast:
        torch.testing.assert_close(_run(fast, *turned[2:]), list(Mixed()(*turned[2:])))


class Branches(nn.Module):
    """A branch by the data, and a loop."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))

        def more(i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return i < 5

        def step(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, y * 1.5 + i

        _, looped = torch.while_loop(more, step, (torch.zeros((), dtype=torch.int64), x))
        return chosen, looped


class Counts(nn.Module):
    """A buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls


class Gives(nn.Module):
    """A buffer that is written, itself and a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.state.add_(x)
        return self.state, self.state[1:]


class Returns(nn.Module):
    """Numbers, None, an argument as it is, parts of one, and parts of a result."""

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        y = x + 1
        return x.shape[0], None, x, y[1:], y.t(), 2.5, True


def test_branches_and_loops(tmp_path: Path, runtime: Path) -> None:
    with _model(tmp_path, runtime, Branches(), torch.ones(6)) as fast:
        for x in (torch.rand(6), -torch.rand(6)):
            torch.testing.assert_close(_run(fast, x), list(Branches()(x)))


def test_buffers_belong_to_an_instance(tmp_path: Path, runtime: Path) -> None:
    path = aot.compile(
        Counts(), (torch.ones(3),), package=tmp_path / "counts.gya", runtime="standalone"
    )
    with Package.open(path, runtime) as package:
        assert [w.written for w in package.weights] == [True]
        with package.instance() as one, package.instance() as other:
            for k in range(1, 4):
                torch.testing.assert_close(_run(one, torch.ones(3)), [torch.ones(3) + k])
            assert int(_value(one.read("calls"))) == 3
            assert int(_value(other.read("calls"))) == 0


def test_results_share_no_memory_with_weights(tmp_path: Path, runtime: Path) -> None:
    with _model(tmp_path, runtime, Gives(), torch.ones(4)) as fast:
        x = _array(torch.ones(4))
        calls = [(RawTensor * 2)() for _ in range(2)]
        for outputs in calls:
            assert not fast.library.gyr_run(fast.handle, 0, byref(raw_tensor(x)), 1, outputs, 2)
        for k, outputs in enumerate(calls, 1):
            for out, count in zip(outputs, (4, 3), strict=True):
                actual = cast(out.data, POINTER(c_float))[:count]
                assert actual == [float(k)] * count
                fast.library.gyr_tensor_release(byref(out))


def test_all_kinds_of_results(tmp_path: Path, runtime: Path) -> None:
    dynamic = ({0: Dim("n", min=3, max=9)},)
    with _model(tmp_path, runtime, Returns(), torch.ones(3, 4), dynamic_shapes=dynamic) as fast:
        for n in (3, 7):
            x = torch.randn(n, 4)
            size, nothing, same, part, turned, real, truth = _run(fast, x)
            _, _, _, part_eager, turned_eager, _, _ = Returns()(x)
            assert (int(size), nothing, float(real), bool(truth)) == (n, None, 2.5, True)
            torch.testing.assert_close(same, x, rtol=0, atol=0)
            torch.testing.assert_close([part, turned], [part_eager, turned_eager])


def test_sizes_that_are_given(tmp_path: Path, runtime: Path) -> None:
    class Grows(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x * n + n

    dynamic = {"x": None, "n": Dim.DYNAMIC}
    with _model(tmp_path, runtime, Grows(), torch.ones(5), 4, dynamic_shapes=dynamic) as fast:
        x = torch.randn(5)
        for n in (2, 4, 9):
            torch.testing.assert_close(_run(fast, x, n), [Grows()(x, n)])


def test_weights_are_replaced(small: tuple[nn.Module, Path], runtime: Path) -> None:
    model, path = small
    other = Small().eval()
    x = torch.randn(3, 16)
    with Package.open(path, runtime) as package, package.instance() as fast:
        fast.update({name: _array(value) for name, value in other.state_dict().items()})
        with torch.no_grad(), package.instance() as unchanged:
            torch.testing.assert_close(_run(fast, x), [other(x)])
            torch.testing.assert_close(_run(unchanged, x), [model(x)])
        torch.testing.assert_close(_value(fast.read("outer")), other.outer.detach())


@pytest.mark.parametrize("when", ["compile", "load"])
def test_constants_are_computed_of_weights(tmp_path: Path, runtime: Path, when: str) -> None:
    model, other, x = Frozen().eval(), Frozen().eval(), torch.randn(2, 3, 6, 6)
    more = {"options": {"freezing": True}, "constants": when, "dynamic_shapes": ({0: BATCH},)}
    with _model(tmp_path, runtime, model, x, **more) as fast, torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(_run(fast, x[:1]), list(model(x[:1])))
        weights = {name: _array(value) for name, value in other.state_dict().items()}
        if when == "compile":
            with pytest.raises(StandaloneError, match="there is no weight"):
                fast.update(weights)
            return
        fast.update(weights)
        torch.testing.assert_close(_run(fast, x), list(other(x)))
        shift = torch.randn(4)
        fast.update({"norm.bias": _array(shift)})
        other.norm.bias.copy_(shift)
        torch.testing.assert_close(_run(fast, x), list(other(x)))


# Programs in other languages --------------------------------------------------------------------


def _called(command: list[str], **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _expected(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        actual: torch.Tensor = model(torch.ones(3, 16))
    return actual.flatten()


def test_the_example_in_c(small: tuple[nn.Module, Path], prefix: Path, tmp_path: Path) -> None:
    model, path = small
    place = [f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib"]
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    program = str(tmp_path / "call")
    source = str(EXAMPLES / "call.c")
    _called(["gcc", *strict, source, "-o", program, *place, "-lgyrator_runtime"])
    lines = _called([program, str(path)], env={"PATH": ""}).split()
    torch.testing.assert_close(torch.tensor([float(n) for n in lines]), _expected(model))
    needed = _called(["ldd", program])
    assert "torch" not in needed and "python" not in needed
    assert subprocess.run([program, str(EXAMPLES)], capture_output=True).returncode == 1


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_the_example_in_cpp(small: tuple[nn.Module, Path], prefix: Path, tmp_path: Path) -> None:
    model, path = small
    build = str(tmp_path / "build")
    flags = "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror"
    where = f"-DCMAKE_PREFIX_PATH={prefix}"
    _called(["cmake", "-S", str(EXAMPLES), "-B", build, where, flags])
    _called(["cmake", "--build", build])
    lines = _called([f"{build}/call", str(path), "3", "16"]).split()
    actual = torch.tensor([float(n) for n in lines])
    torch.testing.assert_close(actual, _expected(model), rtol=1e-5, atol=1e-5)
    assert subprocess.run([f"{build}/call", str(path), "3", "15"]).returncode == 1


@pytest.mark.skipif(shutil.which("rustc") is None, reason="there is no rustc")
def test_the_example_in_rust(small: tuple[nn.Module, Path], prefix: Path, tmp_path: Path) -> None:
    model, path = small
    program, source = str(tmp_path / "call"), str(EXAMPLES / "call.rs")
    place = [f"-L{prefix}/lib", "-lgyrator_runtime", f"-Clink-arg=-Wl,-rpath,{prefix}/lib"]
    _called(["rustc", "--edition", "2021", "-Dwarnings", source, "-o", program, *place])
    lines = _called([program, str(path), "3", "16"], env={"PATH": ""}).split()
    actual = torch.tensor([float(n) for n in lines])
    torch.testing.assert_close(actual, _expected(model), rtol=1e-5, atol=1e-5)
    failed = subprocess.run([program, str(path), "3", "15"], capture_output=True, text=True)
    assert failed.returncode == 1
    assert failed.stderr.startswith("GYR_ERROR_INPUT: ")


def test_a_process_without_torch(small: tuple[nn.Module, Path], runtime: Path) -> None:
    model, path = small
    program = """
import array, json, sys
from gyrator_runtime.standalone.ffi import Array, Package
with Package.open(sys.argv[1], sys.argv[2]) as package, package.instance() as model:
    (y,) = model.run([Array("float32", (3, 16), array.array("f", [1] * 48).tobytes())])
assert "torch" not in sys.modules
print(json.dumps(list(array.array("f", bytes(y.data)))))
"""
    actual = json.loads(_called([sys.executable, "-c", program, str(path), str(runtime)]))
    torch.testing.assert_close(torch.tensor(actual), _expected(model))


# What goes wrong --------------------------------------------------------------------------------


def _rewritten(path: Path, to: Path, **changes: Any) -> Path:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = PackageManifest.from_json(members[MANIFEST])
    members[MANIFEST] = evolve(manifest, **changes).to_json().encode()
    write_archive(to, {name: Raw.of(data) for name, data in members.items()})
    return to


def test_files_that_do_not_fit(
    small: tuple[nn.Module, Path], runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small[1]
    whole = path.read_bytes()
    place = tmp_path / "bad.gya"

    def status(**options: Any) -> str:
        with pytest.raises(StandaloneError) as caught:
            Package.open(place, runtime, **options)
        assert str(place) in str(caught.value)
        return caught.value.status

    assert status() == "GYR_ERROR_FILE"  # there is none
    for contents in (b"", b"x" * 5000, whole[: len(whole) // 2], whole[:-30]):
        place.write_bytes(contents)
        assert status() == "GYR_ERROR_FILE"
    kernel = whole.index(b"\x7fELF")
    place.write_bytes(whole[: kernel + 2000] + b"?!" + whole[kernel + 2002 :])
    actual = {status(isa=level) for level in ("plain", "avx2", "avx512") if _damaged(place, level)}
    assert actual == {"GYR_ERROR_ALTERED"}
    weights = whole.rindex(b"PK\x01\x02", 0, whole.index(b"PK\x01\x02") + 4)
    place.write_bytes(whole[: weights - 8] + b"\0" * 8 + whole[weights:])
    assert status(verify=True) == "GYR_ERROR_ALTERED"
    place.write_bytes(whole)
    assert status(expected_sha256="0" * 64) == "GYR_ERROR_ALTERED"
    assert status(isa="avx1024") == "GYR_ERROR_ARGUMENT"
    Package.open(place, runtime, expected_sha256=hashlib.sha256(whole).hexdigest().upper()).close()

    _rewritten(path, place, format=2)
    assert status() == "GYR_ERROR_FORMAT"
    _rewritten(path, place, machine="pdp11")
    assert status() == "GYR_ERROR_MISFIT"
    _rewritten(path, place, runtime="python")
    assert status() == "GYR_ERROR_MISFIT"
    (entry,) = aot.inspect(path).entries
    few = evolve(entry, programs=tuple(p for p in entry.programs if p.isa == "avx512"))
    _rewritten(path, place, entries=(few,))
    monkeypatch.setenv("GYRATOR_ISA", "avx2")
    assert status() == "GYR_ERROR_MISFIT"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, b"{}" * 100)
    assert status() == "GYR_ERROR_FILE"


def _damaged(path: Path, isa: str) -> bool:
    """Whether a level's kernels are not what the manifest says."""
    with zipfile.ZipFile(path) as archive:
        manifest = PackageManifest.from_json(archive.read(MANIFEST))
        (entry,) = manifest.entries
        for program in entry.programs:
            if program.isa == isa:
                for lib in program.libraries:
                    try:
                        archive.read(lib.member)
                    except zipfile.BadZipFile:
                        return True
    return False


def _bad_inputs() -> dict[str, tuple[str, Callable[[], list[Array]]]]:
    def one(dtype: str, sizes: tuple[int, ...], size: int, strides: Any = None) -> Any:
        return lambda: [Array(dtype, sizes, bytes(size), strides)]

    wrong = "GYR_ERROR_INPUT"
    return {
        "none": ("GYR_ERROR_CALL", list),
        "two": ("GYR_ERROR_CALL", lambda: 2 * one("float32", (2, 16), 128)()),
        "type": (wrong, one("float64", (2, 16), 256)),
        "no type": (wrong, one("none", (2, 16), 128)),
        "rank": (wrong, one("float32", (16,), 64)),
        "size": (wrong, one("float32", (2, 15), 120)),
        "above": (wrong, one("float32", (65, 16), 4160)),
        "below": (wrong, one("float32", (0, 16), 0)),
        "negative": (wrong, one("float32", (-1, 16), 64)),
        "strides": (wrong, one("float32", (2, 16), 128, (1, 2))),
        "negative stride": (wrong, one("float32", (2, 16), 128, (16, -1))),
        "no data": (wrong, one("float32", (2, 16), 0)),
        "huge": (wrong, one("float32", (2, 16), 128, (1 << 62, 1))),
    }


@pytest.mark.parametrize("case", list(_bad_inputs()))
def test_a_wrong_call_is_an_error(small: tuple[nn.Module, Path], runtime: Path, case: str) -> None:
    model, path = small
    status, inputs = _bad_inputs()[case]
    with Package.open(path, runtime) as package, package.instance() as fast:
        with pytest.raises(StandaloneError) as caught:
            fast.run(inputs())
        assert caught.value.status in (status, "GYR_ERROR_MEMORY" if case == "huge" else status)
        x = torch.randn(2, 16)
        with torch.no_grad():
            torch.testing.assert_close(_run(fast, x), [model(x)])  # still usable


def test_results_go_where_the_caller_wants_them(
    small: tuple[nn.Module, Path], runtime: Path
) -> None:
    model, path = small
    x = torch.randn(3, 16)
    with torch.no_grad():
        expected = model(x)
    with Package.open(path, runtime) as package, package.instance() as fast:
        for strides in (None, (4, 1), (1, 3), (9, 2)):
            place = Array("float32", (3, 4), bytes(4 * 40), strides)
            fast.run([_array(x)], outputs=[place])
            actual = _value(evolve(place, strides=strides or (4, 1)))
            torch.testing.assert_close(actual, expected)
        shared = _array(x)  # the result over the input that it is computed from
        over = raw_tensor(shared)
        over.sizes, over.strides = (c_int64 * 2)(3, 4), (c_int64 * 2)(4, 1)
        inputs = raw_tensor(shared)
        assert not package.library.gyr_run(fast.handle, 0, byref(inputs), 1, byref(over), 1)
        first = torch.frombuffer(shared.data, dtype=torch.float32)[:12]
        torch.testing.assert_close(first.reshape(3, 4), expected)


@pytest.mark.parametrize(
    "output",
    [
        Array("float32", (3, 5), bytes(60)),
        Array("float32", (12,), bytes(48)),
        Array("float64", (3, 4), bytes(96)),
        Array("float32", (3, 4), bytes(48), (4, -1)),
    ],
)
def test_a_buffer_that_does_not_fit(
    small: tuple[nn.Module, Path], runtime: Path, output: Array
) -> None:
    x = _array(torch.ones(3, 16))
    with (
        Package.open(small[1], runtime) as package,
        package.instance() as fast,
        pytest.raises(StandaloneError, match="GYR_ERROR_OUTPUT"),
    ):
        fast.run([x], outputs=[output])


def test_null_pointers_and_places_that_there_are_not(
    small: tuple[nn.Module, Path], runtime: Path
) -> None:
    x = _array(torch.ones(3, 16))
    with Package.open(small[1], runtime) as package, package.instance() as fast:
        lib, model, out = package.library, fast.handle, RawTensor()
        tensor, unaligned, elsewhere = (raw_tensor(x) for _ in range(3))
        unaligned.data += 1
        elsewhere.device_type = 2
        actual = [
            lib.gyr_run(None, 0, byref(tensor), 1, byref(out), 1),
            lib.gyr_run(model, 7, byref(tensor), 1, byref(out), 1),
            lib.gyr_run(model, 0, None, 1, byref(out), 1),
            lib.gyr_run(model, 0, byref(tensor), 1, None, 1),
            lib.gyr_package_entry(package.handle, 3, None),
            lib.gyr_package_weight(package.handle, 30, byref(out)),
            lib.gyr_instance_create(None, None, None),
            lib.gyr_instance_read(model, None, byref(out)),
            lib.gyr_package_open(None, None, None),
        ]
        assert actual == [1] * len(actual)
        for wrong in (unaligned, elsewhere):
            assert lib.gyr_run(model, 0, byref(wrong), 1, byref(out), 1) == 7
        lib.gyr_package_close(None)
        lib.gyr_instance_close(None)
        lib.gyr_tensor_release(None)


def test_a_profiler_sees_every_kernel(small: tuple[nn.Module, Path], runtime: Path) -> None:
    seen: list[tuple[str, int]] = []

    @CFUNCTYPE(None, c_void_p, c_char_p, c_int64)
    def note(_: object, kernel: bytes, nanoseconds: int) -> None:
        seen.append((kernel.decode(), nanoseconds))

    (entry,) = aot.inspect(small[1]).entries
    with Package.open(small[1], runtime) as package, package.instance() as fast:
        lib = package.library
        assert not lib.gyr_instance_profile(fast.handle, note, None)
        _run(fast, torch.ones(3, 16))
        assert {name for name, _ in seen} == {k.name for k in entry.programs[0].kernels}
        assert all(spent > 0 for _, spent in seen)
        assert not lib.gyr_instance_profile(fast.handle, None, None)
        seen.clear()
        _run(fast, torch.ones(3, 16))
        assert not seen


def test_weights_that_do_not_fit(small: tuple[nn.Module, Path], runtime: Path) -> None:
    path = small[1]
    with Package.open(path, runtime) as package, package.instance() as fast:
        before = bytes(fast.read("inner.bias").data)
        good = Array("float32", (32,), b"\1" * 128)
        for bad in (
            {"inner.bias": good, "inner.none": good},
            {"inner.bias": good, "outer": good},
            {"inner.bias": Array("float64", (32,), bytes(256))},
        ):
            with pytest.raises(StandaloneError, match="GYR_ERROR_WEIGHT"):
                fast.update(bad)
        assert bytes(fast.read("inner.bias").data) == before


def test_a_check_of_a_kernel(tmp_path: Path, runtime: Path) -> None:
    with _model(tmp_path, runtime, nn.Embedding(10, 4), torch.tensor([1, 2])) as fast:
        with pytest.raises(StandaloneError, match=r"GYR_ERROR_CHECK: .*index"):
            _run(fast, torch.tensor([1, 10]))
        _run(fast, torch.tensor([0, 9]))


def test_a_check_of_an_index_that_was_read(tmp_path: Path, runtime: Path) -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x[i[0].item()] + 1

    x, inside, outside = torch.randn(3, 4), torch.tensor([-3]), torch.tensor([3])
    with _model(tmp_path, runtime, Chosen(), x, inside) as fast:
        model = aot.load(tmp_path / "model.gya")
        with pytest.raises(StandaloneError, match=r"GYR_ERROR_CHECK: .*index out of range"):
            _run(fast, x, outside)
        with pytest.raises(IndexError, match="index out of range"):
            model(x, outside)
        torch.testing.assert_close(_run(fast, x, inside), [x[0] + 1])
        torch.testing.assert_close(model(x, inside), x[0] + 1)


def test_calls_of_operators_are_refused(tmp_path: Path) -> None:
    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x) + torch.fft.fft(x).abs()

    place = tmp_path / "refused.gya"
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(Calls(), (torch.eye(3),), package=place, runtime="standalone")
    assert caught.value.diagnostic.code == "GY-AOT-005"
    assert "aten._fft" in str(caught.value) and "aten.linalg_inv" in str(caught.value)
    assert not place.exists()
    with pytest.raises(OptionError, match="GY-AOT-002"):
        aot.compile(Calls(), (torch.eye(3),), package=place, runtime="rust")  # type: ignore[arg-type]


def test_the_library_has_the_functions_that_plans_may_call() -> None:
    text = (SOURCES / "src" / "program.cpp").read_text()
    for name in (*library.FUNCTIONS, *library.REFERENCES):
        assert f'{{"{name}", Call::k' in text
    plan = json.dumps([{"consts": [["HostFunction", "stack"], ["Operator", "aten.mm.default"]]}])
    assert unsupported_features(plan) == ("aten.mm.default", "stack")
    header = (SOURCES / "include" / "gyrator.h").read_text()
    for number, name in enumerate(DTYPES):
        assert f"GYR_{name.upper()} = {number}" in header


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    broken = evolve(_toolchain(), command=("false",))
    with pytest.raises(LibraryError, match="GY-BUILD-011"):
        SharedRuntime(broken).build(Cache(tmp_path))


def test_a_compiler_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_SECONDS", 0.1)
    hanging = evolve(_toolchain(), command=("sh", "-c", "sleep 600"))
    with pytest.raises(LibraryError, match=r"GY-BUILD-011: .*sh took more than 0\.1 s"):
        SharedRuntime(hanging).build(Cache(tmp_path))


# At length --------------------------------------------------------------------------------------


def _sanitized(folder: Path, *flags: str) -> str:
    # With the flags of test_libtorch_packages, so that most of the objects are compiled once.
    built = SharedRuntime(_toolchain(), ("-g", "-O0", *flags)).build(default_session().cache)
    place = folder / library.soname(library.LIBRARY)
    shutil.copyfile(built, place)
    return _driver(folder, place, *flags)


def _driver(folder: Path, runtime: Path, *flags: str) -> str:
    source, program = HERE / "standalone_driver.c", folder / "driver"
    inputs = [f"-I{SOURCES / 'include'}", str(runtime), "-lpthread", f"-Wl,-rpath,{runtime.parent}"]
    _called(["gcc", "-g", "-O1", *flags, str(source), "-o", str(program), *inputs])
    return str(program)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package whose results tell whether the weights are of one state."""
    path = tmp_path_factory.mktemp("pair") / "pair.gya"
    return aot.compile(Pair(), (torch.ones(8),), package=path, runtime="standalone")


def test_a_thousand_cycles_and_no_memory(
    small: tuple[nn.Module, Path], runtime: Path, tmp_path: Path
) -> None:
    driver = _driver(tmp_path, runtime)
    _called([driver, "cycles", str(small[1]), "1000"])
    _called([driver, "memory", str(small[1])])
    _called([driver, "place", str(small[1])])


def test_a_forked_caller(tmp_path: Path, runtime: Path) -> None:
    big = aot.compile(
        nn.GELU(), (torch.ones(1 << 20),), package=tmp_path / "big.gya", runtime="standalone"
    )
    threads = {**os.environ, "OMP_NUM_THREADS": "2"}
    _called([_driver(tmp_path, runtime), "fork", str(big)], env=threads)


def test_sanitizers_find_nothing(
    small: tuple[nn.Module, Path], pair: Path, tmp_path: Path, runtime: Path
) -> None:
    driver = _sanitized(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    branches = aot.compile(
        Branches(), (torch.ones(6),), package=tmp_path / "branches.gya", runtime="standalone"
    )
    returns = aot.compile(
        Returns(), (torch.ones(3, 4),), package=tmp_path / "returns.gya", runtime="standalone"
    )
    gives = aot.compile(
        Gives(), (torch.ones(4),), package=tmp_path / "gives.gya", runtime="standalone"
    )
    frozen = aot.compile(
        Frozen().eval(), (torch.ones(1, 3, 6, 6),), package=tmp_path / "frozen.gya",
        runtime="standalone", options={"freezing": True}, constants="load",
    )  # fmt: skip
    for path in (small[1], pair, branches, returns, gives, frozen):
        _called([driver, "memory", str(path)])
        _called([driver, "threads", str(pair), "20"])
        _called([driver, "fuzz", str(path), "200", "7"])


def test_threads_see_one_set_of_weights_or_the_other(pair: Path, tmp_path: Path) -> None:
    driver = _sanitized(tmp_path, "-fsanitize=thread")
    # The thread sanitizer does not know libgomp's barriers.
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    _called([driver, "threads", str(pair), "100"], env=alone)
