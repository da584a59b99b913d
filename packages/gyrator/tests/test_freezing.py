"""The option `freezing`: constants of parameters, folded norms, packed weights, against eager."""

from collections import Counter
from copy import deepcopy

import pytest
import torch
from runner_cache import with_runner
from torch import nn
from torch.nn import functional as F

from gyrator import Session
from gyrator.autotune import library as library_choice
from gyrator.autotune.library import LibraryChoice, Measure
from gyrator.config import Config
from gyrator.targets import discover
from gyrator_codegen_cpp import stage as cpp_stage
from gyrator_ir.diagnostics import Diagnostic
from gyrator_lowering.fx_passes import NOTHING, Activation, Product
from gyrator_runtime import profile
from gyrator_runtime.device import cpu_isa
from gyrator_runtime.profile import Timing

pytestmark = pytest.mark.usefixtures("lightly_optimised")
HAS_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether oneDNN computes in `bfloat16` on this processor."""
needs_bfloat16 = pytest.mark.skipif(
    not HAS_BFLOAT16, reason="oneDNN has no bfloat16 on this processor"
)
CONVOLUTIONS = {
    "plain": lambda: nn.Conv2d(8, 12, 3, padding=1),
    "no bias, strides": lambda: nn.Conv2d(8, 12, 3, stride=2, bias=False),
    "groups, dilation": lambda: nn.Conv2d(8, 12, 3, groups=4, dilation=2, padding=2),
    "each channel alone": lambda: nn.Conv2d(8, 8, 5, groups=8, padding="same"),
    "transposed": lambda: nn.ConvTranspose2d(8, 12, 3, 2, output_padding=1),
    "transposed, groups": lambda: nn.ConvTranspose2d(8, 12, 2, 2, groups=2, bias=False),
}


def session(tmp_path, records, **options):
    """Return a session whose compiles are seen in `records`, with a cache of its own."""
    from gyrator.config import read_config

    config = read_config({"GYRATOR_CACHE_DIR": str(with_runner(tmp_path / "cache"))})
    chosen = {"freezing": True, "strict": True, "progress": False, **options}
    return Session(options=chosen, config=config, observer=records.append)


def calls(record):
    """Return the ops that a program calls, by their names alone."""
    return [e.target.partition(".")[2].partition(".")[0] for e in record.externs]


def made(record):
    """Return the ops that a program's own kernels compute."""
    return {op for k in record.kernels for op in k.ops}


_CONVOLVING = {"gyrator.panel_conv.default", "gyrator.depthwise_conv.default"}
"""Convolutions that kernels compute."""
_TILED = cpu_isa() in ("avx2", "avx512")
"""Whether kernels compute convolutions."""


def normed(convolution, affine=True, norm=nn.BatchNorm2d):
    """Return a layer and a batch norm with statistics, for inference."""
    width = getattr(convolution, "out_channels", None) or convolution.out_features
    after = norm(width, affine=affine)
    nn.init.uniform_(after.running_mean, -1, 1)
    nn.init.uniform_(after.running_var, 0.2, 2)
    for p in after.parameters():
        nn.init.normal_(p)
    return nn.Sequential(convolution, after, nn.ReLU()).eval()


def agree(value, expected):
    """Assert that results are close, and in eager's layout."""
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    assert value.stride() == expected.stride()


@torch.no_grad()
@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_16_bits_are_packed_where_supported(tmp_path, name, auto):
    """Of a model in `bfloat16`, and under autocast; images of both layouts, what follows apart."""
    model, records = nn.Sequential(CONVOLUTIONS[name](), nn.ReLU()).eval(), []
    if not auto:
        model = model.bfloat16()
    # Eager mode casts a weight once in an autocast region, whatever is written to it.
    cast = torch.autocast("cpu", torch.bfloat16, enabled=auto, cache_enabled=False)
    # ATen's own convolutions round partial sums to bfloat16, in an order that a layout decides.
    close = {"rtol": 1.6e-2, "atol": 1e-5 if HAS_BFLOAT16 else 2**-6}
    with session(tmp_path, records) as ours, cast:
        run = torch.compile(model, backend=ours.backend)
        for layout in (torch.contiguous_format, torch.channels_last):
            torch._dynamo.reset()  # or strides are symbols
            x = torch.randn(2, 8, 9, 11).to(memory_format=layout)
            x = x if auto else x.bfloat16()
            torch.testing.assert_close(run(x), model(x), **close)
            assert run(x).stride() == model(x).stride()
        for p in model.parameters():
            p.mul_(2)
        torch.testing.assert_close(run(x), model(x), **close)
    for record in records:
        (called,) = calls(record)
        assert called.endswith("_pointwise") == HAS_BFLOAT16
        assert "aten.relu.default" in made(record)


@torch.no_grad()
def test_norms_are_folded_and_weights_packed(tmp_path):
    """Convolutions of every kind, with and without a norm's weights, images of both layouts."""
    records = []
    with session(tmp_path, records) as ours:
        for place, (name, make) in enumerate(CONVOLUTIONS.items()):
            torch._dynamo.reset()
            affine = place % 4 != 1
            model = normed(make(), affine)
            run = torch.compile(model, backend=ours.backend)
            x = torch.randn(2, 8, 9, 11)
            if place % 2:
                x = x.to(memory_format=torch.channels_last)
            agree(run(x), model(x))
            called = calls(records[-1])
            assert bool(called) != bool(_CONVOLVING & made(records[-1])), name
            assert all(c.endswith("_pointwise") for c in called), name
    assert not any("batch_norm" in k.ops for r in records for k in r.kernels)


SERIES = {
    "plain": lambda: nn.Conv1d(8, 16, 3, padding=1),
    "of single elements": lambda: nn.Conv1d(8, 16, 1),
    "no bias, strides": lambda: nn.Conv1d(8, 12, 4, stride=3, padding=2, bias=False),
    "skips that fit": lambda: nn.Conv1d(8, 16, 3, dilation=4, padding=8),
    "skips that do not fit": lambda: nn.Conv1d(8, 16, 3, dilation=5),
    "skips and padding that does not fit": lambda: nn.Conv1d(8, 16, 2, dilation=4, padding=3),
    "skips and strides": lambda: nn.Conv1d(8, 16, 3, 2, dilation=2, padding=2),
    "skips and groups": lambda: nn.Conv1d(8, 16, 3, groups=4, dilation=2, padding="same"),
    "each channel alone": lambda: nn.Conv1d(8, 8, 5, groups=8, padding=2),
    "transposed": lambda: nn.ConvTranspose1d(8, 12, 3, 2, 1, output_padding=1),
    "transposed, skips": lambda: nn.ConvTranspose1d(8, 12, 3, dilation=2, groups=2),
}


class Series(nn.Module):
    """Two convolutions of every kind, with what may follow: a function, an addition, both, or
    several readers."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(make() for make in SERIES.values() for _ in range(2))

    def forward(self, x):
        results = []
        for k, part in enumerate(self.parts):
            value = part(x)
            if k % 2:  # of the same kind as the one before
                value = value + results[-1]
            if k % 3:
                value = F.relu(value) if k % 3 == 1 else F.silu(value)
            elif k % 4 == 0:
                results.append(value.sum(1))
            results.append(value)
        return results


@torch.no_grad()
@pytest.mark.parametrize("numerics", ["eager", "fast"])
def test_series_are_convolved_as_images(tmp_path, numerics):
    """With packed weights, or in tiles; of both layouts, whatever the batch."""
    model, records = Series().eval(), []
    with session(tmp_path, records, numerics=numerics) as ours:
        run = torch.compile(model, backend=ours.backend)
        for k, batch in enumerate((2, 3, 4, 2)):
            if k % 3 == 0:
                torch._dynamo.reset()  # or strides are symbols
            x = torch.randn(batch, 24, 8).mT if k == 3 else torch.randn(batch, 8, 24)
            for actual, expected in zip(run(x), model(x), strict=True):
                agree(actual, expected)
        for part in model.parts:
            part.weight.mul_(2)
        for actual, expected in zip(run(x), model(x), strict=True):
            agree(actual, expected)
    assert len(records) == 3
    for record in records:
        assert not {"convolution", "panel_conv"} & {*calls(record)}
        assert "_convolution_pointwise" in calls(record)
    tiled = "gyrator.panel_conv.default" in made(records[0])
    assert tiled == _TILED


@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_host_languages_and_a_warm_start(tmp_path, wrapper):
    """Each host language hands packed weights on; another session finds program and folding."""
    images = normed(nn.Conv2d(4, 6, 3))
    linear = normed(nn.Linear(6, 64), norm=nn.BatchNorm1d)
    model = nn.Sequential(images, nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear).eval()
    x = torch.randn(32, 4, 8, 8)
    for cached in (False, True):
        torch._dynamo.reset()
        records = []
        with session(tmp_path, records, wrapper=wrapper) as ours:
            agree(torch.compile(model, backend=ours.backend)(x), model(x))
        assert [r.cached for r in records] == [cached]
        assert "_convolution_pointwise" in calls(records[0])


@torch.no_grad()
def test_changed_parameters_are_seen(tmp_path):
    """Constants follow writes in place, other memory, and another model of the same class."""
    model = normed(nn.Conv2d(3, 8, 3))
    x = torch.randn(2, 3, 8, 8)
    records = []
    with session(tmp_path, records) as ours:
        run = torch.compile(model, backend=ours.backend)
        agree(run(x), model(x))
        model[0].weight.mul_(2)
        agree(run(x), model(x))
        model[1].running_mean.add_(1)
        agree(run(x), model(x))
        model[0].weight.data = torch.randn(8, 3, 3, 3)
        agree(run(x), model(x))
        model.load_state_dict(normed(nn.Conv2d(3, 8, 3)).state_dict())
        agree(run(x), model(x))
        assert len(records) == 1
        assert 4 * 8 * 27 <= ours.constant_bytes < 8192
        other = normed(nn.Conv2d(3, 8, 3))
        again = torch.compile(other, backend=ours.backend)
        for _ in range(2):
            agree(again(x), other(x))
            agree(run(x), model(x))


@torch.no_grad()
def test_batches_of_any_size_share_constants(tmp_path):
    """Graphs for several sizes keep one packed weight."""
    from gyrator_lowering.folding import Folding

    model = normed(nn.Conv2d(3, 8, 3))
    records, folded = [], []
    with session(tmp_path, records) as ours, pytest.MonkeyPatch.context() as patch:
        compute = Folding.constants
        patch.setattr(
            Folding, "constants", lambda self, inputs: folded.append(1) or compute(self, inputs)
        )
        run = torch.compile(model, backend=ours.backend, dynamic=True)
        for batch, size in ((2, 8), (5, 8), (3, 9)):
            x = torch.randn(batch, 3, size, size)
            agree(run(x), model(x))
    assert len(folded) <= len(records)


class Odd(nn.Module):
    """Constants that are shared, drawn, returned, and made of nothing."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps.add_(1)
        square = self.weight @ self.weight.T
        mask = torch.ones(6, 6).tril() * torch.arange(6)
        noise = torch.rand_like(self.weight)
        return x @ square + mask + self.steps, square, self.weight.T, noise, x * noise


@torch.no_grad()
def test_constants_that_need_care(tmp_path):
    """Drawn numbers differ from call to call, results are nobody else's memory, buffers count."""
    model, x = Odd(), torch.randn(3, 6)[:, None].expand(3, 6, 6)
    twin = deepcopy(model)
    with session(tmp_path, []) as ours:
        run = torch.compile(model, backend=ours.backend)
        noises = []
        for _ in range(3):
            actual, expected = run(x), twin(x)
            for a, b in zip(actual[:3], expected[:3], strict=True):
                agree(a, b)
            torch.testing.assert_close(actual[4], x * actual[3])
            noises.append(actual[3])
            actual[1].zero_()
    assert model.steps == 3
    assert not torch.equal(noises[0], noises[1])


def test_what_is_not_inference_is_as_without(tmp_path):
    """Training graphs, norms in training, and the modes of one order of sums fold nothing."""
    model = normed(nn.Conv2d(3, 8, 3))
    x = torch.randn(2, 3, 8, 8)
    records = []
    with session(tmp_path, records) as ours:
        run = torch.compile(model, backend=ours.backend)
        run(x).sum().backward()
        assert [r.phase for r in records] == ["forward", "backward"]
        with torch.no_grad():
            model.train()
            twin = deepcopy(model)
            agree(run(x), twin(x))
            agree(model[1].running_mean, twin[1].running_mean)
    for numerics in ("bitwise", "batch_invariant"):
        torch._dynamo.reset()
        with session(tmp_path, records, numerics=numerics) as ours, torch.no_grad():
            model.eval()
            actual = torch.compile(model, backend=ours.backend)(x)
            agree(actual, model(x))
            assert "_convolution_pointwise" not in calls(records[-1])
            if numerics == "bitwise":
                assert torch.equal(actual, model(x))


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "relu6": F.relu6,
    "relu": F.relu,
}
SAMPLE = ("gelu, tanh", "silu", "hardsigmoid", "relu")
"""One with an argument, one without, and two of those with which the library loses NaN; the others
are among the long tests."""


class Followed(nn.Module):
    """A function after a convolution, a transposed one, and linear layers."""

    def __init__(self, after):
        super().__init__()
        self.after = after
        self.image, self.back = nn.Conv2d(4, 6, 3), nn.ConvTranspose2d(6, 6, 2, 2)
        self.deep, self.flat = nn.Linear(196, 48), nn.Linear(48, 32)

    def forward(self, x):
        x = self.after(self.back(self.after(self.image(x))))
        x = self.after(self.deep(x.flatten(2)))
        return self.after(self.flat(x))


def whole_products(monkeypatch):
    """Let oneDNN be the quicker library for each product, with what follows."""
    monkeypatch.setattr(Measure, "packed", lambda *_: "onednn, whole")


class Viewed(nn.Module):
    """Returns views of constants: overlapping, strided, transposed, and two of one constant."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))

    def forward(self, x):
        sums = self.weight.cumsum(1)
        parts = sums.as_strided((2, 2), (1, 1)), sums[None].expand(3, 2, 3), sums[:, ::2], sums.t()
        return *parts, self.weight.sin().split(1, 1)[1], self.weight.exp(), x + 1


@torch.no_grad()
def test_views_of_constants_are_returned_as_views_of_copies(tmp_path):
    model, records = Viewed().eval(), []
    with session(tmp_path, records) as s:
        run = torch.compile(model, backend=s.backend)
        for _ in range(2):
            x = torch.randn(2)
            results = run(x)
            for result, expected in zip(results, model(x), strict=True):
                agree(result, expected)
            storages = {result.untyped_storage().data_ptr() for result in results}
            assert len(storages) == 4  # of the sums, the sines, the exponentials and `x + 1`
            for result in results:
                result.as_strided((1,), (1,)).fill_(7)  # which the constants do not see
    assert len(records) == 1


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.long) for n in ACTIVATIONS],
)
def test_the_library_computes_what_follows(tmp_path, monkeypatch, name):
    """Where it is as exact as ATen, and of any function in fast mode; for batches of any size."""
    whole_products(monkeypatch)
    after = ACTIVATIONS[name]
    model = Followed(after).eval()
    for numerics in ("fast", "eager"):
        torch._dynamo.reset()
        records = []
        with session(tmp_path, records, numerics=numerics) as ours:
            run = torch.compile(model, backend=ours.backend, dynamic=numerics == "eager")
            for batch in (5, 3):
                x = torch.randn(batch, 4, 9, 9)
                agree(run(x), model(x))
        own = made(records[0])
        named = f"aten.{'hardtanh' if name == 'relu6' else name.partition(',')[0]}.default"
        if numerics == "fast":
            assert named not in own
            assert calls(records[0]).count("_linear_pointwise") == 2
        if name in ("relu", "relu6", "hardsigmoid") and numerics == "eager":
            assert named in own  # the library's loses NaN
            spoilt = torch.full((3, 4, 9, 9), float("nan"))
            torch.testing.assert_close(run(spoilt), model(spoilt), equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_functions_in_each_host_language(tmp_path, monkeypatch, wrapper):
    """Numbers and names of functions reach the library; weights may change."""
    whole_products(monkeypatch)
    convolution, linear = nn.Conv2d(4, 6, 3), nn.Linear(7, 5)

    def run(x):
        return F.gelu(linear(F.leaky_relu(convolution(x), 0.2)), approximate="tanh")

    records = []
    x = torch.randn(2, 4, 9, 9)
    with session(tmp_path, records, wrapper=wrapper, numerics="fast") as ours:
        compiled = torch.compile(run, backend=ours.backend)
        agree(compiled(x), run(x))
        linear.weight.neg_()
        agree(compiled(x), run(x))
    assert calls(records[0]) == ["_convolution_pointwise", "_linear_pointwise"]
    assert not any(op.startswith(("aten.gelu", "aten.leaky")) for op in made(records[0]))


def test_training_and_autocast_are_as_without(tmp_path, monkeypatch):
    """Training packs nothing; a 16-bit product is packed if possible, without the activation."""
    whole_products(monkeypatch)
    linear, x = nn.Linear(8, 16), torch.randn(4, 8)
    records = []
    with session(tmp_path, records, numerics="fast") as ours:
        run = torch.compile(lambda x: F.gelu(linear(x)).neg(), backend=ours.backend)
        run(x).sum().backward()
        actual, linear.weight.grad = linear.weight.grad, None
        F.gelu(linear(x)).neg().sum().backward()
        agree(actual, linear.weight.grad)
        assert not any("_linear_pointwise" in calls(r) for r in records)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            close = {"rtol": 2e-2, "atol": 2e-2}
            torch.testing.assert_close(run(x), F.gelu(linear(x)).neg(), **close)
    assert ("_linear_pointwise" in calls(records[-1])) == HAS_BFLOAT16
    assert "aten.gelu.default" in made(records[-1])


@torch.no_grad()
def test_what_a_kernel_reads_is_left_to_it(tmp_path, monkeypatch):
    """A function is the library's only if no kernel reads its result, nor the product's own."""
    whole_products(monkeypatch)
    layers = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def gated(x):
        return layers[2](F.silu(layers[0](x)) * layers[1](x))

    def twice(x):
        y = layers[0](x)
        return F.gelu(y) @ layers[2].weight.T, y

    x = torch.randn(4, 16)
    for run, named in ((gated, "aten.silu.default"), (twice, "aten.gelu.default")):
        torch._dynamo.reset()
        records = []
        with session(tmp_path, records, numerics="fast") as ours:
            actual, expected = torch.compile(run, backend=ours.backend)(x), run(x)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert named in made(records[0])


@torch.no_grad()
def test_relu_keeps_nan_unless_fast(tmp_path):
    """The library's own relu loses NaN: it is taken with `numerics="fast"` alone."""
    convolutions = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def block(x):
        return torch.relu(convolutions[1](torch.relu(convolutions[0](x))) + x)

    x = torch.randn(1, 4, 6, 6).to(memory_format=torch.channels_last)
    for numerics in ("eager", "fast"):
        torch._dynamo.reset()
        records = []
        with session(tmp_path, records, numerics=numerics) as ours:
            run = torch.compile(block, backend=ours.backend)
            agree(run(x), block(x))
            own = [op for k in records[0].kernels for op in k.ops]
            assert any("relu" in op for op in own) == (numerics == "eager")
            if numerics == "eager":
                spoilt = x.clone()
                spoilt[0, 0, 0, 0] = float("nan")
                torch.testing.assert_close(run(spoilt), block(spoilt), equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_few_outputs_of_pixels_are_computed_by_kernels(tmp_path, dtype, bias):
    """A library would compute a register of outputs; what comes before and after is fused."""
    layers = nn.ModuleList([nn.Conv2d(3, 7, 3), *(nn.Conv2d(7, n, 1, bias=bias) for n in (2, 3))])
    layers = layers.to(dtype, memory_format=torch.channels_last)
    wide = deepcopy(layers).double()

    def run(x, layers=layers):
        first, *heads = layers
        y = torch.relu(first(x))
        return [torch.sigmoid(head(y)) for head in heads]

    torch._dynamo.reset()
    records = []
    with session(tmp_path, records) as ours:
        compiled = torch.compile(run, backend=ours.backend)
        for batch in (2, 3, 1, 0):
            x = torch.randn(batch, 3, 7, 10, dtype=dtype).to(memory_format=torch.channels_last)
            results = compiled(x), run(x), run(x.double(), wide)
            for value, expected, exact in zip(*results, strict=True):
                assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
                assert batch < 2 or value.stride() == expected.stride()
                if batch:
                    off, bound = ((r - exact).abs().max() for r in (value, expected))
                    assert off <= 2 * bound + 1e-7
    assert any("convolution" in op for op in made(records[0])) and len(calls(records[0])) == 1


TILED = {
    "even": ((1, 32, 12, 8), 40, 1),
    "odd, batch": ((3, 33, 7, 10), 32, (2, 1)),
    "no padding": ((2, 48, 9, 5), 64, 0),
    "one row": ((1, 32, 3, 6), 32, 0),
}
"""Sizes of images, output channels and padding of convolutions. The library's result of one row has
other strides."""


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "bias"),
    [
        pytest.param(name, bias, marks=pytest.mark.long if (k + bias) % 2 else ())
        for k, name in enumerate(TILED)
        for bias in (False, True)
    ],
)
def test_convolutions_by_transformed_tiles(tmp_path, monkeypatch, name, bias):
    """They follow the weight, take images in any layout, and are as accurate as eager's."""
    monkeypatch.setattr(LibraryChoice, "in_tiles", lambda *_: True)
    torch._dynamo.reset()
    shape, channels, padding = TILED[name]
    model = nn.Conv2d(shape[1], channels, 3, padding=padding, bias=bias).eval()
    x, records = torch.randn(shape), []
    with session(tmp_path, records, numerics="fast") as ours:
        run = torch.compile(model, backend=ours.backend, dynamic=False)
        for images in (x, x.to(memory_format=torch.channels_last)):
            agree(run(images), model(images))
        found, eager, exact = run(x), model(x), deepcopy(model).double()(x.double())
        error, others = ((r - exact).square().mean() for r in (found, eager))
        assert error <= 1.5 * others
        model.weight.mul_(3)
        agree(run(x), model(x))
    assert all((calls(r) == ["bmm"]) == (name != "one row") for r in records)


@torch.no_grad()
@pytest.mark.parametrize(
    ("layer", "numerics"),
    [
        (lambda: nn.Conv2d(32, 32, 3, padding=1), "eager"),
        (lambda: nn.Conv2d(32, 32, 3, stride=2), "fast"),
        (lambda: nn.Conv2d(32, 32, 3, dilation=2), "fast"),
        (lambda: nn.Conv2d(32, 64, 3, groups=2), "fast"),
        (lambda: nn.Conv2d(32, 32, 5), "fast"),
        (lambda: nn.ConvTranspose2d(32, 32, 3), "fast"),
        (lambda: nn.Conv2d(8, 32, 3), "fast"),
    ],
)
def test_other_convolutions_are_not_tiled(tmp_path, monkeypatch, layer, numerics):
    """Nor are any unless numerics are fast: tiles spread NaN, and errors of large elements."""
    torch._dynamo.reset()
    monkeypatch.setattr(LibraryChoice, "in_tiles", lambda *_: True)
    model, x, records = layer().eval(), torch.randn(1, 32, 9, 9), []
    x = x[:, : getattr(model, "in_channels", 32)]
    with session(tmp_path, records, numerics=numerics) as ours:
        agree(torch.compile(model, backend=ours.backend, dynamic=False)(x), model(x))
    assert "bmm" not in calls(records[0])


@torch.no_grad()
def test_tiles_are_measured_once(tmp_path, monkeypatch):
    """The quicker way is taken: oneDNN's where a gain is small."""
    asked = []

    def compare(runs, *_, **__):
        asked.append(dict(runs))
        for run in runs.values():
            run()
        gains = {"direct": 2.0 if len(asked) == 1 else 1.05, "tiled": 1.0}
        return {n: Timing(gains[n], gains[n]) for n in runs}

    monkeypatch.setattr(library_choice, "compare", compare)
    for channels, tiled in ((32, True), (64, False)):
        for cached in (False, True):
            torch._dynamo.reset()
            model, x, records = nn.Conv2d(32, channels, 3).eval(), torch.randn(1, 32, 9, 9), []
            with session(tmp_path, records, numerics="fast") as ours:
                agree(torch.compile(model, backend=ours.backend, dynamic=False)(x), model(x))
            assert ("bmm" in calls(records[0])) == tiled
            assert len(asked) == (1 if tiled else 2), cached


@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
@pytest.mark.parametrize("bias", [False, True])
def test_kernels_read_weights_in_panels(tmp_path, monkeypatch, bias, wrapper):
    """With what follows, for infinities and NaN too; the panels follow the weight. A layer whose
    columns fill no panels stays a call."""
    monkeypatch.setattr(Measure, "packed", lambda *_: "kernels")
    model = nn.Sequential(nn.Linear(12, 96, bias=bias), nn.ReLU(), nn.Linear(96, 7)).eval()
    x = torch.randn(37, 12)
    special = x.clone()
    special[0, 0], special[1, 1], special[2, 2] = float("nan"), float("inf"), float("-inf")
    for cached in (False, True):
        torch._dynamo.reset()
        records = []
        with session(tmp_path, records, wrapper=wrapper) as ours:
            run = torch.compile(model, backend=ours.backend, dynamic=False)
            agree(run(x), model(x))
            torch.testing.assert_close(
                run(special), model(special), rtol=1e-4, atol=1e-5, equal_nan=True
            )
            model[0].weight.mul_(3)
            agree(run(x), model(x))
        (record,) = records
        assert record.cached == cached
        assert {"gyrator.panel_mm.default", "aten.relu.default"} <= made(record)
        assert len(calls(record)) == 1


class Residual(nn.Module):
    """A convolution of the image, and one whose result is added to it."""

    def __init__(self):
        super().__init__()
        self.first = normed(nn.Conv2d(3, 32, 7, 2, 3, bias=False))
        self.second = nn.Conv2d(32, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 48, 3, 2, 1)

    def forward(self, x):
        x = self.first(x).relu()
        x = (self.second(x) + x).relu()
        return self.last(x)


@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_kernels_convolve_in_tiles(tmp_path, wrapper):
    """With the addition and the `relu` that follow, for NaN and infinities too; the panels follow
    the weight."""
    if not _TILED:
        pytest.skip("convolutions need the registers of AVX2")
    model, records = Residual().eval(), []
    x = torch.randn(2, 3, 30, 34).to(memory_format=torch.channels_last)
    special = x.clone()
    special[0, 0, 2, 3], special[1, 1, 20, 30] = float("nan"), float("inf")
    with session(tmp_path, records, wrapper=wrapper) as ours:
        run = torch.compile(model, backend=ours.backend, dynamic=False)
        agree(run(x), model(x))
        actual, expected = run(special), model(special)
        assert torch.equal(actual.isnan(), expected.isnan())
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        model.second.weight.mul_(3)
        agree(run(x), model(x))
    (record,) = records
    assert "gyrator.panel_conv.default" in made(record)
    assert not calls(record)


_JOINED = ((20, 5, 7), (24, 10, 14))
"""Sizes of two images, of which one is enlarged to join the other."""


class Joined(nn.Module):
    """Convolutions of two images that are joined: different ones, of which one has other readers,
    two that something else reads joined too, and twice the same."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(20, 12, 2, 2)
        self.join = normed(nn.Conv2d(36, 16, 3, padding=1, bias=False))
        self.again = nn.Conv2d(40, 16, 3, stride=2, bias=True)
        self.last = nn.Conv2d(32, 16, 3)

    def forward(self, x, y):
        joined = self.join(torch.cat([y, self.up(x)], 1)).relu()
        read = torch.cat([joined, y], 1)
        return self.again(read), read.sum(), self.last(torch.cat([joined, joined], 1))


@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_kernels_convolve_images_before_they_are_joined(tmp_path, wrapper):
    """Unless something else reads what they are joined to. NaN and infinities stay in place."""
    if not _TILED:
        pytest.skip("convolutions need the registers of AVX2")
    torch._dynamo.reset()
    model, records = Joined().eval(), []
    x, y = (torch.randn(2, *n).to(memory_format=torch.channels_last) for n in _JOINED)
    special = y.clone()
    special[0, 0, 2, 3], special[1, 23, 9, 13] = float("nan"), float("-inf")
    with session(tmp_path, records, wrapper=wrapper) as ours:
        run = torch.compile(model, backend=ours.backend, dynamic=False)
        for images in (y, special):
            for actual, expected in zip(run(x, images), model(x, images), strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    (record,) = records
    assert calls(record) == ["_convolution_transpose_pointwise"]
    assert sum("aten.cat.default" in k.ops for k in record.kernels) == 1


class Padded(nn.Module):
    """Convolutions of series and of images with zeros, or something else, around them."""

    def __init__(self):
        super().__init__()
        self.series = nn.ModuleList(nn.Conv1d(16, 16, 3, dilation=d) for d in (1, 2, 4, 2))
        self.images = nn.ModuleList(
            nn.Conv2d(i, 16, 3, 2, padding=p) for i, p in ((3, 0), (16, 1), (32, 0), (16, 0))
        )

    def forward(self, x, y):
        pad = nn.functional.pad
        a, b, c, d = self.series
        x = pad(b(pad(a(pad(x, (2, 0))), (4, 2))).relu(), (9, -1))
        x = d(pad(c(x), (2, 2), value=0.5))
        first, second, third, last = self.images
        y = first(pad(y, (0, 1, 2, 3))).relu()
        z = pad(torch.cat([second(pad(y, (1, 0, 1, 0))), second(pad(y, (0, 1, 0, 1)))], 1), (2, 1))
        padded = pad(y, (1, 1))
        return x, third(z), last(padded), padded


@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_kernels_convolve_images_within_zeros(tmp_path, wrapper):
    """Which they write themselves, if nothing else reads them. NaN and infinities stay in place."""
    if not _TILED:
        pytest.skip("convolutions need the registers of AVX2")
    torch._dynamo.reset()
    model, records = Padded().eval(), []
    x, y = torch.randn(2, 16, 24), torch.randn(2, 3, 21, 22)
    special = x.clone(), y.clone()
    special[0][0, 3, 5], special[0][1, 0, 23] = float("nan"), float("inf")
    special[1][0, 0, 0, 3], special[1][1, 2, 20, 21] = float("nan"), float("-inf")
    with session(tmp_path, records, wrapper=wrapper) as ours:
        run = torch.compile(model, backend=ours.backend, dynamic=False)
        for inputs in ((x, y), special):
            for actual, expected in zip(run(*inputs), model(*inputs), strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    (record,) = records
    # The steps of a window do not divide the length of one series.
    assert calls(record) == ["_convolution_pointwise"]
    # The first series, which is copied anyway, and what has other readers, 0.5 around it or an end
    # cut off.
    assert sum("aten.constant_pad_nd.default" in k.ops for k in record.kernels) == 4


class Squeezed(nn.Module):
    """Depthwise convolutions of padded images between those of pixels, scaled by functions of their
    means."""

    def __init__(self):
        super().__init__()
        self.wide = normed(nn.Conv2d(3, 48, 1, bias=False))
        self.deep = normed(nn.Conv2d(48, 48, 3, 2, groups=48, bias=False))
        self.down, self.up = nn.Conv2d(48, 6, 1), nn.Conv2d(6, 48, 1)
        self.narrow = normed(nn.Conv2d(48, 21, 1, bias=False))
        self.again = nn.Conv2d(21, 21, 5, padding=(2, 1), dilation=(1, 2), groups=21)
        self.last = nn.Conv2d(21, 21, 1, bias=False)

    def forward(self, x):
        f = nn.functional
        x = f.silu(self.deep[1](self.deep[0](f.pad(f.relu6(self.wide[:2](x)), (0, 1, 0, 1)))))
        scale = f.silu(self.down(x.mean((2, 3), keepdim=True)))
        x = self.narrow[:2](x * self.up(scale).sigmoid())
        y = f.hardswish(self.again(x))
        return f.leaky_relu(self.narrow[1](y), 0.2), self.last(y)


@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_kernels_convolve_pixels_and_single_channels(tmp_path, wrapper):
    """With zeros around images and the functions that follow. NaN and infinities stay in place; the
    packed weights follow the weights."""
    if not _TILED:
        pytest.skip("the heuristics have no such kernels")
    torch._dynamo.reset()
    model, records = Squeezed().eval(), []
    x = torch.randn(1, 3, 23, 26)
    special = x.clone()
    special[0, 0, 2, 3], special[0, 1, 22, 25] = float("nan"), float("-inf")
    with session(tmp_path, records, wrapper=wrapper) as ours:
        run = torch.compile(model, backend=ours.backend, dynamic=False)
        for images in (x, special, x):
            for actual, expected in zip(run(images), model(images), strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
            model.again.weight.mul_(2)
    (record,) = records
    assert made(record) >= _CONVOLVING
    # Without a bias there are no tiles.
    assert calls(record) == ["_convolution_pointwise"]
    assert not any("aten.constant_pad_nd.default" in k.ops for k in record.kernels)


@torch.no_grad()
def test_infinite_weights_meet_the_zeros_of_padding(tmp_path):
    """Which are pixels like others in tiles of convolutions, and left out where each channel is
    convolved alone, as by oneDNN."""
    if not _TILED:
        pytest.skip("convolutions need the registers of AVX2")
    torch._dynamo.reset()
    layers = [nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1, padding=1)]
    layers.append(nn.Conv2d(16, 16, 3, padding=1, groups=16))
    for layer in layers:
        layer.weight[0, 0, 0, 0] = torch.inf
    records, x = [], torch.randn(2, 16, 9, 7)
    model = nn.ModuleList(layers).eval()
    with session(tmp_path, records) as ours:
        results = torch.compile(lambda x: [layer(x) for layer in model], backend=ours.backend)(x)
    within = F.pad(x, (1, 1, 1, 1))
    expected = [F.conv2d(within, layer.weight, layer.bias) for layer in layers[:2]]
    expected.append(layers[2](x))
    for actual, value in zip(results, expected, strict=True):
        torch.testing.assert_close(actual, value, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert [y.isnan().any().item() for y in results] == [True, True, False]
    (record,) = records
    assert made(record) >= _CONVOLVING
    assert not calls(record)


@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_refused_convolutions_are_calls(tmp_path, monkeypatch, wrapper):
    """Of the op itself: the graph stays whole."""
    if not _TILED:
        pytest.skip("convolutions need the registers of AVX2")
    refusal = Diagnostic("GY-CPP-024", "refused")
    monkeypatch.setattr(cpp_stage, "template_refusal", lambda *_: refusal)
    model, x, records = Residual().eval(), torch.randn(2, 3, 30, 34), []
    with session(tmp_path, records, wrapper=wrapper) as ours:
        run = torch.compile(model, backend=ours.backend, dynamic=False)
        agree(run(x), model(x))
        model.second.weight.mul_(3)
        agree(run(x), model(x))
    (record,) = records
    assert calls(record) == ["panel_conv"] * 3


@torch.no_grad()
@pytest.mark.parametrize("numerics", ["bitwise", "batch_invariant"])
def test_convolutions_in_tiles_are_of_no_strict_mode(tmp_path, numerics):
    """Eager's bits are those of a library, and those of a batch do not depend on its size."""
    torch._dynamo.reset()
    model, x, records = Residual().eval(), torch.randn(3, 3, 30, 34), []
    with session(tmp_path, records, numerics=numerics) as ours:
        run = torch.compile(model, backend=ours.backend, dynamic=False)
        whole = run(x)
        expected = model(x) if numerics == "bitwise" else torch.cat([run(i[None]) for i in x])
        assert torch.equal(whole, expected)
    assert all("gyrator.panel_conv.default" not in made(r) for r in records)


@torch.no_grad()
def test_convolutions_of_changing_sizes(tmp_path):
    """Of batches that change, they are calls; an image may be a part of one whose width changes."""

    class Part(Residual):
        def forward(self, x):
            return super().forward(x[..., :17])

    torch._dynamo.reset()
    model, records = Part().eval(), []
    with session(tmp_path, records) as ours:
        run = torch.compile(model, backend=ours.backend)
        for batch, width in ((2, 20), (2, 21), (2, 23), (3, 23), (4, 23)):
            x = torch.randn(batch, 3, 15, width).to(memory_format=torch.channels_last)
            agree(run(x), model(x))
    assert len(records) == 3
    if _TILED:
        assert not any(map(calls, records[:-1]))
        assert all("gyrator.panel_conv.default" in made(r) for r in records[:-1])
    assert calls(records[-1]) == ["_convolution_pointwise"] * 3


@torch.no_grad()
@pytest.mark.parametrize(("batch", "size", "tiled"), [(1, 12, True), (2, 11, True), (2, 12, False)])
def test_large_weights_of_several_images_stay_with_the_library(tmp_path, batch, size, tiled):
    if not _TILED:
        pytest.skip("convolutions need the registers of AVX2")
    torch._dynamo.reset()
    model, records = nn.Conv2d(288, 128, 3, padding=1).eval(), []
    x = torch.randn(batch, 288, size, size).to(memory_format=torch.channels_last)
    with session(tmp_path, records) as ours:
        agree(torch.compile(model, backend=ours.backend, dynamic=False)(x), model(x))
    if batch > 1 and cpu_isa() == "avx2":
        tiled = False  # with few pixels too
    assert calls(records[0]) == ([] if tiled else ["_convolution_pointwise"])


@torch.no_grad()
def test_panels_of_products_of_changing_sizes(tmp_path, monkeypatch):
    """Rows are a symbol, of which some values are fewer than a register tile has, or none."""
    monkeypatch.setattr(Measure, "packed", lambda *_: "kernels")
    model, records = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()).eval(), []
    with session(tmp_path, records) as ours:
        run = torch.compile(model, backend=ours.backend, dynamic=True)
        for rows in (1024, 130, 1, 5, 0):
            x = torch.randn(rows, 1024)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    assert any("gyrator.panel_mm.default" in made(r) for r in records)


@torch.no_grad()
@pytest.mark.parametrize("best", ["aten", "mkl", "onednn", ""])
def test_weights_in_each_layout(tmp_path, monkeypatch, best):
    """Each way to lay a layer's weight out gives its result, and follows the weight."""
    monkeypatch.setattr(Measure, "packed", lambda *_: best)
    records = []
    with session(tmp_path, records) as ours:
        for bias in (False, True):
            torch._dynamo.reset()
            model = nn.Sequential(
                nn.Linear(12, 40, bias=bias), nn.Sigmoid(), nn.Linear(40, 7)
            ).eval()
            run = torch.compile(model, backend=ours.backend, dynamic=False)
            for x in (torch.randn(5, 12), torch.randn(2, 5, 12)):
                agree(run(x), model(x))
            model[0].weight.mul_(2)
            agree(run(x), model(x))
        straight = 4 * (12 * 40 + 40 * 7)
        assert (ours.constant_bytes >= straight) == bool(best)
    expected = {"mkl": {"_mkl_linear"}, "onednn": {"_linear_pointwise"}}
    assert {*calls(records[-1])} == expected.get(best, {"mm", "addmm"})


@torch.no_grad()
@pytest.mark.parametrize(
    ("best", "dynamic"),
    [
        pytest.param(best, dynamic, marks=pytest.mark.long if (k + dynamic) % 2 else ())
        for k, best in enumerate(("aten", "onednn", "onednn, whole", ""))
        for dynamic in (False, True)
    ],
)
def test_weights_of_16_bits(tmp_path, monkeypatch, best, dynamic):
    """Packed weights of `bfloat16` give a layer's result, and follow the weight."""
    requested = []

    def packed(_, product, after, biased, exact, kernel):
        requested.append((product.dtype, after.attr))
        return best

    monkeypatch.setattr(Measure, "packed", packed)
    records = []
    with session(tmp_path, records) as ours:
        for bias in (False, True):
            torch._dynamo.reset()
            model = nn.Sequential(nn.Linear(12, 40, bias=bias), nn.Tanh(), nn.Linear(40, 7))
            model = model.to(torch.bfloat16).eval()
            run = torch.compile(model, backend=ours.backend, dynamic=dynamic)
            for x in (torch.randn(5, 12), torch.randn(2, 5, 12), torch.randn(1, 12)):
                x = x.bfloat16()
                torch.testing.assert_close(run(x), model(x))
            model[0].weight.mul_(2)
            torch.testing.assert_close(run(x), model(x))
    assert set(requested) == ({(torch.bfloat16, "none")} if HAS_BFLOAT16 else set())
    expected = {"_linear_pointwise"} if HAS_BFLOAT16 and "onednn" in best else {"mm", "addmm"}
    if dynamic:  # small products of sizes that change stay ATen's
        expected |= {"mm", "addmm"}
    assert {op for r in records for op in calls(r)} == expected


@needs_bfloat16
@torch.no_grad()
@pytest.mark.parametrize("turned", [False, True])
def test_16_bits_are_measured_in_16_bits(tmp_path, monkeypatch, turned):
    """What is quickest is found among calls that take `bfloat16`."""
    monkeypatch.setattr(profile, "_interruptions", lambda: 0)  # on a busy machine too
    definition, target = discover(Config(tmp_path, 1 << 20, ""))["cpu"]
    measure = Measure(definition.device(target), torch.Generator().manual_seed(0))
    product = Product("cpu", 4, 48, 32, turned=turned, dtype=torch.bfloat16)
    assert measure.packed(product, NOTHING, True, True) in ("", "aten", "onednn")


@torch.no_grad()
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)]
)
def test_products_are_measured_as_they_are_called(tmp_path, monkeypatch, dtype):
    """With a bias if the library adds it: not where kernels do, or a layer has none."""
    requested = {}

    def packed(_, product, after, biased, exact, kernel):
        requested[product.columns] = biased
        return ""

    monkeypatch.setattr(Measure, "packed", packed)
    read, retained, bare, last = (
        nn.Linear(i, o, bias=o != 24).to(dtype) for i, o in ((12, 40), (40, 7), (7, 24), (24, 9))
    )

    def run(x):
        return last(bare(retained(read(x).sin())))

    x = torch.randn(5, 12, dtype=dtype)
    records = []
    with session(tmp_path, records) as ours:
        torch.testing.assert_close(torch.compile(run, backend=ours.backend)(x), run(x))
    rounds = dtype is torch.bfloat16  # before the bias is added, in a kernel
    assert requested == {40: rounds, 7: True, 24: False, 9: True}
    assert Counter(calls(records[0])) == {"addmm": 3 if rounds else 2, "mm": 1 if rounds else 2}


@torch.no_grad()
@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ((10, 9.9, 9.8, 9.7), ""),  # noise
        ((10, 8, 7.9, 7.8), "aten"),  # the weight is kept once
        ((10, 9.7, 9, 8.9), "onednn"),
        ((10, 9, 8, 7), "mkl"),
    ],
)
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
def test_the_simpler_layout_is_kept_unless_another_gains(tmp_path, monkeypatch, seconds, best):
    """Ways to compute a product that take as long are decided by what they need."""
    definition, target = discover(Config(tmp_path, 1 << 20, ""))["cpu"]
    measure = Measure(definition.device(target), torch.Generator().manual_seed(0))

    def compare(runs, *_, **__):
        return {n: Timing(s, s) for n, s in zip(runs, seconds, strict=True)}

    monkeypatch.setattr(library_choice, "compare", compare)
    product = Product("cpu", 4, 48, 32, turned=True)
    assert measure.packed(product, NOTHING, True, False) == best


@torch.no_grad()
@pytest.mark.parametrize("biased", [False, True])
def test_what_is_measured_computes_the_same(tmp_path, monkeypatch, biased):
    """Every way to compute a product gives one result, with a bias if that is asked for."""
    definition, target = discover(Config(tmp_path, 1 << 20, ""))["cpu"]
    measure = Measure(definition.device(target), torch.Generator().manual_seed(0))
    actual = {}

    def compare(runs, *_, **__):
        actual.update({name: run() for name, run in runs.items()})
        return {name: Timing(1.0, 1.0) for name in runs}

    monkeypatch.setattr(library_choice, "compare", compare)
    relu = Activation("relu")
    assert measure.packed(Product("cpu", 4, 48, 32, turned=True), relu, biased, False) == ""
    whole, plain = actual.pop("onednn, whole"), actual.pop("")
    assert {"aten", "onednn"} <= actual.keys()
    for other in actual.values():
        torch.testing.assert_close(other, plain)
    assert torch.allclose(whole, plain, atol=1e-5) == biased
