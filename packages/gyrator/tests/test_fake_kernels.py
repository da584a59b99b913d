"""Results are right where a fake kernel is not, as some of older releases of torch are."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch_faults
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gyrator.config import Config
from gyrator.frontend.dynamo.eager_only import eager_only
from gyrator.reports.records import GraphRecord
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")
aten = torch.ops.aten


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return what gives an op the fake kernel of an older torch, made from the one of this."""

    def replace(op: Any, change: Callable[..., Any]) -> None:
        def fake(mode: FakeTensorMode, func: Any, *args: Any, **kwargs: Any) -> Any:
            own = op_implementations[op](mode, func, *args, **kwargs) if op in known else None
            return change(own, *args, **kwargs)

        monkeypatch.setitem(op_implementations_dict, op, fake)

    known = frozenset(op_implementations_dict)
    op_implementations = dict(op_implementations_dict)
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, fake_tensor_cache_enabled=False
    ):
        FakeTensorMode.cache_clear()
        torch._dynamo.reset()
        yield replace
    FakeTensorMode.cache_clear()


def turned(*sizes: int) -> torch.Tensor:
    """Return a tensor whose axes lie in reverse order."""
    return torch.randn(sizes[::-1]).permute(*range(len(sizes) - 1, -1, -1))


def row_by_row(own: Any, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


TRANSFORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fft": lambda x: torch.fft.fft(x, dim=1),
    "ifft": lambda x: torch.fft.ifft(x, dim=-2),
    "fftn": lambda x: torch.fft.fftn(x),
    "fft2": lambda x: torch.fft.fft2(x, dim=(2, 0)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_have_eager_strides(
    session: Session, older: Callable[..., None], name: str, dynamic: bool
) -> None:
    older(aten._fft_c2c.default, row_by_row)
    for real in (torch.randn(5, 10, 7), turned(4, 6, 3), turned(3, 5, 4).transpose(0, 1)):
        x = torch.complex(real, real.flip(0))
        want = TRANSFORMS[name](x)
        torch._dynamo.reset()
        got = torch.compile(TRANSFORMS[name], backend=session.backend, dynamic=dynamic)(x)
        torch.testing.assert_close(got, want, check_stride=True)


REAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rfft": lambda x: torch.fft.rfft(x, dim=1),
    "fft": lambda x: torch.fft.fft(x, dim=0),
    "rfft2": lambda x: torch.fft.rfft2(x, dim=(0, 2)),
    "rfftn": lambda x: torch.fft.rfftn(x),
    "ihfft": lambda x: torch.fft.ihfft(x, dim=1),
}


@pytest.mark.parametrize("name", REAL)
def test_transforms_of_real_numbers_have_eager_strides(
    session: Session, older: Callable[..., None], name: str
) -> None:
    def fake(own: Any, x: torch.Tensor, dim: Any, _: int, onesided: bool) -> torch.Tensor:
        shape = list(x.shape)
        if onesided:
            shape[dim[-1]] = shape[dim[-1]] // 2 + 1
        return x.new_empty(shape, dtype=torch.complex64)

    older(aten._fft_r2c.default, fake)
    for x in (torch.randn(5, 10, 7), turned(4, 6, 3), turned(3, 5, 4).transpose(0, 1)):
        want = REAL[name](x)
        torch._dynamo.reset()
        got = torch.compile(REAL[name], backend=session.backend)(x)
        torch.testing.assert_close(got, want, check_stride=True)


def test_transforms_to_real_numbers_have_eager_strides(
    session: Session, older: Callable[..., None]
) -> None:
    def fake(own: Any, x: torch.Tensor, dim: Any, _: int, last: int) -> torch.Tensor:
        shape = list(x.shape)
        shape[dim[-1]] = last
        return x.new_empty(shape, dtype=torch.float32)

    older(aten._fft_c2r.default, fake)
    for real in (torch.randn(5, 10, 7), turned(4, 6, 3)):
        for dims in ((0,), (1,), (2, 0), (0, 1), (0, 1, 2)):
            x = torch.complex(real, real.flip(0))
            f = lambda x: torch.fft.irfftn(x, dim=dims)  # noqa: B023, E731
            torch._dynamo.reset()
            got = torch.compile(f, backend=session.backend)(x)
            torch.testing.assert_close(got, f(x), check_stride=True)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_borders_of_images_have_eager_strides(
    session: Session, older: Callable[..., None], mode: str
) -> None:
    def fake(own: Any, x: torch.Tensor, pads: Any) -> torch.Tensor:
        left, right, top, bottom = pads
        return x.new_empty(*x.shape[:-2], x.shape[-2] + top + bottom, x.shape[-1] + left + right)

    older(aten.reflection_pad2d.default, fake)
    older(aten.replication_pad2d.default, fake)
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    f = lambda x: F.pad(x, (1, 2, 0, 1), mode=mode)  # noqa: E731
    got = torch.compile(f, backend=session.backend)(x)
    torch.testing.assert_close(got, f(x), check_stride=True)


COUNTS: dict[str, tuple[Any, Callable[[torch.Tensor], Any]]] = {
    "unique": (aten._unique2.default, lambda x: torch.unique(x, return_inverse=True)),
    "unique_counts": (aten._unique2.default, lambda x: x.unique(return_counts=True)),
    "unique_rows": (
        aten.unique_dim.default,
        lambda x: torch.unique(x.view(-1, 2), dim=0, return_inverse=True, return_counts=True),
    ),
    "unique_consecutive": (
        aten.unique_consecutive.default,
        lambda x: x.unique_consecutive(return_inverse=True),
    ),
    "bincount": (aten.bincount.default, lambda x: torch.bincount(x.abs() % 7)),
}


@torch_faults.COUNTS
@pytest.mark.filterwarnings("ignore")  # the one that says that a graph runs eagerly
@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_no_values(config: Config, older: Callable[..., None], name: str) -> None:
    def fake(own: Any, x: torch.Tensor, *_: Any, **__: Any) -> Any:
        if isinstance(own, torch.Tensor):
            return own.to(x.dtype)
        return (own[0], *(t.to(x.dtype) for t in own[1:]))

    op, function = COUNTS[name]
    x = (torch.arange(4000) // 3 % 2000).to(torch.int16)
    records: list[GraphRecord] = []
    options = {"progress": False}
    with Session(options=options, config=config, observer=records.append) as session:
        for why in ("", "the wrong dtype"):
            if why:
                older(op, fake)
            torch._dynamo.reset()
            got = torch.compile(function, backend=session.backend)(x)
            torch.testing.assert_close(got, function(x), rtol=0, atol=0)
            assert why in records[-1].fallback and bool(why) == bool(records[-1].fallback)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
def test_batch_norms_have_eager_strides(config: Config, known: bool, dynamic: bool) -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        count = x.shape[1]
        inputs = (x.new_zeros(count), x.new_ones(count)) if known else (None, None)
        return F.batch_norm(x, *inputs, training=True)

    with Session(options={"progress": False}, config=config) as session:
        for x in (turned(2, 17), turned(2, 3, 5), turned(2, 3, 4, 5)):
            torch._dynamo.reset()
            got = torch.compile(norm, backend=session.backend, dynamic=dynamic)(x)
            torch.testing.assert_close(got, norm(x))
            assert got.stride() == norm(x).stride()


def test_losses_of_logits_have_the_type_of_their_targets() -> None:
    def traced(*types: torch.dtype) -> Any:
        graph = torch.fx.Graph()
        logits, target = graph.placeholder("logits"), graph.placeholder("target")
        loss = F.binary_cross_entropy_with_logits
        result = graph.call_function(loss, (logits, target))
        for node, dtype in zip((logits, target, result), types, strict=True):
            node.meta["example_value"] = torch.empty(3, dtype=dtype)
        return eager_only(torch.fx.GraphModule({}, graph))

    wide, narrow = torch.float64, torch.bfloat16
    assert traced(wide, narrow, narrow) is None
    assert "the wrong dtype" in traced(wide, narrow, wide).message  # as torch 2.11 has it


@pytest.mark.parametrize("wrapper", ["python", "cpp"])
def test_sums_of_attention_on_doubles(
    config: Config, older: Callable[..., None], wrapper: str
) -> None:
    def fake(own: Any, q: torch.Tensor, *_: Any, **__: Any) -> Any:
        batch, heads, rows, _size = q.shape
        sums = q.new_empty((batch, rows, heads), dtype=torch.float32).transpose(1, 2)
        return torch.empty_like(q.transpose(1, 2)).transpose(1, 2), sums

    older(aten._scaled_dot_product_flash_attention_for_cpu.default, fake)
    f = lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)  # noqa: E731
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    with Session(options={"wrapper": wrapper, "progress": False}, config=config) as session:
        compiled = torch.compile(f, backend=session.backend)
        want, got = (torch.autograd.grad(g(x).square().sum(), x)[0] for g in (f, compiled))
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_different_rows_lie_as_eager_mode_lays_them(
    session: Session, records: list[GraphRecord], dynamic: bool
) -> None:
    x = torch.randint(0, 2, (4, 5, 3))
    x[:, 2] = x[:, 1]
    x[:, :, 1] = x[:, :, 0]
    programs: list[Callable[[torch.Tensor], Any]] = [
        *(lambda x, d=d: torch.unique_consecutive(x, dim=d) for d in (-1, 0, 1, 2, -2)),
        *(lambda x, d=d: torch.unique(x, dim=d, return_counts=True) for d in (-1, 0, 1, -3)),
        lambda x: x.unique_consecutive(True, True, -1),
        lambda x: torch.unique_consecutive(x, return_counts=True, dim=-1)[1] + 1,
    ]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for f in programs:
            torch._dynamo.reset()
            got = torch.compile(f, backend=session.backend, dynamic=dynamic)(x)
            torch.testing.assert_close(got, f(x), rtol=0, atol=0, check_stride=True)
            assert records[-1].fallback == ""


@pytest.mark.parametrize("length", [0, 1, 5])
def test_elements_that_differ_from_those_before_need_no_counts(
    session: Session, records: list[GraphRecord], length: int
) -> None:
    x = torch.randint(0, 2, (length,)).double()

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = torch.unique_consecutive(x, return_inverse=True, dim=0)
        return torch.unique_consecutive(x, dim=-1) * 2, values, places

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got = torch.compile(f, backend=session.backend)(x)
    torch.testing.assert_close(got, f(x), rtol=0, atol=0)
    assert records[-1].fallback == ""


def test_different_rows_in_a_recomputed_region(session: Session) -> None:
    x = torch.randint(0, 2, (4, 5, 3))
    x[:, :, 1] = x[:, :, 0]

    def f(x: torch.Tensor) -> torch.Tensor:
        rows = partial(torch.unique_consecutive, dim=-1)
        return checkpoint(lambda x: rows(x) * 2, x, use_reentrant=False)  # type: ignore[no-any-return]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got = torch.compile(f, backend=session.backend, fullgraph=True)(x)
    torch.testing.assert_close(got, f(x), rtol=0, atol=0)


def test_a_recomputed_region_draws_the_same_numbers_again(config: Config) -> None:
    x = torch.rand(3, 4, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        region = checkpoint(lambda x: x.clone().exponential_() * x, x, use_reentrant=False)
        return region  # type: ignore[no-any-return]

    gradients = []
    with Session(options={"progress": False}, config=config) as session:
        for function in (f, torch.compile(f, backend=session.backend)):
            torch.manual_seed(0)
            gradients += torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 1), (2, 3)])
def test_norms_along_axes_counted_from_the_end_have_gradients(
    session: Session, sizes: tuple[int, ...]
) -> None:
    programs: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.norm(3, -1),
        lambda x: torch.norm(x, 3, dim=[-1], keepdim=True),
        lambda x: torch.linalg.vector_norm(x, 3, dim=(-1,)),
        lambda x: torch.linalg.norm(x, 3, -1),
    ]
    for f in programs:
        x = torch.randn(sizes, requires_grad=True)
        got = torch.compile(f, backend=session.backend)(x)
        torch.testing.assert_close(got, f(x))
        (actual,) = torch.autograd.grad(got.sum(), x)
        torch.testing.assert_close(actual, torch.autograd.grad(f(x).sum(), x)[0])


@pytest.mark.parametrize("op", [torch.masked.var, torch.masked.std])
def test_masked_variances_of_integers_are_compiled(
    session: Session, records: list[GraphRecord], op: Callable[..., torch.Tensor]
) -> None:
    x = torch.randint(-9, 9, (4, 5))
    f = lambda x: op(x, 1, mask=x > -5)  # noqa: E731
    torch.testing.assert_close(torch.compile(f, backend=session.backend)(x), f(x))
    assert records[-1].fallback == ""
