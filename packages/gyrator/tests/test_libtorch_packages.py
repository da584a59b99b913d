"""The C library with libtorch: packages that call operators give what eager mode gives."""

import os
import shutil
import subprocess
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import gyrator.aot as aot
from gyrator.autotune.library import LibraryChoice, Measure, available
from gyrator.session import default_session
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_lowering.fx_passes.products.pack_weights import Packed
from gyrator_runtime.standalone import SharedRuntime, install, library, shared_runtime
from gyrator_runtime.standalone.ffi import Array, Instance, Package, StandaloneError
from gyrator_runtime.toolchain import find_toolchain

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "runtime" / "examples"
LIBTORCH = Path(torch.__file__).parent / "lib"


class Calls(nn.Module):
    """A convolution, products, attention, the largest, transforms and a scattered sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.inner(self.conv(x).relu().flatten(2).transpose(1, 2))
        q = y.unsqueeze(1)
        a = nn.functional.scaled_dot_product_attention(q, q, q).squeeze(1)
        values, indices = torch.topk(self.outer(a), 4)
        waves = torch.fft.rfft(a, dim=-1).abs()
        summed = torch.zeros(16).scatter_reduce(0, indices[0, :, 0], values[0, :, 0], "sum")
        return values, indices, waves, summed, torch.fft.ifft(waves).conj()


class Raises(nn.Module):
    """An operator that fails in every call, behind one that does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(torch.topk(x, 4).values * 0, 1)


class Twice(nn.Module):
    """A custom operator behind a product."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.gyrator_tests.twice(self.linear(x)) + 1


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both libraries are installed."""
    cache = default_session().cache
    toolchain = find_toolchain(os.environ, cache)
    folder = tmp_path_factory.mktemp("prefix")
    install(folder, *(shared_runtime(cache, toolchain, torch=torch) for torch in (False, True)))
    return folder


@pytest.fixture(scope="module")
def runtime(prefix: Path) -> Path:
    """The library with libtorch."""
    return prefix / "lib" / library.soname(library.TORCH_LIBRARY)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a custom operator, which this process has loaded."""
    file = tmp_path_factory.mktemp("twice") / "libtwice.so"
    place = [f"-L{LIBTORCH}", "-Wl,--no-as-needed", "-ltorch_cpu", f"-Wl,-rpath,{LIBTORCH}"]
    _called(["g++", "-shared", "-fPIC", str(HERE / "twice.cpp"), "-o", str(file), *place])
    torch.ops.load_library(file)

    @torch.library.register_fake("gyrator_tests::twice")
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    return file


@pytest.fixture
def libtorch(request: pytest.FixtureRequest) -> Path:
    """What C programs load: of the torch that compiles, or of another version."""
    chosen: Path | None = request.config.getoption("--libtorch")
    return chosen or LIBTORCH


def _called(command: list[str], **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _array(tensor: torch.Tensor) -> Array:
    arranged = tensor.contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    return Array(name, tuple(tensor.shape), arranged.numpy().tobytes())


def _value(array: Array) -> torch.Tensor:
    assert array.strides is not None
    dtype = getattr(torch, array.dtype)
    if not array.data:
        return torch.empty(array.sizes, dtype=dtype)
    return torch.frombuffer(array.data, dtype=dtype).as_strided(array.sizes, array.strides)


def _run(model: Instance, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return [_value(a) for a in model.run([_array(i) for i in inputs])]


def _model(folder: Path, runtime: Path, module: nn.Module, *inputs: Any, **more: Any) -> Instance:
    path = aot.compile(module, inputs, package=folder / "model.gya", runtime="libtorch", **more)
    with Package.open(path, runtime, verify=True) as package:
        return package.instance()


def test_operators_give_what_eager_mode_gives(tmp_path: Path, runtime: Path) -> None:
    torch.manual_seed(0)
    model = Calls().eval()
    shapes = ({0: Dim("batch", min=1, max=9)},)
    with _model(tmp_path, runtime, model, torch.randn(2, 3, 6, 6), dynamic_shapes=shapes) as fast:
        for n in (1, 2, 5):
            x = torch.randn(n, 3, 6, 6)
            with torch.no_grad():
                torch.testing.assert_close(_run(fast, x), list(model(x)), rtol=1e-4, atol=1e-4)
    manifest = aot.inspect(tmp_path / "model.gya")
    called = {o.name for o in manifest.operators}
    assert called >= {"aten.convolution.default", "aten.mm.out", "aten.topk.default"}
    assert called == {name for p in manifest.entries[0].programs for name in p.calls}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_products_of_all_kinds(
    tmp_path: Path, runtime: Path, dtype: torch.dtype, rows: int
) -> None:
    class Products(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            one = torch.addmm(c, a, b, beta=2, alpha=3)
            return torch.baddbmm(one[None], a[None], b[None]) + torch.bmm(a[None], b[None])

    def made() -> tuple[torch.Tensor, ...]:
        return tuple((torch.randn(s) * 4).to(dtype) for s in ((rows, 5), (5, 3), (rows, 3)))

    with _model(tmp_path, runtime, Products(), *made()) as fast:
        inputs = made()
        torch.testing.assert_close(
            [_value_of(fast, inputs)], [Products()(*inputs)], check_stride=False
        )


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 33)])
def test_sorts_of_booleans(tmp_path: Path, runtime: Path, shape: tuple[int, int]) -> None:
    class Sorts(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            up = torch.sort(x, dim=0, stable=True)
            down = torch.sort(x.t(), dim=0, descending=True, stable=True)
            return *up, *down, torch.sort(x, dim=-1).values

    shapes = ({0: Dim.DYNAMIC},) if shape[0] > 1 else None
    example = torch.rand(shape) < 0.5
    with _model(tmp_path, runtime, Sorts(), example, dynamic_shapes=shapes) as fast:
        for rows in {shape[0], 9 if shapes else shape[0]}:
            x = torch.rand(rows, shape[1]) < 0.5
            actual = [_value(a) for a in fast.run([_raw(x)])]
            torch.testing.assert_close(actual, list(Sorts()(x)), rtol=0, atol=0)
    called = {o.name for o in aot.inspect(tmp_path / "model.gya").operators}
    assert called == {"aten.sort.default", "aten.sort.stable"}


def _value_of(fast: Instance, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    (actual,) = fast.run([_raw(t) for t in inputs])
    return _value(actual)


def _raw(tensor: torch.Tensor) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    return Array(name, tuple(tensor.shape), _bytes(tensor))


def _bytes(tensor: torch.Tensor) -> bytes:
    plain: Any = tensor.contiguous().view(torch.uint8) if tensor.numel() else torch.empty(0)
    return bytes(plain.numpy().tobytes()) if tensor.numel() else b""


def _linked(source: Path, program: Path, prefix: Path, libtorch: Path, *more: str) -> str:
    place = [f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib:{libtorch}"]
    libraries = ["-lgyrator_torch", "-Wl,--no-as-needed", f"-L{LIBTORCH}", "-ltorch_cpu", "-lc10"]
    inputs = ["gcc", "-g", "-O1", str(source), "-o", str(program), *place, *libraries, *more]
    _called([*inputs, "-lpthread"])
    return str(program)


def test_a_custom_operator_in_c(prefix: Path, twice: Path, libtorch: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Twice().eval()
    shapes = ({0: Dim("batch", min=1, max=64)},)
    inputs = (torch.randn(2, 16),)
    path = aot.compile(
        model, inputs, dynamic_shapes=shapes, package=tmp_path / "twice.gya", runtime="libtorch"
    )
    program = _linked(EXAMPLES / "call.c", tmp_path / "call", prefix, libtorch, str(twice))
    lines = _called([program, str(path)], env={"PATH": ""}).split()
    with torch.no_grad():
        expected = model(torch.ones(3, 16)).flatten()
    torch.testing.assert_close(torch.tensor([float(n) for n in lines]), expected)
    loaded = _called(["ldd", program])
    assert "libpython" not in loaded
    assert f"{libtorch}/libtorch_cpu.so" in loaded


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_cmake_finds_the_library(prefix: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(example LANGUAGES CXX)\n"
        "find_package(gyrator 1 REQUIRED)\n"
        f"add_executable(call {EXAMPLES}/call.cpp)\n"
        "target_compile_features(call PRIVATE cxx_std_17)\n"
        "target_link_libraries(call PRIVATE gyrator::torch)\n"
    )
    build = tmp_path / "build"
    where = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DGYRATOR_LIBTORCH={LIBTORCH}"]
    _called(["cmake", "-S", str(source), "-B", str(build), *where])
    _called(["cmake", "--build", str(build)])
    model = nn.Linear(16, 4, bias=False)
    x = torch.ones(3, 16)
    path = aot.compile(model, (x,), package=tmp_path / "linear.gya", runtime="libtorch")
    lines = _called([f"{build}/call", str(path), "3", "16"]).split()
    actual = torch.tensor([float(n) for n in lines])
    torch.testing.assert_close(actual, model(x).detach().flatten(), rtol=1e-5, atol=1e-5)


def test_a_failed_operator_is_an_error(tmp_path: Path, runtime: Path) -> None:
    class Draws(nn.Module):
        def forward(self, chances: torch.Tensor) -> torch.Tensor:
            return torch.multinomial(chances, 1)

    with _model(tmp_path, runtime, Draws(), torch.eye(4)) as fast:
        with pytest.raises(StandaloneError, match="GYR_ERROR_OPERATOR"):
            _run(fast, torch.zeros(4, 4))
        torch.testing.assert_close(_run(fast, torch.eye(4)), [torch.arange(4)[:, None]])


def test_the_other_library_refuses_it(tmp_path: Path, prefix: Path) -> None:
    path = tmp_path / "model.gya"
    aot.compile(nn.Linear(4, 4), (torch.ones(2, 4),), package=path, runtime="libtorch")
    plain = prefix / "lib" / library.soname(library.LIBRARY)
    with pytest.raises(StandaloneError, match=r"GYR_ERROR_MISFIT: .*libgyrator_torch"):
        Package.open(path, plain)
    x = torch.randn(2, 4)
    loaded = aot.load(path)  # Python runs it, too
    assert loaded(x).shape == (2, 4)


def test_it_runs_what_calls_nothing(tmp_path: Path, runtime: Path) -> None:
    path = tmp_path / "model.gya"
    aot.compile(nn.Softmax(-1), (torch.ones(2, 4),), package=path, runtime="standalone")
    x = torch.randn(2, 4)
    with Package.open(path, runtime) as package, package.instance() as fast:
        torch.testing.assert_close(_run(fast, x), [x.softmax(-1)])


def test_what_the_abi_does_not_pass_is_refused(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.gyrator_tests.scaled(x, 2.5)

    with torch.library._scoped_library("gyrator_tests", "FRAGMENT") as defined:
        defined.define("scaled(Tensor x, Scalar by) -> Tensor")
        defined.impl("scaled", lambda x, by: x * by, "CompositeExplicitAutograd")
        torch.library.register_fake("gyrator_tests::scaled", lambda x, by: x * 1, lib=defined)
        with pytest.raises(
            UnsupportedError, match=r"scaled\.default \(its argument by is a Scalar"
        ):
            aot.compile(
                Scaled(), (torch.ones(3),), package=tmp_path / "model.gya", runtime="libtorch"
            )


@pytest.mark.skipif(not available(), reason="this torch has no oneDNN for exact products")
def test_products_of_onednn_run(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LibraryChoice, "__call__", lambda *_: True)
    layer, x = nn.Linear(16, 8), torch.randn(4, 16)
    with _model(tmp_path, runtime, layer, x) as fast:
        torch.testing.assert_close(_run(fast, x), [layer(x).detach()])
    (operator,) = aot.inspect(tmp_path / "model.gya").operators
    assert operator.name == "mkldnn._linear_pointwise.default"


@pytest.mark.parametrize("when", ["compile", "load"])
@pytest.mark.parametrize(
    ("library", "whole"), [("onednn", False), ("onednn", True), ("mkl", False)]
)
def test_weights_are_packed_when_it_is_opened(
    tmp_path: Path,
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    whole: bool,
    when: Any,
) -> None:
    """Again for a weight that is replaced, if constants are computed from it."""
    if library == "mkl" and not torch._C.has_mkl:
        pytest.skip("this torch has no MKL")

    def network() -> nn.Sequential:
        torch.manual_seed(next(seeds))
        layers = nn.Conv2d(3, 6, 3), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(6 * 36, 40)
        return nn.Sequential(*layers, nn.GELU(), nn.Linear(40, 4), nn.LeakyReLU(0.2)).eval()

    seeds = count()
    model, other, x = network(), network(), torch.randn(4, 3, 8, 8)
    monkeypatch.setattr(LibraryChoice, "packed", lambda *_: Packed(library, whole))
    monkeypatch.setattr(Measure, "keeps", lambda *_: True)
    chosen = {"options": {"freezing": True}, "constants": when}
    with _model(tmp_path, runtime, model, x, **chosen) as fast, torch.no_grad():
        torch.testing.assert_close(_run(fast, x), [model(x)], rtol=1e-4, atol=1e-5)
        if when == "load":
            state = other.state_dict()
            fast.update({name: _array(tensor) for name, tensor in state.items()})
            torch.testing.assert_close(_run(fast, x), [other(x)], rtol=1e-4, atol=1e-5)
    packed = [p.operator for p in aot.inspect(tmp_path / "model.gya").entries[0].packed]
    linear = {"onednn": "mkldnn.", "mkl": "mkl._mkl"}[library]
    assert [name.split("_reorder")[0] for name in packed] == ["mkldnn.", linear, linear]


def test_instances_share_packed_weights(tmp_path: Path, runtime: Path) -> None:
    model, x = nn.Conv2d(512, 1024, 4, bias=False).eval(), torch.randn(1, 512, 5, 5)
    path = tmp_path / "model.gya"
    options = {"freezing": True}
    aot.compile(model, (x,), package=path, runtime="libtorch", options=options)
    weight = 4 * model.weight.numel()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with Package.open(path, runtime) as package, package.instance() as first:
        before = resident()
        with package.instance() as second:
            assert resident() - before < weight / 2
            with torch.no_grad():
                eager = model(x)
            for instance in (first, second):
                torch.testing.assert_close(_run(instance, x), [eager], rtol=1e-4, atol=1e-4)


def test_nothing_is_kept(tmp_path: Path, prefix: Path, libtorch: Path) -> None:
    driver = _linked(HERE / "standalone_driver.c", tmp_path / "driver", prefix, libtorch)
    path = str(_calls(tmp_path))
    _called([driver, "cycles", path, "200"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    _called([driver, "memory", path])


def test_sanitizers_find_nothing(tmp_path: Path, libtorch: Path, twice: Path) -> None:
    # Without optimisation the library builds in half the time.
    flags = ("-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    cache = default_session().cache
    toolchain = find_toolchain(os.environ, cache)
    install(tmp_path, SharedRuntime(toolchain, flags, torch=True).build(cache))
    source, program = HERE / "standalone_driver.c", tmp_path / "driver"
    driver = _linked(source, program, tmp_path, libtorch, *flags)
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    calls = str(_calls(tmp_path))
    _called([driver, "memory", calls], env=alone)
    _called([driver, "threads", calls, "10"], env=alone)
    _called([driver, "fuzz", calls, "100", "7"], env=alone)
    raises = tmp_path / "raises.gya"
    aot.compile(Raises(), (torch.ones(4, 4),), package=raises, runtime="libtorch")
    with pytest.raises(AssertionError, match=r"aten\.multinomial\.default"):
        _called([driver, "memory", str(raises)], env=alone)
    lacks = tmp_path / "lacks.gya"  # an operator, since no library of its own is loaded there
    aot.compile(Twice(), (torch.ones(2, 16),), package=lacks, runtime="libtorch")
    # Each copy that opens fails when it is called: whatever its arguments were is freed.
    for wrong in (raises, lacks):
        _called([driver, "fuzz", str(wrong), "100", "7"], env=alone)


@pytest.mark.long  # the sources that both libraries share are examined in test_standalone
def test_threads_share_what_no_call_writes(tmp_path: Path, libtorch: Path) -> None:
    flags = ("-g", "-O0", "-fsanitize=thread")
    cache = default_session().cache
    toolchain = find_toolchain(os.environ, cache)
    install(tmp_path, SharedRuntime(toolchain, flags, torch=True).build(cache))
    source, program = HERE / "standalone_driver.c", tmp_path / "driver"
    driver = _linked(source, program, tmp_path, libtorch, *flags)
    # libtorch is not instrumented: what its own threads' locks order cannot be seen.
    alone = {"OMP_NUM_THREADS": "1", "TSAN_OPTIONS": "ignore_noninstrumented_modules=1"}
    _called([driver, "threads", str(_calls(tmp_path)), "20"], env={**os.environ, **alone})


def _calls(folder: Path) -> Path:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, 6, 6),)
    chosen = {"options": {"freezing": True}, "constants": "load", "runtime": "libtorch"}
    return aot.compile(Calls().eval(), inputs, package=folder / "calls.gya", **chosen)
