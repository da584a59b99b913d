"""Results have eager's strides where torch's fake kernels, or decompositions, have others."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from gyrator.frontend.dynamo import eager_strides
from gyrator.frontend.dynamo.graph import name_of
from gyrator.reports.records import GraphRecord
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")


def turned(*sizes: int) -> torch.Tensor:
    """Return a tensor whose axes lie in reverse order."""
    return torch.randn(sizes[::-1]).permute(*range(len(sizes) - 1, -1, -1))


def strides(x: torch.Tensor) -> list[int]:
    """Return the strides of axes with several elements; others say nothing."""
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1]


def channels_last(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes).contiguous(memory_format=torch.channels_last)


def places(*sizes: int) -> torch.Tensor:
    return (turned(*sizes) * 3).to(torch.int64).clamp(-2, 2)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "heaviside": (torch.heaviside, lambda: (torch.randn(5), turned(4, 5))),
    "power": (lambda x: 2.0**x, lambda: (turned(3, 8, 4),)),
    "logical": (torch.logical_and, lambda: (torch.randn(3, 1), turned(3, 5))),
    "quotient": (
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda: (turned(3, 5), torch.randn(())),
    ),
    "floor": (lambda x, y: x // y, lambda: (turned(3, 5), torch.rand(3, 5) + 1)),
    "floor_method": (
        lambda x, y: x.__floordiv__(y),
        lambda: (turned(3, 4, 5), torch.rand(3, 4, 5) + 1),
    ),
    "power_method": (lambda x: x.__rpow__(2.0), lambda: (turned(3, 4, 5),)),
    "bits_of_power": (lambda x: x.new_ones(()) & 2**x, lambda: (turned(3, 8, 4).int().abs(),)),
    "written_later": (
        lambda x, y: torch.heaviside(x, y).mul_(2).add_(x),
        lambda: (torch.randn(5), turned(4, 5)),
    ),
    "log_sigmoid": (F.logsigmoid, lambda: (turned(4, 5),)),
    "batch_norm": (
        lambda x: F.batch_norm(x, x.new_zeros(3), x.new_ones(3), training=False),
        lambda: (turned(4, 3, 5, 6),),
    ),
    "batch_norm_training": (
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda: (turned(4, 3),),
    ),
    "batch_norm_of_volumes": (
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda: (torch.randn(4, 2, 3, 3, 3).contiguous(memory_format=torch.channels_last_3d),),
    ),
    "batch_norm_of_one_image": (
        lambda x: F.batch_norm(x, x.new_zeros(2), x.new_ones(2)),
        lambda: (torch.randn(36).as_strided((1, 2, 2, 3), (2, 1, 6, 2)),),
    ),
    "product_of_logarithm": (torch.xlogy, lambda: (turned(4, 5), torch.rand(4, 5))),
    "product_of_logarithm_plus": (torch.special.xlog1py, lambda: (turned(4, 5), torch.rand(4, 5))),
    "scaled": (torch.ldexp, lambda: (turned(6, 4, 5), turned(4, 5))),
    "entropies": (
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction="none"),
        lambda: (turned(4, 5), torch.randn(4, 5)),
    ),
    "losses_of_pixels": (
        lambda x, y: F.cross_entropy(x, y.abs(), reduction="none"),
        lambda: (turned(2, 3, 4, 5), places(2, 4, 5)),
    ),
    "angle": (torch.angle, lambda: (turned(4, 5).to(torch.complex64) * 1j,)),
    "copysign": (torch.copysign, lambda: (torch.randn(5), turned(4, 5))),
    "isin": (torch.isin, lambda: (turned(4, 5), torch.randn(3))),
    "channel_shuffle": (
        lambda x: F.channel_shuffle(x, 2),
        lambda: (channels_last(2, 4, 3, 5),),
    ),
    "one_group": (lambda x: F.channel_shuffle(x, 1), lambda: (torch.randn(2, 4, 3, 5),)),
    "reflected": (
        lambda x: F.pad(x, (1, 1, 2, 0, 1, 1), mode="reflect"),
        lambda: (channels_last(2, 3, 4, 5),),
    ),
    "replicated": (
        lambda x: F.pad(x, (1, 1, 2, 0, 1, 1), mode="replicate"),
        lambda: (torch.randn(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),),
    ),
    "reflected_images": (
        lambda x: F.pad(x, (1, 1, 2, 0), mode="reflect"),
        lambda: (channels_last(2, 3, 4, 5),),
    ),
    "replicated_images": (
        lambda x: F.pad(x, (1, -1, 2, 0), mode="replicate"),
        lambda: (channels_last(2, 3, 4, 5),),
    ),
    "unpool": (
        lambda x: F.max_unpool2d(x, (x * 0).long() + torch.arange(6).view(2, 3), 2),
        lambda: (channels_last(2, 4, 2, 3),),
    ),
    "pooled_rows": (lambda x: F.max_pool1d(x, 2), lambda: (turned(2, 3, 6),)),
    "rrelu": (F.rrelu, lambda: (turned(4, 5, 3),)),
    "rrelu_training": (
        lambda x: F.rrelu(x, 0.25, 0.25, training=True),
        lambda: (channels_last(2, 4, 3, 5),),
    ),
    "poisson": (lambda x: torch.poisson(x), lambda: (turned(4, 5) * 0,)),
    "roll": (lambda x: x.roll(2, -1), lambda: (channels_last(2, 3, 4, 5),)),
    "roll_axes": (lambda x: x.roll((2, 1), (-1, 0)), lambda: (channels_last(2, 3, 4, 5),)),
    "shift": (torch.fft.fftshift, lambda: (channels_last(2, 3, 4, 6),)),
    "shift_back": (torch.fft.ifftshift, lambda: (channels_last(2, 3, 4, 5),)),
    "roll_flat": (lambda x: x.roll(2), lambda: (turned(4, 5),)),
    "roll_turned": (lambda x: x.roll(1, 0), lambda: (turned(4, 5),)),
    "index": (lambda x, i: x[:, i], lambda: (torch.randn(3, 6, 4), places(4, 5))),
    "index_of_one": (lambda x, i: x[:-1][:, :, i], lambda: (turned(6, 1, 4), places(5, 1, 3))),
    "index_fill": (
        lambda x: x.index_fill(-1, torch.tensor([0]), 2),
        lambda: (turned(4, 3).expand(2, 4, 3),),
    ),
    "one_hot": (lambda i: F.one_hot(i.abs(), 5), lambda: (places(4, 3, 2),)),
    "indices_apart": (lambda x, i: x[i, :, i], lambda: (torch.randn(3, 6, 4), places(4, 5))),
    "index_expanded": (
        lambda x, i: x[..., i].expand(2, 3, 4, 5),
        lambda: (torch.randn(3, 6), places(4, 5)),
    ),
    "parts_of_isin": (
        lambda x: torch.isin(x, 2.0).split(2, 1)[1],
        lambda: (turned(4, 5, 3),),
    ),
    "slices_of_heaviside": (
        lambda x: torch.heaviside(x[0], x)[:, 1:3].unsqueeze(1),
        lambda: (turned(4, 5),),
    ),
    "scattered": (
        lambda x: torch.as_strided_scatter(x, torch.zeros(2), (2,), (1,)),
        lambda: (torch.randn(3).expand(4, 3),),
    ),
    "scattered_columns": (
        lambda x: torch.as_strided_scatter(x, torch.zeros(2), (2,), (1,)),
        lambda: (torch.randn(4, 1).expand(4, 3),),
    ),
    "normal": (lambda x: torch.normal(x * 0, x * 0), lambda: (turned(4, 5).abs(),)),
    "normal_deviation": (lambda x: torch.normal(0.0, x * 0), lambda: (turned(4, 5).abs(),)),
    "fourier_of_shared_places": (
        lambda x: torch.fft.fft(x.as_strided((1, 2, 4, 3), (1, 1, 1, 1)), dim=0),
        lambda: (torch.randn(10),),
    ),
    "real_of_shared_places": (
        lambda x: torch.fft.irfft(x.as_strided((3, 2, 4), (1, 1, 1)), dim=0, n=4),
        lambda: (torch.randn(10, dtype=torch.complex64),),
    ),
    "read_on": (
        lambda x, i: (x[i] * 2).tanh().square() + 1,
        lambda: (torch.randn(6), places(4, 5)),
    ),
}

SEVERAL = {
    "bits_of_power", "log_sigmoid", "batch_norm_training", "unpool", "rrelu", "rrelu_training",
    "index_fill", "one_hot", "poisson", "fourier_of_shared_places", "real_of_shared_places",
    "scaled", "scattered", "scattered_columns", "normal", "normal_deviation",
}  # fmt: skip
"""What takes calls, or more than one kernel."""


def compare(session: Session, names: Sequence[str], dynamic: bool) -> None:
    """Compile cases as one graph, and compare each result and its strides."""
    inputs = [CASES[name][1]() for name in names]

    def run(inputs: list[tuple[torch.Tensor, ...]]) -> list[Any]:
        return [CASES[name][0](*tensors) for name, tensors in zip(names, inputs, strict=True)]

    with torch.no_grad():
        wants = run(inputs)
        gots = torch.compile(run, backend=session.backend, dynamic=dynamic)(inputs)
    for name, got, want in zip(names, gots, wants, strict=True):
        assert strides(got) == strides(want), name
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_strides(session: Session, records: list[GraphRecord], dynamic: bool) -> None:
    compare(session, sorted(CASES.keys() - SEVERAL), dynamic)
    assert len(records[0].kernels) == 1, [k.ops for k in records[0].kernels]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_strides_of_several_kernels_and_calls(session: Session, dynamic: bool) -> None:
    compare(session, sorted(SEVERAL), dynamic)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return normalized(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 2


def normalized(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True)


BODIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "checkpoint": lambda x: checkpoint(normalized, x, use_reentrant=False),
    "nested": lambda x: checkpoint(
        lambda x: checkpoint(normalized, x, use_reentrant=False), x, use_reentrant=False
    ),
    "cond": lambda x: torch.cond(
        x.sum() > 0, lambda x: (normalized(x),), lambda x: (normalized(-x),), (x,)
    ),
    "function": Doubled.apply,
    "vmap": lambda x: torch.vmap(normalized)(x.repeat(2, 1, 1))[1],
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", BODIES)
def test_strides_of_what_bodies_return(session: Session, name: str, training: bool) -> None:
    x = turned(4, 3).requires_grad_(training)
    got = torch.compile(BODIES[name], backend=session.backend)(x)
    for actual, want in zip(tree_leaves(got), tree_leaves(BODIES[name](x)), strict=True):
        torch.testing.assert_close(actual, want, check_stride=True)


def test_numbers_that_are_inputs_do_not_hide_strides(session: Session) -> None:
    norm = torch.nn.BatchNorm2d(3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: 2.0 ** norm(x), x, use_reentrant=False)

    x = channels_last(2, 3, 4, 5)
    got = torch.compile(f, backend=session.backend, dynamic=True)(x)
    torch.testing.assert_close(got, f(x), check_stride=True)


def test_branches_that_lie_differently_keep_the_strides_of_the_fake_results(
    session: Session,
) -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (normalized(x),), lambda x: (x + 1,), (x,))

    x = turned(4, 3).abs() + 1
    got = torch.compile(f, backend=session.backend)(x)
    torch.testing.assert_close(got[0], f(x)[0])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows_pooled_with_gradients_lie_as_two_axes_do(session: Session, dynamic: bool) -> None:
    x = turned(2, 3, 6).requires_grad_()
    got = torch.compile(lambda x: F.max_pool1d(x, 2), backend=session.backend, dynamic=dynamic)(x)
    torch.testing.assert_close(got, F.max_pool1d(x, 2), check_stride=True)


def test_only_calls_whose_strides_may_differ_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    run = eager_strides._Run.run_node

    def counted(self: Any, n: Any) -> Any:
        names.append(name_of(n) if n.op.startswith("call_") else "")
        return run(self, n)

    def backend(gm: Any, inputs: Sequence[Any]) -> Any:
        eager_strides.strides_of_results(gm)
        return gm

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return F.batch_norm(x.sin(), y[0] * 0, y[0] + 1).cos(), torch.heaviside(y[0], z).tan()

    monkeypatch.setattr(eager_strides._Run, "run_node", counted)
    x, y, z = channels_last(2, 3, 4, 5), torch.randn(1, 3), turned(4, 3)
    torch.compile(f, backend=backend)(x, y, z)
    assert [n for n in names if n] == ["batch_norm", "heaviside", "tan"]


def test_a_training_step_saves_the_result_once(
    session: Session, records: list[GraphRecord]
) -> None:
    x, i = torch.randn(6, requires_grad=True), places(4, 5)

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i].exp()

    y = torch.compile(f, backend=session.backend)(x, i)
    assert y.stride() == f(x, i).stride()
    saved = {t.data_ptr() for t in y.grad_fn.saved_tensors if t.is_floating_point()}
    assert saved <= {x.data_ptr(), y.data_ptr()}
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(f(x, i).sum(), x)[0])


def test_results_of_any_element_type(session: Session) -> None:
    for dtype in (torch.complex64, torch.float32):
        x, i = torch.randn(6, dtype=dtype), places(4, 5)
        got = torch.compile(lambda x, i: x[i], backend=session.backend)(x, i)
        torch.testing.assert_close(got, x[i], check_stride=True)


def test_results_that_share_memory_still_do(session: Session) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x[i]
        return y, y[1:]

    y, z = torch.compile(f, backend=session.backend)(torch.randn(6), places(4, 5))
    z.zero_()
    assert y[1:].eq(0).all() and y.data_ptr() != z.data_ptr()
