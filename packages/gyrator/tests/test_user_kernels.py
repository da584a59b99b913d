"""Users' Triton kernels in compiled graphs. Triton's interpreter runs them, for there is no GPU."""

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
import user_kernels as u
from triton.runtime.autotuner import Autotuner

from gyrator import Session
from gyrator.graphs.graph_key import graph_bytes, traced_bytes
from gyrator.options import Options
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.host.nodes import TmaDescriptor, TritonLaunch
from gyrator_ir.loop.nodes import UserTritonKernel
from gyrator_ir.loop.parse import parse
from gyrator_ir.loop.print import show
from gyrator_ir.loop.verify import verify
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_lowering.user_kernels.text import kernel_text
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels that are defined from now on are interpreted; an autotuner takes its last choice."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    monkeypatch.setattr(Autotuner, "_bench", lambda self, *_, config, **__: [-config.num_warps])


@pytest.fixture
def session(tmp_path):
    with Session(options={"strict": True}) as opened:
        yield opened


def compiled(session, graph, **options):
    return session.engine(Options(strict=True, **options)).compile(graph, "inference").call


def chain(x, z):
    n = x.shape[0]
    y = torch.empty_like(x)
    grid = [((n + 31) // 32, 1, 1)]
    y = u.launch(u.scale, grid, {"BLOCK": 32}, ["y"], x=x, y=y, n=n)["y"]
    grids = [((n + 28) // 32, 1, 1), ((n + 60) // 64, 1, 1)]
    constants = {"MODE": "double"}
    w = u.launch(u.tuned, grids, constants, ["y"], x=y[3:], y=z[3:], n=n - 3)["y"]
    return y * 2, w, z + 1


def chained(x, z):
    y = 3 * x + 1
    return y * 2, (y[3:] + z[3:]) * 2, z + 1


@pytest.mark.parametrize("wrapper", ["python", "fx", "cpp"])
def test_every_host_language_launches_them(wrapper, session, request):
    x, z = torch.randn(100), torch.randn(100)
    graph = u.traced(chain, x, z)
    request.getfixturevalue("interpreted")  # PyTorch traces what Triton would compile
    call = compiled(session, graph, wrapper=wrapper)
    for _ in range(2):
        inputs = [x.clone(), z.clone()]
        for got, want in zip(call(inputs), chained(x, z), strict=True):
            torch.testing.assert_close(got, want)


def test_sizes_that_are_not_known(session, request):
    graph = u.traced(chain, torch.randn(70), torch.randn(70), dynamic=True)
    assert not any("_idx" in line for line in graph_bytes(graph).decode().splitlines())
    request.getfixturevalue("interpreted")
    call = compiled(session, graph)
    for n in (70, 5, 131):
        x, z = torch.randn(n), torch.randn(n)
        sizes = [n] * (len(graph.graph.find_nodes(op="placeholder")) - 2)
        for got, want in zip(call([*sizes, x, z]), chained(x, z), strict=True):
            torch.testing.assert_close(got, want)


def test_views_with_gaps_keep_their_strides(session, request):
    """A kernel is told strides when it is traced: its arguments must have them."""

    def function(x):
        part = x[:, ::2]
        n = 2 * part.numel() - 1
        grid, constants = [((n + 31) // 32, 1, 1)], {"BLOCK": 32}
        other = torch.zeros(n)
        other = u.launch(u.scale, grid, constants, ["y"], x=part, y=other, n=n)["y"]
        turned = x.sin().t()
        other2 = torch.zeros(12)
        other2 = u.launch(u.scale, grid, constants, ["y"], x=turned, y=other2, n=12)["y"]
        return other, other2

    x = torch.randn(3, 4)
    graph = u.traced(function, x)
    request.getfixturevalue("interpreted")
    one, two = compiled(session, graph)([x])
    torch.testing.assert_close(one, 3 * x.flatten()[:11] + 1)
    torch.testing.assert_close(two, 3 * x.sin().flatten() + 1)


def lowered(graph, session):
    targets = {d: t for d, (_, t) in session.targets.items()}
    program = verify(lower(graph, LoweringOptions(), targets))
    assert parse(show(program)) == program
    return program


def test_where_nobody_reads_the_old_values_there_is_no_copy(session):
    def function(x, z):
        y = u.launch(u.scale, [(4, 1, 1)], {"BLOCK": 32}, ["y"], x=x, y=x + z, n=100)["y"]
        return (u.launch(u.scale, [(4, 1, 1)], {"BLOCK": 32}, ["y"], x=x, y=y, n=100)["y"],)

    program = lowered(u.traced(function, torch.randn(100), torch.randn(100)), session)
    assert len(program.buffers) == 1
    launches = [op for op in program.operations if isinstance(op, UserTritonKernel)]
    assert [op.mutates for op in launches] == [("buf0",)] * 2


def test_a_kernel_that_may_write_more_is_taken_to_write_everything(session):
    def function(x, z):
        actual = u.launch(u.hidden, [(4, 1, 1)], {}, [], descriptor=x, other=z, n=100)
        assert not actual
        return (x + z,)

    program = lowered(u.traced(function, torch.randn(100), torch.randn(100)), session)
    (launch,) = (op for op in program.operations if isinstance(op, UserTritonKernel))
    assert launch.mutates == ("x_1", "z_1")


@pytest.mark.parametrize("form", ["stable", "experimental", "dynamic"])
def test_descriptors(form, session):
    def function(x):
        metadata = {"stable": ("stable", ([8],)), "experimental": ("experimental", ([64], [8], 4))}
        block = metadata.get(form, ("stable", ([x.shape[0]],)))
        u.launch(u.hidden, [(4, 1, 1)], {}, [], tma={"descriptor": block}, descriptor=x, n=1)
        return (x + 1,)

    graph = u.traced(function, torch.randn(64), dynamic=form == "dynamic")
    if form != "stable":
        with pytest.raises(GyratorError) as caught:
            lowered(graph, session)
        assert caught.value.diagnostic.code == "GY-LOWER-013"
        return
    program = lowered(graph, session)
    targets = {d: t for d, (_, t) in session.targets.items()}
    options = SchedulerOptions()
    host = plan_host(schedule(program, options, targets), options, targets)
    (result,) = (i for i in host.instructions if isinstance(i, TmaDescriptor))
    (launch,) = (i for i in host.instructions if isinstance(i, TritonLaunch))
    assert result.stable and [b.value for b in result.block] == [8]
    assert dict(launch.args)["descriptor"].name == result.name


def test_programs_are_known_by_their_kernels_text(session):
    def graph(kernel, block=32):
        constants = {"BLOCK": block}
        function = lambda x: (u.launch(kernel, [(1,)], constants, ["y"], x=x, y=x, n=1)["y"],)  # noqa: E731
        return u.traced(function, torch.randn(4))

    first = graph_bytes(graph(u.scale))
    assert graph_bytes(graph(u.scale)) == first
    assert graph_bytes(graph(u.scale, 64)) != first
    assert graph_bytes(graph(triton.jit(u.scale.fn, noinline=True))) != first
    assert traced_bytes(graph(u.scale), [torch.randn(4)]) is None


def hook(*_, **__):
    """A user-defined hook."""


def sized(**more):
    return triton.autotune(configs=[triton.Config({"BLOCK": 16}, **more)], key=[])(u.scale)


@pytest.mark.parametrize(
    ("kernel", "constants", "why"),
    [
        (lambda: sized(pre_hook=hook), {}, "pre_hook"),
        (lambda: triton.jit(u.reads_main), {}, "main module"),
        (lambda: triton.jit(u.reads_object), {}, "'UNKNOWN', a object"),
        (lambda: u.scale, {"BLOCK": object()}, "'BLOCK' is a object"),
        (lambda: triton.heuristics({"BLOCK": lambda _: 16})(u.scale), {}, "Heuristics"),
        (lambda: u.ambiguous, {}, "has two meanings"),
    ],
)
def test_kernels_that_text_cannot_express_are_refused(kernel, constants, why):
    with pytest.raises(GyratorError) as caught:
        kernel_text(kernel(), constants)
    assert caught.value.diagnostic.code == "GY-LOWER-012"
    assert why in caught.value.diagnostic.message


def test_a_text_is_whole():
    text = kernel_text(u.tuned, {"MODE": tl.float32})
    assert "'MODE': triton.language.dtype('fp32')" in text.source
    source = kernel_text(u.scale, {}).source
    for part in ("'''three quotes'''", "FACTOR: triton.language.constexpr", "def scaled("):
        assert source.index(part) < source.index("def scale(")
    assert not text.has_unknown_writes and kernel_text(u.hidden, {}).has_unknown_writes
