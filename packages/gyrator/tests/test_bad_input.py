"""What eager mode refuses raises the same type of exception from compiled programs."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_faults
from torch.nn import functional as F

from gyrator.config import Config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_runtime.warn import GyratorWarning

pytestmark = pytest.mark.usefixtures("lightly_optimised")
WRAPPERS = ("python", "cpp", "fx")
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def outcome(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Any:
    """Return the results and the inputs after the call, or the exception."""
    arguments = [as_strided_copy(x) for x in inputs]
    try:
        return [function(*arguments), *arguments]
    except Exception as error:
        return error


def as_strided_copy(x: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, overlapping or not."""
    flat = x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,)).clone()
    return flat.as_strided(x.shape, x.stride())


def same_outcome(
    session: Session, function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], dynamic: bool
) -> Any:
    torch._dynamo.reset()
    want = outcome(function, inputs)
    got = outcome(torch.compile(function, backend=session.backend, dynamic=dynamic), inputs)
    if isinstance(want, Exception):
        assert isinstance(got, type(want)), (got, want)
    else:
        torch.testing.assert_close(got, want)
    return want


@pytest.fixture(scope="module")
def sessions(config: Config) -> dict[str, Session]:
    return {
        w: Session(options={"wrapper": w, "progress": False, "strict": True}, config=config)
        for w in WRAPPERS
    }


X, ROWS, WHOLE = torch.randn(4), torch.randn(4, 3), torch.arange(4)
OUT, BELOW = torch.tensor([0, 4]), torch.tensor([0, -5])
SHIFTED = torch.randn(6).as_strided((3, 4), (1, 1))
NOUGHTS = torch.zeros(4, dtype=torch.int64)
NAN = torch.tensor([math.nan, math.inf, -math.inf])
HALVES, BYTES = torch.ones(4, dtype=torch.float16), torch.arange(4, dtype=torch.uint8)
NOTHING, WITHOUT_COLUMNS = torch.zeros(0), torch.zeros(0, 0)

TOO_LARGE: dict[str, Case] = {
    "full": (lambda x: torch.full_like(x, 300), (BYTES,)),
    "full_infinity": (
        lambda x: torch.full((2,), float("inf"), dtype=torch.int32) + x,
        (WHOLE[:2],),
    ),
    "fill": (lambda x: x.fill_(-300), (BYTES,)),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -1e9), (HALVES,)),
    "where": (lambda x: torch.where(x > 3, x, 300), (BYTES,)),
    "clamp": (lambda x: x.clamp(-5, 300), (BYTES,)),
    "hardtanh": (lambda x: F.hardtanh(x, -1.0, 1e6), (HALVES,)),
    "threshold": (lambda x: F.threshold(x, 0.0, 1e6), (HALVES,)),
    "pad": (lambda x: F.pad(x, (1, 1), value=1e6), (HALVES,)),
    "scatter": (lambda x, i: x.scatter(0, i, 300), (BYTES, WHOLE)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 300), (BYTES, WHOLE)),
    "logit": (lambda x: torch.logit(x, 1e6), (HALVES,)),
    "alpha": (lambda x: torch.add(x, x, alpha=300), (BYTES,)),
}
FITTING: dict[str, Case] = {
    "negative": (lambda x: torch.full_like(x, -255), (BYTES,)),
    "infinity": (lambda x: x.masked_fill(x > 0, -float("inf")), (HALVES,)),
    "largest": (lambda x: x.clamp(max=65504.0), (HALVES,)),
    "fraction": (lambda x: torch.full_like(x, 3.7), (BYTES,)),
    "true": (lambda x: torch.full_like(x, 5, dtype=torch.bool), (BYTES,)),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_numbers_that_overflow_a_dtype_raise(case: str, sessions: dict[str, Session]) -> None:
    for dynamic in (False, True):
        want = same_outcome(sessions["python"], *TOO_LARGE[case], dynamic)
        assert isinstance(want, RuntimeError)


@pytest.mark.parametrize("case", FITTING)
def test_numbers_that_a_dtype_holds_are_converted(case: str, sessions: dict[str, Session]) -> None:
    assert not isinstance(same_outcome(sessions["python"], *FITTING[case], False), Exception)


KERNELS: dict[str, Case] = {
    "floor_divide": (lambda x, y: x // y, (WHOLE, NOUGHTS)),
    "remainder": (lambda x, y: x % y, (WHOLE, NOUGHTS)),
    "index": (lambda x, i: x[i], (X, OUT)),
    "index_below": (lambda x, i: x[i], (X, BELOW)),
    "index_put": (lambda x, i: x.index_put((i,), x[:2]), (X, OUT)),
    "gather": (lambda x, i: x.gather(0, i), (X, BELOW)),
    "scatter": (lambda x, i: x.scatter(0, i, x[:2]), (X, OUT)),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, x[:2]), (X, OUT)),
    "index_select": (lambda x, i: x.index_select(0, i), (X, OUT)),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), (X, OUT)),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:2]), (X, OUT)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), (X, OUT)),
    "embedding": (lambda x, i: F.embedding(i, x), (ROWS, OUT)),
    "cross_entropy": (F.cross_entropy, (ROWS[:2], OUT)),
    "too_few_values": (lambda x, i, v: x.index_put((i,), v), (X, WHOLE[:3], X[:2])),
    "too_many_values": (lambda x, i, v: x.__setitem__(i, v), (X, WHOLE[:2], X[:3])),
    "too_few_to_add": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (X, WHOLE[:3], X[:2]),
    ),
    "values_of_other_rows": (lambda x, i, v: x.index_put((i,), v), (ROWS, WHOLE[:2], ROWS[:2, :2])),
    "other_rows_to_add": (lambda x, i, v: x.index_add(0, i, v), (ROWS, WHOLE[:2], ROWS[:2, :2])),
    "strided_outside": (lambda x: (x + 1).as_strided((3, 2), (2, 1)), (X,)),
    "strided_nothing": (lambda x: (x + 1).as_strided((2,), (1,)), (NOTHING,)),
    "strided_complex": (lambda x: (x * 1j).as_strided((2, 2), (4, 1)) * 2, (X,)),
    "log_gammas_of_bools": (lambda x: torch.mvlgamma(x > 0, 2), (X,)),
    "log_gammas_of_none": (lambda x: torch.mvlgamma(x + 9, 0), (X,)),
    "losses_of_two_types": (
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
        (X, X.double()),
    ),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_kernels_refuse_what_eager_refuses(
    sessions: dict[str, Session], wrapper: str, dynamic: bool
) -> None:
    for function, inputs in KERNELS.values():
        actual = same_outcome(sessions[wrapper], function, inputs, dynamic)
        assert isinstance(actual, Exception)


EMPTY: dict[str, Case] = {
    "index_of_nothing": (lambda x, i: x[i], (WITHOUT_COLUMNS, OUT)),
    "index_put_of_nothing": (lambda x, i: x.index_put((i,), X[0]), (WITHOUT_COLUMNS, OUT)),
    "rows_of_nothing": (lambda x, i: x.index_select(0, i), (WITHOUT_COLUMNS, OUT)),
    "columns_of_nothing": (lambda x, i: x.index_select(1, i), (torch.zeros(0, 3), OUT)),
    "embedding_of_nothing": (lambda x, i: F.embedding(i, x), (WITHOUT_COLUMNS, OUT)),
    "index_fill_of_nothing": (lambda x, i: x.index_fill(1, i, 2.0), (torch.zeros(4, 0), OUT)),
    "index_put_of_a_number": (lambda x, i: x.index_put((i,), x), (torch.ones(()), NOUGHTS[:1])),
    "index_copy_of_nothing": (lambda x, i, v: x.index_copy(0, i, v), (NOTHING, OUT, X[:2])),
}


@pytest.mark.parametrize("probability", [1.5, -0.5, float("nan")])
def test_what_is_no_probability_is_refused(
    sessions: dict[str, Session], probability: float
) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x, probability, True)[0] * 2

    assert isinstance(same_outcome(sessions["python"], run, (X,), dynamic=False), RuntimeError)


@pytest.mark.parametrize("wrapper", ["python", "fx"])  # the C ABI tells no types of exceptions
def test_places_in_nothing_are_refused(sessions: dict[str, Session], wrapper: str) -> None:
    for function, inputs in EMPTY.values():
        actual = same_outcome(sessions[wrapper], function, inputs, dynamic=False)
        assert isinstance(actual, Exception)


@pytest.mark.parametrize("name", ["index_fill", "index_copy", "index_add"])
def test_places_in_what_may_be_nothing(sessions: dict[str, Session], name: str) -> None:
    def run(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(x[x[:, 0] > 9], 0, i, 2.0 if name == "index_fill" else v) * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for x in (ROWS, ROWS + 99):
            same_outcome(sessions["python"], run, (x, WHOLE[:2], ROWS[:2]), dynamic=False)


def _written(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x[(i + 0).item()] = 7.0
    return x + 1


def _narrowed(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x.narrow(0, (i + 0).item(), 2).fill_(3.0)  # type: ignore[arg-type]
    return x + 1


def _asserted(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    at = (i + 0).item()
    torch._check(at >= 0)
    torch._check(at < x.shape[0])
    return x[at] + 1  # type: ignore[index]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [_written, _narrowed, _asserted])
def test_indices_that_are_read_from_tensors(
    sessions: dict[str, Session], function: Callable[..., torch.Tensor], dynamic: bool
) -> None:
    """PyTorch's front end asserts their bounds, for which it raises RuntimeError."""
    size = ROWS.shape[0]
    raised = set()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for at in (0, size - 1, size, -size, -size - 1):
            outcome = same_outcome(
                sessions["python"], function, (ROWS, torch.tensor(at)), dynamic=dynamic
            )
            raised.add(type(outcome))
    assert IndexError in raised or function is _asserted


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_nothing_is_not_resized(session: Session, mode: str, dynamic: bool) -> None:
    """PyTorch's own decompositions raise IndexError where eager raises RuntimeError."""

    def last(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x[..., 4:], size=5, mode=mode)

    compiled = torch.compile(last, backend=session.backend, dynamic=dynamic)
    for width in (9, 4):
        x = torch.randn(2, 3, width)
        if width > 4:
            torch.testing.assert_close(compiled(x), last(x))
        else:
            with pytest.raises((RuntimeError, IndexError)):
                compiled(x)


def test_factors_of_two_types_have_no_gradient(config: Config) -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        y = x.bfloat16()
        return torch.addr(y, x, y)

    options = {"extern_kernels": "none", "progress": False}
    with Session(options=options, config=config) as session:
        for f in (outer, torch.compile(outer, backend=session.backend)):
            with pytest.raises(RuntimeError, match="type"):
                f(torch.randn(4, requires_grad=True)).sum().backward()


NUMBERS: dict[str, Case] = {
    "quotient": (lambda x, y: x + x.sum().item() // y.sum().item(), (WHOLE, NOUGHTS)),
    "remainder": (lambda x, y: x + x.sum().item() % y.sum().item(), (WHOLE, NOUGHTS)),
    "size": (lambda x, y: x.new_zeros(12 // y.sum().item()), (WHOLE, NOUGHTS)),
    "narrow": (lambda x, i: x.narrow(0, i.item(), 2) * 2, (X, torch.tensor(3))),
    "negative_size": (lambda x, i: x.new_zeros(i.item()), (X, torch.tensor(-3))),
    "view": (lambda x, i: x.view(i.item(), 2) + 1, (X, torch.tensor(3))),
    "item": (lambda x, i: x[i[1].item()] + 1, (X, OUT)),
    "item_below": (lambda x, i: x[i[1].item()] + 1, (X, BELOW)),
    "select": (lambda x, i: x.select(1, i[1].item()) * 2, (ROWS, OUT)),
    "select_below": (lambda x, i: x.select(1, i[1].item()) * 2, (ROWS, BELOW)),
    "select_written": (lambda x, i: x.clone().select(0, i[1].item()).fill_(2), (X, OUT)),
    "select_of_read_size": (lambda x, i: x.nonzero().select(0, i[1].item()), (X[:3], OUT)),
    "select_scatter": (lambda x, y, i: x.select_scatter(y, 0, i[1].item()), (ROWS, X[:3], OUT)),
    "select_scatter_below": (
        lambda x, y, i: x.select_scatter(y, 1, i[1].item()),
        (ROWS, X, BELOW),
    ),
    "int_of_nan": (lambda x, y: x + int(y[0].item()), (X, NAN)),
    "size_of_nan": (lambda x, y: x.new_ones(math.ceil(y[0].item())), (X, NAN)),
    "int_of_infinity": (lambda x, y: x + int(y[1].item()), (X, NAN)),
    "floor_of_infinity": (lambda x, y: x + math.floor(y[2].item()), (X, NAN)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_numbers_that_were_read(sessions: dict[str, Session], wrapper: str) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for function, inputs in NUMBERS.values():
            actual = same_outcome(sessions[wrapper], function, inputs, dynamic=False)
            assert isinstance(actual, Exception)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_least_integer_divided_by_minus_one(sessions: dict[str, Session], wrapper: str) -> None:
    def divided(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x + (-(2**63)) // i[0].item()

    def remainder(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x + (-(2**63)) % i[0].item()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for function in (divided, remainder):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=sessions[wrapper].backend)
            three, less = torch.tensor([3]), torch.tensor([-1])
            torch.testing.assert_close(compiled(WHOLE, three), function(WHOLE, three))
            if function is remainder:
                assert torch.equal(compiled(WHOLE, less), WHOLE)
            else:
                with pytest.raises(OverflowError):
                    compiled(WHOLE, less)


BY_PYTORCH: dict[str, Case] = {
    "expanded": (lambda x: x.add_(1), (torch.randn(1).expand(4),)),
    "expanded_inside": (lambda x: x[:1].expand(4).add_(1), (X,)),
    "expanded_filled": (lambda x: x.fill_(1), (torch.randn(1).expand(4),)),
    "shifted": (lambda x: x[1:].add_(x[:-1]), (X,)),
    "shifted_item": (lambda x: x.__setitem__(slice(1, None), x[:-1]), (X,)),
    "shifted_out": (lambda x: torch.add(x[:-1], 1, out=x[1:]), (X,)),
    "turned": (lambda x: x.mul_(x.t()), (torch.randn(3, 3),)),
    "as_strided": (lambda x: torch.as_strided(x, (2, 2), (1, 1)).mul_(2), (X,)),
    "part_of_overlapping": (lambda x: x.__setitem__(0, 1), (SHIFTED,)),
    "inside_of_overlapping": (lambda x: x[1].__setitem__(slice(2), 2), (SHIFTED,)),
    "row_of_overlapping": (lambda x: x.select(0, 1).mul_(3), (SHIFTED,)),
    "list_of_overlapping": (lambda x: torch._foreach_add_([x[0], x[2]], 1), (SHIFTED,)),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 0, 1, 3), (ROWS, ROWS[:1])),
    "select_scatter": (lambda x, y: x.select_scatter(y, 0, 1), (ROWS, X)),
    "select_scatter_outside": (lambda x, y: x.select_scatter(y, 0, 9), (ROWS, ROWS[0])),
    "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y), (ROWS, X)),
    "diagonal_of_overlapping": (lambda x: x.diagonal_scatter(x.diagonal() * 2), (SHIFTED,)),
    "hardshrink": (lambda x: F.hardshrink(x, 1e6), (HALVES,)),
    "celu": (lambda x: F.celu(x, 0.0), (X,)),
    "quantised": (
        lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).relu().dequantize(),
        (X,),
    ),
    "bernoulli": (lambda x: torch.bernoulli(x, 1.5) + 1, (X,)),
    "huber": (F.huber_loss, (X, X.double() * 2)),
    "soft_margin": (F.soft_margin_loss, (X, X.double() * 2)),
    "unused_max": (lambda x: x.max().new_ones(2), (X[:0],)),
    "unused_min": (lambda x: torch.min(x, dim=-1)[0].shape[0] + x.sum(), (ROWS[:, :0],)),
    "unused_median": (lambda x: (x.median(0), x + 1)[1], (ROWS[:0],)),
    "unused_mode": (lambda x: (x.mode(dim=-2), x + 1)[1], (ROWS[:0],)),
}


OTHERWISE = {"select_scatter_outside", "diagonal_scatter", "quantised"}
"""What the oldest release refuses, or does not trace."""
WRONGLY_TRACED = [
    pytest.param(name, marks=torch_faults.TRACED_RIGHT if name in OTHERWISE else ())
    for name in BY_PYTORCH
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", WRONGLY_TRACED)
def test_what_tracing_gets_wrong_runs_eagerly(config: Config, name: str, dynamic: bool) -> None:
    records: list[GraphRecord] = []
    with (
        Session(options={"progress": False}, config=config, observer=records.append) as session,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        same_outcome(session, *BY_PYTORCH[name], dynamic)
    assert [r.fallback.startswith("GY-COMPILE-020") for r in records] == [True]
    assert any(issubclass(w.category, GyratorWarning) for w in caught)


COMPILED: dict[str, Case] = {
    "log_gammas": (lambda x: torch.mvlgamma(x + 9, 3), (WHOLE,)),
    "between_tensors": (
        lambda x, y: [
            space(*ends, steps, dtype=dtype)
            for ends in ((x, y), (x, 3), (-2.5, y))
            for steps, dtype in ((0, None), (1, None), (9, torch.float64), (33, torch.int8))
            for space in (torch.linspace, torch.logspace)
        ],
        (torch.tensor(-2.5), torch.tensor(2.0)),
    ),
    "between_complex_numbers": (
        lambda x, y: [
            space(*ends, 5, dtype=dtype) * 2
            for ends in ((x, y), (y, x), (x, 3), (-2.5, x))
            for dtype in (None, torch.complex128)
            for space in (torch.linspace, torch.logspace)
        ],
        (torch.tensor(1j), torch.tensor(2.0)),
    ),
    "parts": (lambda x: x[:2].add_(x[2:]), (X,)),
    "columns": (lambda x: x[:, :1].mul_(x[:, 1:2]), (ROWS,)),
    "a_copy": (lambda x: x[1:].add_(x[:-1].clone()), (X,)),
    "itself": (lambda x: x.mul_(x), (ROWS,)),
    "or_and": (lambda x: (x[:, None] | x, x[:, None] & x), (WHOLE,)),
    "overlapping_base": (lambda x: torch.as_strided(x, (2, 2), (1, 1))[1:].mul_(-1), (X,)),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 0, 1, 3), (ROWS, ROWS[:2])),
    "values_to_spread": (
        lambda x, i, v, w: (x.index_put((i,), v[:1]), x.index_put((i, i[:1]), w)),
        (ROWS, WHOLE[:2], ROWS[:2], X[:2]),
    ),
    "boolean_powers": (
        lambda x: (x**True, x.pow(False), torch.pow(exponent=True, input=x) & x, x**1),
        (WHOLE > 1,),
    ),
    "dtypes": (
        lambda x, i: (
            F.poisson_nll_loss(x, i > 1),
            (i > 1).clamp(min=i > 2),
            (i > 1).clamp(0, 1),
            torch.addcdiv(i, x, i + 1),
            F.interpolate(i.byte()[None, None], scale_factor=2),
            F.pad((i > 1)[None], (1, 1)),
            i.unfold(0, 2, 1),
            F.unfold((i > 1)[None, None, None], (1, 2)),
            torch.logaddexp2(i, x),
            torch.special.xlog1py(i, i),
            (x * 2).ldexp_(i),
            torch.bernoulli(i, 0.0),
            F.max_pool1d(i[None].float(), 2),
        ),
        (X, WHOLE),
    ),
    "huber": (F.huber_loss, (X, X * 2)),
    "shrink": (lambda x: (F.hardshrink(x, 6e4), F.celu(x.float(), 0.5)), (HALVES,)),
    "taken_from_nothing": (lambda x, i: x.take(i) + 1, (ROWS[:, :0], WHOLE[:0])),
    "added_to_nothing": (lambda x, i, v: x.index_add(0, i, v), (ROWS[:0], OUT, ROWS[:2])),
    "nothing": (lambda x: (x.max(1), torch.max(x, x), x.median(1)), (ROWS[:0],)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_what_is_like_it_is_compiled(sessions: dict[str, Session], dynamic: bool) -> None:
    for function, inputs in COMPILED.values():
        assert not isinstance(
            same_outcome(sessions["python"], function, inputs, dynamic), Exception
        )


@torch_faults.LOGITS
def test_losses_of_logits_of_two_dtypes_are_compiled(sessions: dict[str, Session]) -> None:
    function = F.binary_cross_entropy_with_logits
    want = same_outcome(sessions["python"], function, (X, X.bfloat16()), dynamic=False)
    assert not isinstance(want, Exception)


@pytest.mark.parametrize("name", WRONGLY_TRACED)
def test_strict_sessions_raise(sessions: dict[str, Session], name: str) -> None:
    """They raise what eager mode raises, and an error of their own if it raises nothing."""
    torch._dynamo.reset()
    function, inputs = BY_PYTORCH[name]
    want = outcome(function, inputs)
    got = outcome(torch.compile(function, backend=sessions["python"].backend), inputs)
    if isinstance(want, Exception):
        assert type(got) is type(want)
    else:
        assert isinstance(got, UnsupportedError) and got.diagnostic.code == "GY-COMPILE-020"
        assert ("quantized_decomposed" in str(got.diagnostic.help)) == (name == "quantised")


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_gradients_of_losses_of_nothing(session: Session, loss: Callable[..., Any]) -> None:
    x = torch.zeros(0, 3, requires_grad=True)
    value = torch.compile(loss, backend=session.backend)(x, torch.zeros(0, 3))
    value.backward()
    assert value.isnan() and x.grad is not None and x.grad.shape == x.shape


@pytest.mark.parametrize("weighted", [False, True])
def test_classes_outside_of_many(session: Session, weighted: bool) -> None:
    """A loss that is taken apart refuses the classes that the whole op does."""
    x, t = torch.randn(400, 300), torch.randint(0, 300, (400,))
    weight = torch.rand(300) if weighted else None
    function = lambda x, t: F.cross_entropy(x * 2, t, weight)  # noqa: E731
    compiled = torch.compile(function, backend=session.backend)
    torch.testing.assert_close(compiled(x, t), function(x, t))
    for outside in (300, -1):
        t[5] = outside
        with pytest.raises(IndexError):
            compiled(x, t)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_at_odd_addresses(wrapper: str, dtype: torch.dtype) -> None:
    """Eager takes elements that lie at no multiple of their size, as those of a file may."""

    def steps(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(1)
        return x * y + x, x.view(16, -1).amax(-1), (x + y).sum(0), x.sort().values

    def odd() -> torch.Tensor:
        memory = bytearray(1040 * dtype.itemsize)
        result = torch.frombuffer(memory, dtype=dtype, count=1024, offset=1)
        return result.copy_(torch.randint(-9, 9, (1024,)))

    torch._dynamo.reset()
    compiled = torch.compile(steps, backend="gyrator", options={"wrapper": wrapper})
    x, y = odd(), odd()
    assert x.data_ptr() % dtype.itemsize
    expected = y.clone()
    torch.testing.assert_close(compiled(x, y), steps(x, expected))
    assert torch.equal(y, expected)
