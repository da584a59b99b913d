"""The section of `gpu.py` about ahead-of-time packages: by Python, by the C libraries, and by C."""

import ctypes as c
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from attrs import frozen
from gpu_runtime import Clock, Row, attempt, differ
from torch import nn
from torch.export import Dim

from gyrator import aot
from gyrator.session import default_session
from gyrator_runtime.standalone import install, library, shared_runtime
from gyrator_runtime.standalone.ffi import (
    CUDA,
    DTYPES,
    Array,
    Instance,
    Package,
    RawTensor,
    StandaloneError,
    raw_tensor,
)
from gyrator_runtime.toolchain import find_toolchain

D = "cuda"
HERE = Path(__file__).parent
LIBTORCH = Path(torch.__file__).parent / "lib"
THREADS, CALLS, CYCLES = 8, 200, 1000
LIMIT_KIB = 1024
"""How much a process, or a device's memory, may grow in `CYCLES` cycles."""
Way = Literal["standalone", "libtorch"]
WAYS: tuple[Way, ...] = ("standalone", "libtorch")


class Mixed(nn.Module):
    """Products, attention, a weight that does not lie in order, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 64)
        self.outer = nn.Parameter(torch.randn(16, 64).t() / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 8, 32] -> [n, 8, 16]."""
        heads = nn.functional.gelu(self.inner(x)).unflatten(-1, (4, 16)).transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        y = attended.transpose(1, 2).flatten(2) @ self.outer
        return y.softmax(-1) + torch.arange(16, device=x.device)


class Image(nn.Module):
    """Convolutions, a batch norm, a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 8, 3, stride=2),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 3, 16, 16] -> [n, 8]."""
        found: torch.Tensor = self.body(x).mean((2, 3))
        return found


class Scaled(nn.Module):
    """Kernels alone, which compute nothing that is rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(16.0))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 16] -> [n, 16]."""
        self.calls.add_(1)
        return x + self.w


SHAPES = {Mixed: (8, 32), Image: (3, 16, 16), Scaled: (16,)}


@frozen(eq=False)
class Made:
    """A module, its packages by how they are run, and the C libraries."""

    module: nn.Module
    inner: tuple[int, ...]
    paths: dict[str, Path]
    libraries: dict[str, Path]

    def drawn(self, n: int) -> torch.Tensor:
        """Return an input of `n` rows."""
        return torch.randn(n, *self.inner, device=D)

    @contextmanager
    def opened(self, way: Way) -> Iterator[tuple[Package, Instance]]:
        """Open a package by a C library."""
        with ExitStack() as held:
            package = held.enter_context(Package.open(self.paths[way], self.libraries[way]))
            yield package, held.enter_context(package.instance())

    def wanted(self, x: torch.Tensor) -> torch.Tensor:
        """Return what eager mode gives."""
        with torch.no_grad():
            found: torch.Tensor = self.module(x)
        return found


def packages(clock: Clock, only: str) -> Iterator[Row]:
    """Packages on the device: results, streams, weights, memory, threads, cycles, errors."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with TemporaryDirectory() as folder:
        prefix = Path(folder) / "prefix"
        cache = default_session().cache
        tools = find_toolchain(os.environ, cache)
        install(prefix, *(shared_runtime(cache, tools, torch=t) for t in (False, True)))
        names = dict(zip(WAYS, (library.LIBRARY, library.TORCH_LIBRARY), strict=True))
        libraries = {way: prefix / "lib" / library.soname(name) for way, name in names.items()}
        made = {kind: _made(kind, Path(folder), libraries) for kind in SHAPES}
        checks: list[tuple[str, Callable[[], str]]] = []
        for kind, one in made.items():
            checks.append((f"python {kind.__name__}", partial(_python, one)))
            checks += [(f"{w} {kind.__name__}", partial(_by_c, one, w)) for w in WAYS]
        for check in (_same, _graphs, _captured, _python_threads, _python_cycles):
            checks.append((check.__name__.strip("_"), partial(check, made[Mixed])))
        for way in WAYS:
            for name, check in _CHECKS.items():
                checks.append((f"{way} {name}", partial(check, made[Scaled], way)))
            checks.append((f"{way} in C", partial(_in_c, made[Mixed], way, prefix)))
        for name, check in checks:
            if only in name and clock.left > 15:
                yield attempt({"case": name}, check)


def _made(kind: type[nn.Module], folder: Path, libraries: dict[str, Path]) -> Made:
    torch.manual_seed(0)
    module = kind().eval()
    given = (torch.randn(2, *SHAPES[kind]),)
    paths: dict[str, Path] = {}
    for way in ("python", *WAYS):
        paths[way] = aot.compile(
            module,
            given,
            dynamic_shapes=({0: Dim("n", min=1, max=64)},),
            target=D,
            runtime=way,
            package=folder / f"{kind.__name__}-{way}.gya",
        )
    return Made(module.to(D), SHAPES[kind], paths, libraries)


def _raw(tensor: torch.Tensor) -> RawTensor:
    """Return a tensor of torch's as the library takes it; it must live as long."""
    name = str(tensor.dtype).removeprefix("torch.")
    made = raw_tensor(Array(name, tuple(tensor.shape), b"", tensor.stride()))
    made.data = tensor.data_ptr()
    if tensor.device.type == D:
        made.device_type, made.device_index = CUDA, tensor.device.index
    return made


def _called(model: Instance, x: RawTensor, out: RawTensor | None = None, stream: int = 0) -> Any:
    """Call a model on a stream; return its result, which the caller releases."""
    given, results = (RawTensor * 1)(x), (RawTensor * 1)()
    if out is not None:
        results[0] = out
    run = model.library.gyr_run_on
    if status := run(model.handle, 0, given, 1, results, 1, c.c_void_p(stream)):
        name = model.library.gyr_status_name(status).decode()
        raise StandaloneError(name, model.library.gyr_last_error().decode())
    return results[0]


def _copied(raw: RawTensor) -> torch.Tensor:
    """Return a copy of a result, queued on torch's current stream."""
    sizes, strides = (tuple(of[: raw.ndim]) for of in (raw.sizes, raw.strides))
    dtype = getattr(torch, DTYPES[raw.dtype])
    size = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    described = {"shape": (size,), "typestr": f"<f{dtype.itemsize}", "data": (raw.data, False)}
    held = type("Held", (), {"__cuda_array_interface__": {**described, "version": 3}})()
    return torch.as_tensor(held, device=D).as_strided(sizes, strides).clone()


def _result(model: Instance, x: torch.Tensor, stream: int = 0) -> torch.Tensor:
    found = _called(model, _raw(x), stream=stream)
    copied = _copied(found)
    torch.cuda.synchronize()
    model.library.gyr_tensor_release(c.byref(found))
    return copied


# Results ----------------------------------------------------------------------------------------


def _python(made: Made) -> str:
    model = aot.load(made.paths["python"], device=f"{D}:0")
    wrong = ""
    for n in (1, 2, 5, 64):
        x = made.drawn(n)
        wrong = wrong or differ(model(x), made.wanted(x), 1e-4)
    return wrong


def _by_c(made: Made, way: Way) -> str:
    wrong = ""
    with made.opened(way) as (_, model):
        for n in (1, 2, 5, 64):
            x = made.drawn(n)
            torch.cuda.synchronize()
            if isinstance(made.module, Scaled):
                made.module.calls.zero_()
            wrong = wrong or differ(_result(model, x), made.wanted(x), 1e-4)
    return wrong


def _same(made: Made) -> str:
    """One file gives the same bits by Python and by both C libraries."""
    x = made.drawn(5)
    torch.cuda.synchronize()
    found = [aot.load(made.paths["standalone"])(x)]
    for way in WAYS:
        place = made.libraries[way]
        with Package.open(made.paths["standalone"], place) as package, package.instance() as model:
            found.append(_result(model, x))
    return differ(found[1:], [found[0]] * 2, 0)


def _graphs(made: Made) -> str:
    """Graphs of the device, where a user turns them on, in Python."""
    path = made.paths["python"].with_name("graphs.gya")
    x = made.drawn(4)
    aot.compile(made.module, (x,), package=path, options={"device_graphs": True})
    model, wrong = aot.load(path), ""
    for _ in range(5):
        x = made.drawn(4)
        wrong = wrong or differ(model(x), made.wanted(x), 1e-4)
    return wrong


# Life -------------------------------------------------------------------------------------------


def _stream(made: Made, way: Way) -> str:
    """Work is queued on the caller's stream, behind what is there."""
    side = torch.cuda.Stream()
    x, y = torch.zeros(8, 16, device=D), torch.randn(8, 16, device=D)
    torch.cuda.synchronize()
    with made.opened(way) as (_, model), torch.cuda.stream(side):
        _result(model, x)  # the driver loads kernels at their first launch, and waits
        torch.cuda._sleep(500_000_000)
        x.copy_(y)
        found = _called(model, _raw(x), stream=side.cuda_stream)
        if side.query():
            return "the call waited"
        copied = _copied(found)
        side.synchronize()
        model.library.gyr_tensor_release(c.byref(found))
    return differ(copied, made.wanted(y), 0)


def _unaligned(made: Made, way: Way) -> str:
    with made.opened(way) as (_, model):
        x = torch.randn(1 + 16 * 6, device=D)[1:].view(6, 16)
        torch.cuda.synchronize()
        return differ(_result(model, x), made.wanted(x), 0)


def _weights(made: Made, way: Way) -> str:
    """Weights of the host and of the device replace those of one instance; others keep theirs."""
    x, ones = torch.randn(4, 16, device=D), Array("float32", (16,), torch.ones(16).numpy())
    torch.cuda.synchronize()
    with made.opened(way) as (package, model), package.instance() as other:
        model.update({"w": ones})
        wrong = differ(_result(model, x), x + 1, 0)
        given, names = torch.full((16,), 2.0, device=D), (c.c_char_p * 1)(b"w")
        torch.cuda.synchronize()
        if model.library.gyr_instance_update(model.handle, names, c.byref(_raw(given)), 1):
            return "a weight of the device is refused"
        wrong = wrong or differ(_result(model, x), x + 2, 0)
        return wrong or differ(_result(other, x), made.wanted(x), 0)


def _buffers(made: Made, way: Way) -> str:
    """Results go where the caller wants them: in other strides, and over the input."""
    wrong = ""
    with made.opened(way) as (_, model):
        for strides in ((16, 1), (1, 3), (40, 2)):
            x = torch.randn(3, 16, device=D)
            place = torch.zeros(200, device=D).as_strided((3, 16), strides)
            torch.cuda.synchronize()
            _called(model, _raw(x), _raw(place))
            torch.cuda.synchronize()
            wrong = wrong or differ(place, made.wanted(x), 0)
        wanted = made.wanted(x)
        torch.cuda.synchronize()
        _called(model, _raw(x), _raw(x))
        torch.cuda.synchronize()
        return wrong or differ(x, wanted, 0)


def _allocator(made: Made, way: Way) -> str:
    """The caller's allocator gives memory; where it has none, the call fails and the next one
    works."""
    held: dict[int, torch.Tensor] = {}
    left = [1 << 20]

    @c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_size_t, c.c_size_t)
    def allocate(_: object, size: int, alignment: int) -> int | None:
        left[0] -= 1
        if left[0] < 0:
            return None
        room = torch.empty(size, dtype=torch.uint8, device=D)
        held[room.data_ptr()] = room
        return room.data_ptr()

    @c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_size_t)
    def free(_: object, data: int, size: int) -> None:
        del held[data]

    own = (c.c_void_p * 3)(None, c.cast(allocate, c.c_void_p), c.cast(free, c.c_void_p))
    x, handle = torch.randn(7, 16, device=D), c.c_void_p()
    with Package.open(made.paths[way], made.libraries[way]) as package:
        if package.library.gyr_instance_create(package.handle, own, c.byref(handle)):
            return "there is no instance"
        with Instance(package.library, handle, [1]) as model:
            kept = len(held)
            for tries in range(20):
                left[0] = tries
                try:
                    wrong = differ(_result(model, x), made.wanted(x), 0)
                except StandaloneError as error:
                    if error.status != "GYR_ERROR_MEMORY" or len(held) != kept:
                        return f"{error}; {len(held) - kept} are kept"
                    continue
                if not tries or len(held) != kept:
                    return "nothing is allocated" if not tries else "something is kept"
                break
    return wrong or (f"{len(held)} are left" if held else "")


def _refuses(made: Made, way: Way) -> str:
    """A device that there is not, and tensors of the host, are errors; the model stays usable."""
    count = torch.cuda.device_count()
    try:
        Package.open(made.paths[way], made.libraries[way], device=count)
        return f"{D}:{count} is taken"
    except StandaloneError as error:
        if error.status != "GYR_ERROR_MISFIT":
            return str(error)
    x = torch.randn(2, 16)
    with made.opened(way) as (_, model):
        try:
            _called(model, _raw(x))
            return "a tensor of the host is taken"
        except StandaloneError as error:
            if error.status != "GYR_ERROR_INPUT":
                return str(error)
        x = x.to(D)
        torch.cuda.synchronize()
        return differ(_result(model, x), made.wanted(x), 0)


def _context(made: Made, way: Way) -> str:
    """A thread without a current device calls, and has none afterwards."""
    x = torch.randn(2, 16, device=D)
    torch.cuda.synchronize()
    driver, found = c.CDLL("libcuda.so.1"), []

    def work(model: Instance) -> None:
        result, context = _called(model, _raw(x)), c.c_void_p()
        driver.cuCtxGetCurrent(c.byref(context))
        model.library.gyr_tensor_release(c.byref(result))
        found.append(context.value)

    with made.opened(way) as (_, model):
        thread = threading.Thread(target=work, args=(model,))
        thread.start()
        thread.join()
    return "" if found == [None] else f"a context is left: {found}"


def _captured(made: Made) -> str:
    """A caller captures a call on its stream, with a result in its own memory, and replays it."""
    driver, side = c.CDLL("libcuda.so.1"), torch.cuda.Stream()
    x = made.drawn(4)
    place = torch.zeros_like(made.wanted(x))
    stream, graph, ready = c.c_void_p(side.cuda_stream), c.c_void_p(), c.c_void_p()
    torch.cuda.synchronize()
    wrong = ""
    with made.opened("standalone") as (_, model):
        _called(model, _raw(x), _raw(place), side.cuda_stream)
        side.synchronize()
        steps = [driver.cuStreamBeginCapture_v2(stream, 2)]
        _called(model, _raw(x), _raw(place), side.cuda_stream)
        steps.append(driver.cuStreamEndCapture(stream, c.byref(graph)))
        steps.append(driver.cuGraphInstantiateWithFlags(c.byref(ready), graph, c.c_ulonglong(0)))
        for _ in range(3):
            x.copy_(made.drawn(4))
            torch.cuda.synchronize()
            steps.append(driver.cuGraphLaunch(ready, stream))
            side.synchronize()
            wrong = wrong or differ(place, made.wanted(x), 1e-4)
        driver.cuGraphExecDestroy(ready)
        driver.cuGraphDestroy(graph)
    return f"the driver says {steps}" if any(steps) else wrong


def _threads(made: Made, way: Way) -> str:
    """Threads call one instance, each on its own stream, while another replaces its weights."""
    with made.opened(way) as (_, model):

        def work() -> str:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = torch.zeros(4, 16, device=D)
                for _ in range(CALLS):
                    result = _called(model, _raw(x), stream=stream.cuda_stream)
                    found = _copied(result)
                    stream.synchronize()
                    model.library.gyr_tensor_release(c.byref(result))
                    if len(found.unique()) != 1:
                        return "a call saw weights of two states"
            return ""

        model.update({"w": Array("float32", (16,), torch.zeros(16).numpy())})
        wrong: list[str] = []
        workers = [threading.Thread(target=lambda: wrong.append(work())) for _ in range(THREADS)]
        for worker in workers:
            worker.start()
        for k in range(50):
            filled = torch.full((16,), float(k)).numpy()
            model.update({"w": Array("float32", (16,), filled)})
        for worker in workers:
            worker.join()
    return "".join(sorted(set(wrong))) if len(wrong) == THREADS else "a thread ended early"


def _python_threads(made: Made) -> str:
    """Threads call one instance by Python, each on its own stream."""
    model = aot.load(made.paths["python"])
    x = made.drawn(4)
    wanted, wrong = made.wanted(x), []
    torch.cuda.synchronize()

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = ""
            for _ in range(CALLS):
                found = found or differ(model(x), wanted, 1e-4)
            wrong.append(found)

    workers = [threading.Thread(target=work) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return "".join(sorted(set(wrong))) if len(wrong) == THREADS else "a thread ended early"


def _python_cycles(made: Made) -> str:
    """Loads, calls and drops leave nothing in the process or on the device."""
    x, before = made.drawn(4), (0, 0)
    for cycle in range(20 + CYCLES):
        if cycle == 20:
            before = _used()
        aot.load(made.paths["python"])(x)
        torch.cuda.synchronize()
    return _grown([after - b for after, b in zip(_used(), before, strict=True)])


def _used() -> tuple[int, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    free, total = torch.cuda.mem_get_info()
    return pages * resource.getpagesize() // 1024, (total - free) // 1024


def _grown(kib: Sequence[int]) -> str:
    grown = f"{kib[0]} KiB of the process, {kib[1]} KiB of the device"
    print(f"{CYCLES} cycles: {grown}", flush=True)
    return grown if max(kib) > LIMIT_KIB else ""


def _in_c(made: Made, way: Way, prefix: Path) -> str:
    """A program without Python: its results, threads on one instance, and cycles."""
    program = prefix / f"gpu_package-{way}"
    linked = ["-lgyrator_runtime"]
    if way == "libtorch":
        found = ["-ltorch_cpu", "-lc10", "-ltorch_cuda", f"-Wl,-rpath,{LIBTORCH}"]
        linked = ["-lgyrator_torch", "-Wl,--no-as-needed", f"-L{LIBTORCH}", *found]
        linked.append("-Wl,--allow-shlib-undefined")  # what they need is found by their own paths
    place = [f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib"]
    source = str(HERE / "gpu_package.c")
    built = ["gcc", "-std=c11", "-O1", source, "-o", str(program), *place, *linked]
    counts = [str(n) for n in (THREADS, CALLS, CYCLES)]
    for command in ([*built, "-ldl", "-lpthread"], [str(program), str(made.paths[way]), *counts]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"{done.returncode}: {done.stderr[-800:]}"
    numbers, wrong, *grown = done.stdout.splitlines()
    print(f"after each quarter, KiB: {grown}", flush=True)
    given = torch.tensor([float(n) for n in numbers.split()])
    wanted = made.wanted(torch.ones(3, *made.inner, device=D)).flatten().cpu()
    if wrong != "0":
        return f"{wrong} threads of {THREADS} saw other results"
    return differ(given, wanted, 1e-4) or _grown([int(n) for n in grown[-1].split()])


_CHECKS: dict[str, Callable[[Made, Way], str]] = {
    check.__name__.strip("_"): check
    for check in (
        _stream, _unaligned, _weights, _buffers, _allocator, _refuses, _context, _threads,
    )
}  # fmt: skip
