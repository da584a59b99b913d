"""Quantised models with `freezing`: products of bytes, in every host language, against eager."""

from copy import deepcopy

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the ops
from runner_cache import with_runner
from torch import nn
from torch.nn import functional as F

from gyrator import Session
from gyrator.autotune import library as library_choice
from gyrator.autotune.integers import can_multiply_bytes, sums_are_right
from gyrator.autotune.library import Measure
from gyrator.config import Config, read_config
from gyrator.targets import discover
from gyrator_ir.diagnostics import GyratorError
from gyrator_lowering.fx_passes import Convolution, Product
from gyrator_runtime.warn import GyratorWarning

pytestmark = pytest.mark.usefixtures("lightly_optimised")
Q = torch.ops.quantized_decomposed
RIGHT = can_multiply_bytes() and sums_are_right()
bytes_only = pytest.mark.skipif(not RIGHT, reason="oneDNN sums no products of bytes here")


def quantised(x, scale, zero):
    x = Q.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
    return Q.dequantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)


class Layer(nn.Module):
    """A layer with a weight of bytes, as PT2E leaves it."""

    def __init__(self, *shape, run=F.linear, zero=119):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, shape, dtype=torch.int8))
        self.register_buffer("scale", torch.rand(shape[0]) * 0.002 + 1e-4)
        self.register_buffer("points", torch.zeros(shape[0], dtype=torch.int64))
        self.register_buffer("bias", torch.randn(shape[0]))
        self.run, self.zero = run, zero

    def forward(self, x):
        bounds = 0, -128, 127, torch.int8
        w = Q.dequantize_per_channel(self.weight, self.scale, self.points, *bounds)
        return self.run(quantised(x, 0.04, self.zero), w, self.bias)


def convolution(*shape, **window):
    return Layer(*shape, run=lambda x, w, b: F.conv2d(x, w, b, **window))


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(96, 64), Layer(10, 96, zero=0)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class Images(nn.Module):
    """Convolutions, a sum with what they were given, a pool, and a layer."""

    def __init__(self):
        super().__init__()
        self.stem = convolution(16, 3, 3, 3, padding=1)
        self.a, self.b = (convolution(16, 16, 3, 3, padding=1) for _ in range(2))
        self.down = convolution(24, 16, 1, 1, stride=2)
        self.last = Layer(10, 24)

    def forward(self, x):
        x = quantised(F.relu(self.stem(x)), 0.05, 0)
        x = F.max_pool2d(F.relu(x + self.b(F.relu(self.a(x)))), 2)
        return self.last(self.down(x).mean((2, 3)))


@pytest.fixture(autouse=True)
def afresh():
    """Sizes that changed in another test are constants again."""
    torch._dynamo.reset()


@pytest.fixture
def always(monkeypatch):
    """Integers are taken to be quicker."""
    monkeypatch.setattr(Measure, "in_integers", lambda *_: True)


def session(tmp_path, records, **options):
    config = read_config({"GYRATOR_CACHE_DIR": str(with_runner(tmp_path / "cache"))})
    chosen = {"freezing": True, "strict": True, "progress": False, **options}
    return Session(options=chosen, config=config, observer=records.append)


def called(record):
    return {e.target.partition(".")[0] for e in record.externs}


def made(record):
    return {op for k in record.kernels for op in k.ops}


def agree(value, expected):
    """Assert that results differ by what some quantised numbers that went the other way give."""
    assert value.dtype == expected.dtype and value.stride() == expected.stride()
    assert (value - expected).norm() <= 0.03 * expected.norm()


@bytes_only
@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
@pytest.mark.parametrize("make", [Perceptron, Images])
def test_models(tmp_path, always, make, wrapper):
    model, records = make().eval(), []
    shape = (64,) if make is Perceptron else (3, 12, 10)
    with session(tmp_path, records, wrapper=wrapper) as ours:
        run = torch.compile(model, backend=ours.backend)
        for _ in range(2):
            x = torch.randn(3, *shape)
            agree(run(x), model(x))
        assert called(records[0]) == {"onednn"}
        model.load_state_dict(make().state_dict())
        agree(run(x), model(x))
    assert len(records) == 1
    torch._dynamo.reset()
    with session(tmp_path, records, wrapper=wrapper) as ours:
        agree(torch.compile(model, backend=ours.backend)(x), model(x))
    assert records[-1].cached


@bytes_only
@torch.no_grad()
def test_batches_of_any_size(tmp_path, always, monkeypatch):
    """Small ones of sizes that change stay floats; an empty one is right."""
    from gyrator_lowering.fx_passes.products import quantized_calls

    model = Perceptron().eval()
    for least, name in ((quantized_calls._LEAST_CHANGING, "aten"), (1, "onednn")):
        monkeypatch.setattr(quantized_calls, "_LEAST_CHANGING", least)
        torch._dynamo.reset()
        records = []
        with session(tmp_path / name, records) as ours:
            run = torch.compile(model, backend=ours.backend, dynamic=True)
            for rows in (5, 9, 1, 0):
                x = torch.randn(rows, 64)
                agree(run(x), model(x))
        assert called(records[0]) == {name}


@bytes_only
@torch.no_grad()
def test_zero_points_of_weights_that_change(tmp_path, always):
    """A graph that was compiled for weights around zero is not used for others."""
    model, records, x = Perceptron().eval(), [], torch.randn(4, 64)
    skewed = deepcopy(model)
    skewed.first.points += 7
    with session(tmp_path, records, strict=False) as ours:
        run = torch.compile(model, backend=ours.backend)
        agree(run(x), model(x))
        model.first.points.copy_(skewed.first.points)
        with pytest.warns(GyratorWarning, match="GY-COMPILE-004"):
            assert torch.equal(run(x), model(x))
        with session(tmp_path / "strict", records) as strict:
            torch._dynamo.reset()
            model.first.points.zero_()
            run = torch.compile(model, backend=strict.backend)
            agree(run(x), model(x))
            model.first.points.add_(1)
            with pytest.raises(GyratorError, match="GY-COMPILE-004"):
                run(x)
        torch._dynamo.reset()
        run = torch.compile(model, backend=ours.backend)
        model.first.points.zero_()
        agree(run(x), model(x))
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(skewed, backend=ours.backend)(x), skewed(x))
    assert [len([e for e in r.externs if "onednn" in e.target]) for r in records] == [2, 2, 2, 1]


@torch.no_grad()
@pytest.mark.parametrize("best", ["", "aten", "onednn"])
@pytest.mark.parametrize("options", [{}, {"numerics": "bitwise"}])
def test_weights_that_are_not_quicker_in_bytes_are_floats_once(
    tmp_path, monkeypatch, options, best
):
    monkeypatch.setattr(Measure, "in_integers", lambda *_: False)
    monkeypatch.setattr(Measure, "packed", lambda *_: best)
    model, records, x = Perceptron().eval(), [], torch.randn(4, 64)
    with session(tmp_path, records, **options) as ours:
        actual = torch.compile(model, backend=ours.backend)(x)
    if options:
        assert torch.equal(actual, model(x))
    agree(actual, model(x))
    assert "onednn" not in called(records[0])
    assert not any("per_channel" in op for op in made(records[0]))
    assert not any("reorder" in e.target for e in records[0].externs)


@torch.no_grad()
def test_tables_of_bytes_stay_bytes(tmp_path):
    """What kernels read a few rows of is not dequantised as a whole."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.randint(-128, 128, (50, 8), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(50))

        def forward(self, i):
            bounds = 0, -128, 127, torch.int8
            rows = Q.dequantize_per_channel(self.rows, self.scale, None, *bounds)
            return F.embedding(i, rows) * 2

    model, records, i = Table().eval(), [], torch.randint(0, 50, (7,))
    with session(tmp_path, records) as ours:
        actual = torch.compile(model, backend=ours.backend)(i)
        assert ours.constant_bytes == 0
    assert torch.equal(actual, model(i))


@bytes_only
def test_what_is_measured(tmp_path, monkeypatch):
    """The same product, or convolution, of floats and of bytes."""
    definition, target = discover(Config(tmp_path, 1 << 20, ""))["cpu"]
    measure = Measure(definition.device(target), torch.Generator().manual_seed(0))
    requested = []

    def times(_, runs):
        requested.append({name: run() for name, run in runs.items()})
        return {name: 1.0 if name == "integers" else 1.2 for name in runs}

    monkeypatch.setattr(Measure, "_times", times)
    assert measure.in_integers(Product("cpu", 4, 48, 32, dtype=torch.int8))
    assert {r.shape for r in requested[0].values()} == {(4, 32)} and len(requested[0]) >= 3
    for shape, of, *window in (
        ((2, 6, 9, 9), (8, 3, 3, 3), (1, 1), (1, 1), (1, 1), 2),
        ((2, 6, 9), (8, 6, 3), (1,), (1,), (1,), 1),
    ):
        assert measure.in_integers(Convolution("cpu", shape, of, *window))
        floats, integers = requested[-1]["floats"], requested[-1]["integers"]
        assert floats.shape == integers.shape


@bytes_only
def test_what_is_found_out_is_remembered(tmp_path, monkeypatch):
    """Once a machine; nothing is asked where sums are wrong."""
    from gyrator.autotune.kernels import Budget

    requested = []
    monkeypatch.setattr(Measure, "in_integers", lambda _, call: requested.append(call) or True)
    product = Product("cpu", 4, 48, 32, dtype=torch.uint8)
    for right in (True, True, False):
        with session(tmp_path / str(right), []) as ours:
            monkeypatch.setattr(library_choice, "sums_are_right", lambda right=right: right)
            choice = library_choice.LibraryChoice(ours.engine(ours.options).context, Budget(0))
            assert choice.integers(product) is right
    assert requested == [product]
