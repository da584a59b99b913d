"""Graphs whose images become channels-last where their convolutions were measured faster so."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from runner_cache import with_runner
from torch import nn

from gyrator.autotune import library
from gyrator.autotune.layouts import channels_last_faster, smaller, work
from gyrator.autotune.library import LibraryChoice, available
from gyrator.config import Config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_lowering.fx_passes import ImageConvolution

pytestmark = pytest.mark.skipif(not available(), reason="this torch has no oneDNN")

PLAIN = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
THREE = ImageConvolution("cpu", torch.float32, (2, 8, 32, 32), (16, 8, 3, 3), False, PLAIN)


@pytest.fixture
def convolutions(monkeypatch: pytest.MonkeyPatch) -> list[ImageConvolution]:
    """Let points be quicker whatever is measured, and list the convolutions of each graph."""
    actual: list[ImageConvolution] = []

    def channels_last(
        _: LibraryChoice, convolutions: Sequence[ImageConvolution], _copied: Callable[[], int]
    ) -> bool:
        actual.extend(convolutions)
        return True

    monkeypatch.setattr(LibraryChoice, "channels_last", channels_last)
    return actual


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Session]:
    """Make sessions that share a cache of this test's own."""

    def make(records: Any = lambda record: None, **options: Any) -> Session:
        torch._dynamo.reset()
        inputs = {"strict": True, "progress": False, **options}
        config = Config(with_runner(tmp_path / "cache"), 1 << 30, "")
        return Session(options=inputs, config=config, observer=records)

    return make


def joined(channels: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, dilation=2, groups=2, bias=False),
        nn.GELU(),
        nn.ConvTranspose2d(2 * channels, channels, 2, stride=2),
        nn.Conv2d(channels, channels, 5, padding=2, groups=channels),
    )


def gradients(model: nn.Module, run: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    result = run(x)
    weights = list(model.parameters())
    return [result, *torch.autograd.grad(result.square().sum(), [x, *weights])]


@pytest.mark.parametrize(
    ("wrapper", "dtype", "dynamic"),
    [
        ("python", torch.float32, False),
        ("python", torch.bfloat16, True),
        ("cpp", torch.float32, True),
        ("fx", torch.bfloat16, False),
    ],
)
def test_results(
    convolutions: list[ImageConvolution],
    opened: Callable[..., Session],
    wrapper: str,
    dtype: torch.dtype,
    dynamic: bool,
) -> None:
    model = joined().to(dtype).eval()
    close: dict[str, Any] = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {}
    with opened(wrapper=wrapper) as session:
        compiled = torch.compile(model, backend=session.backend)
        for batch in (2, 5) if dynamic else (2,):
            x = torch.randn(batch, 3, 20, 24, dtype=dtype)
            if dynamic:
                torch._dynamo.mark_dynamic(x, 0)
            with torch.no_grad():
                actual, expected = compiled(x), model(x)
            torch.testing.assert_close(actual, expected, **close)
            assert actual.stride() == expected.stride()
    assert len(convolutions) == 4
    assert all(c.dtype == dtype and not c.gradients for c in convolutions)


def test_batches_whose_size_depends_on_data(
    convolutions: list[ImageConvolution], opened: Callable[..., Session]
) -> None:
    model = nn.Conv2d(3, 4, 3).eval()

    def run(x: torch.Tensor) -> torch.Tensor:
        return model(x[x[:, 0, 0, 0] > 0]).relu()

    with (
        opened() as session,
        torch.no_grad(),
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
    ):
        compiled = torch.compile(run, backend=session.backend, fullgraph=True)
        for sign in (1, -1):
            signs = torch.tensor([sign, sign, 1, sign, -1]).view(5, 1, 1, 1)
            x = torch.randn(5, 3, 8, 8).abs() * signs
            torch.testing.assert_close(compiled(x), run(x))
    (call,) = convolutions
    assert call.input == (1, 3, 8, 8)


@pytest.mark.parametrize("wrapper", ["python", "cpp"])
def test_gradients(
    convolutions: list[ImageConvolution], opened: Callable[..., Session], wrapper: str
) -> None:
    model = joined().train()
    x = torch.randn(2, 3, 20, 24)
    with opened(wrapper=wrapper) as session:
        actual = gradients(model, torch.compile(model, backend=session.backend), x)
    expected = gradients(model, model, x)
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-3)
        assert ours.stride() == reference.stride()
    assert sum(bool(c.gradients) for c in convolutions) == 4 and len(convolutions) == 8
    backward = {c.input for c in convolutions if c.gradients}
    assert backward == {c.input for c in convolutions if not c.gradients}


@pytest.mark.parametrize(
    "options",
    [{"numerics": "bitwise"}, {"numerics": "batch_invariant"}, {"extern_kernels": "none"}],
)
def test_modes_without_a_choice(
    convolutions: list[ImageConvolution], opened: Callable[..., Session], options: dict[str, str]
) -> None:
    model = nn.Conv2d(3, 4, 3).eval()
    with opened(**options) as session, torch.no_grad():
        x = torch.randn(2, 3, 8, 8)
        actual = torch.compile(model, backend=session.backend)(x)
        torch.testing.assert_close(actual, model(x))
    assert not convolutions


def test_images_that_are_channels_last_already(
    convolutions: list[ImageConvolution], opened: Callable[..., Session]
) -> None:
    model = joined().eval().to(memory_format=torch.channels_last)
    records: list[GraphRecord] = []
    with opened(records.append) as session, torch.no_grad():
        x = torch.randn(2, 3, 20, 24).to(memory_format=torch.channels_last)
        actual, expected = torch.compile(model, backend=session.backend)(x), model(x)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()
    assert not any("clone" in k.name for r in records for k in r.kernels)


@pytest.mark.parametrize("quicker", ["channels_first", "channels_last"])
def test_the_quicker_layout_is_taken_and_remembered(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, quicker: str
) -> None:
    measured: list[ImageConvolution] = []

    def timed(convolution: ImageConvolution, *_: Any) -> dict[str, float]:
        measured.append(convolution)
        return {"channels_first": 2.0, "channels_last": 2.0, "copy": 0.1, quicker: 1.0}

    monkeypatch.setattr(library, "timed", timed)
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)).eval()
    x = torch.randn(1, 8, 40, 40)
    for turn in range(2):
        records: list[GraphRecord] = []
        with opened(records.append) as session, torch.no_grad():
            actual = torch.compile(model, backend=session.backend)(x if turn else x[:, :, 1:])
            torch.testing.assert_close(actual, model(x if turn else x[:, :, 1:]))
        kernels = [k.name for r in records for k in r.kernels]
        assert any("clone" in name for name in kernels) == (quicker == "channels_last")
    assert len(measured) == len(set(measured))


def test_copies_have_to_be_paid() -> None:
    def faster(first: float, copied: int) -> bool:
        seconds = {"channels_first": first, "channels_last": 1.0, "copy": 1.0}
        return channels_last_faster([one, one], lambda _: seconds, lambda: copied)

    one = evolve(THREE, input=(1, 8, 32, 32))
    image = math.prod(one.input)
    assert smaller(one) == one
    assert faster(2.0, 0) and faster(2.0, image) and not faster(2.0, 2 * image)
    assert faster(3.0, 2 * image) and not faster(1.04, 0)


def test_a_slow_copy_of_a_small_image_does_not_decide() -> None:
    large, small = (evolve(THREE, input=(1, 8, size, size)) for size in (32, 16))
    copies = {large: 1.0, small: 2.0}

    def measure(convolution: ImageConvolution) -> dict[str, float]:
        return {"channels_first": 2.0, "channels_last": 1.0, "copy": copies[convolution]}

    def faster(copied: int) -> bool:
        return channels_last_faster([large, small, small], measure, lambda: copied)

    elements = math.prod(large.input) + math.prod(small.input)
    assert faster(4 * elements // 5) and not faster(elements)


def test_what_is_measured() -> None:
    assert work(evolve(THREE, input=(4, 8, 32, 32))) == pytest.approx(2 * work(THREE), rel=0.1)
    assert work(evolve(THREE, gradients=(True, True, False))) == 2 * work(THREE)
    large = evolve(THREE, input=(64, 64, 512, 512), weight=(64, 64, 3, 3))
    small = smaller(large)
    assert work(small) < work(large) / 64 and small.input[1] == 64
    assert smaller(small) == small
    window = evolve(THREE, input=(1, 8, 40, 4000), weight=(8, 8, 31, 31))
    assert min(smaller(window).input[2:]) >= 31


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_measured_convolution_has_a_limited_number_of_channels(
    transposed: bool, groups: int
) -> None:
    """VGG's first linear layer as a convolution: one measurement of it as it is takes seconds."""
    out, inputs = (512, 4096) if transposed else (4096, 512)
    parameters = ((1, 1), (0, 0), (1, 1), transposed, (0, 0), groups)
    weight = (out, inputs // groups, 7, 7)
    head = ImageConvolution("cpu", torch.float32, (1, 512, 7, 7), weight, True, parameters)
    small = smaller(head)
    assert work(small) <= 1 << 30 < work(head)
    assert small.input[2:] == head.input[2:]
    x, w = torch.empty(small.input, device="meta"), torch.empty(small.weight, device="meta")
    assert torch.convolution(x, w, None, *parameters).dim() == 4
    images = evolve(head, input=(1, 64, 4000, 4000), weight=(64, 64 // groups, 7, 7))
    assert smaller(images).weight == images.weight


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", [(), (True, True, True), (False, True, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_convolution_can_be_timed(
    opened: Callable[..., Session], transposed: bool, mask: tuple[bool, ...], dtype: torch.dtype
) -> None:
    weight = (8, 8, 3, 3) if transposed else (16, 4, 3, 3)
    parameters = ((2, 2), (1, 1), (1, 1), transposed, (0, 0), 1 if transposed else 2)
    one = ImageConvolution("cpu", dtype, (2, 8, 12, 10), weight, True, parameters, mask)
    with opened() as session:
        libraries = session.engine(session.options).libraries()
        assert libraries is not None
        seen = libraries.channels_last([one, one], lambda: 0)
        assert libraries.channels_last([one], lambda: 0) == seen  # as it was measured
        assert not libraries.channels_last([one], lambda: 1 << 60)
