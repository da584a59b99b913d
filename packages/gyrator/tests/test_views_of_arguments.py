"""Results that are views of an argument, which the function writes to after it takes them."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gyrator.config import Config
from gyrator.frontend.dynamo.corrections import share_memory
from gyrator.reports.records import GraphRecord
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")


def whole(x: torch.Tensor) -> torch.Tensor:
    view = x.as_strided(x.shape, x.stride())
    x.diagonal().fill_(2)
    return view


def placed(x: torch.Tensor) -> torch.Tensor:
    view = x.as_strided((x.shape[0] - 2, x.shape[1]), x.stride(), 7)
    x.add_(1)
    return view


def between(x: torch.Tensor) -> torch.Tensor:
    view = x[1 : x.shape[0] - 1]
    x.add_(1)
    return view


def transposed(x: torch.Tensor) -> torch.Tensor:
    view = x.narrow(0, 1, x.shape[0] - 2).t()
    x.mul_(2)
    return view


def with_an_axis(x: torch.Tensor) -> torch.Tensor:
    view = x.view(x.shape[0], -1, x.shape[1])[1:]
    x.diagonal().fill_(2)
    return view


def before_and_after(x: torch.Tensor) -> torch.Tensor:
    x.neg_()
    view = x[: x.shape[0] - 1]
    view[0] = 5
    return view


def part(x: torch.Tensor) -> torch.Tensor:
    view = x.chunk(2)[1]
    x.mul_(3)
    return view


FUNCTIONS = (whole, placed, between, transposed, with_an_axis, before_and_after)


def _strided(rows: int) -> torch.Tensor:
    """Return a tensor with gaps that does not begin where its memory does."""
    return torch.randn(40 * rows).as_strided((rows, 7), (14, 2), 5)


@pytest.mark.parametrize("make", [_strided, lambda rows: torch.randn(rows, 7)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_they_lie_where_eager_has_them(
    session: Session, dynamic: bool, make: Callable[[int], torch.Tensor]
) -> None:
    functions = (part, *FUNCTIONS)

    def every(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [function(x) for function, x in zip(functions, xs, strict=True)]

    run = torch.compile(every, backend=session.backend, dynamic=dynamic, fullgraph=True)
    for rows in (6, 9):
        xs = [make(rows) for _ in functions]
        twins = []
        for x in xs:
            other = x.new_empty(x.untyped_storage().nbytes() // x.itemsize)
            other.untyped_storage().copy_(x.untyped_storage())
            twins.append(other.as_strided(x.shape, x.stride(), x.storage_offset()))
        results = zip(functions, xs, twins, run(xs), every(twins), strict=True)
        for function, x, twin, actual, expected in results:
            name = function.__name__
            assert torch.equal(actual, expected) and torch.equal(x, twin), name
            assert actual.stride() == expected.stride(), name
            assert actual.storage_offset() == expected.storage_offset(), name
            assert actual.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), name


@pytest.mark.parametrize("function", FUNCTIONS)  # autograd refuses to write to parts
def test_gradients_flow_through_them(
    session: Session, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return function(x * 1).sin()

    run = torch.compile(step, backend=session.backend, dynamic=True, fullgraph=True)
    for rows in (6, 8):
        x = torch.randn(rows, 7, requires_grad=True)
        (actual,) = torch.autograd.grad(run(x).sum(), x)
        (expected,) = torch.autograd.grad(step(x).sum(), x)
        torch.testing.assert_close(actual, expected)


Pair = tuple[torch.Tensor, torch.Tensor]


def _transposed_pair() -> Pair:
    base = torch.randn(5, 5)
    return base, base.t()


def _reshaped_pair() -> Pair:
    base = torch.randn(20)
    return base.view(4, 5), base.view(2, 10)


def _shifted_pair() -> Pair:
    base = torch.randn(9, 9)
    return base[::2], base[1:, 1:]


def _cubic_pair() -> Pair:
    """Views with powers of sizes as strides."""
    base = torch.randn(4, 4, 4)
    return base, base[:, None]


def _doubled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mul_(2)[1:], x[0], y[0]


def _both_written(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[0].mul_(3), y[1].add_(1), y, y[:, 1:]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [_transposed_pair, _reshaped_pair, _shifted_pair, _cubic_pair])
@pytest.mark.parametrize("function", [_doubled, _both_written])
def test_arguments_that_share_memory(
    session: Session,
    function: Callable[..., tuple[torch.Tensor, ...]],
    make: Callable[[], Pair],
    dynamic: bool,
) -> None:
    run = torch.compile(function, backend=session.backend, dynamic=dynamic, fullgraph=True)
    for seed in range(2):
        torch.manual_seed(seed)
        x, y = make()
        torch.manual_seed(seed)
        twins = make()
        actual, expected = run(x, y), function(*twins)
        for a, b in zip((*actual, x, y), (*expected, *twins), strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
            assert a.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize("function", [_doubled, _both_written])
def test_arguments_that_share_a_part_of_longer_memory(
    session: Session, function: Callable[..., tuple[torch.Tensor, ...]]
) -> None:
    def make() -> Pair:
        """Return tensors that, unlike views, do not lead to one that has all the memory."""
        storage = torch.arange(200.0).untyped_storage()
        x, y = torch.empty(0), torch.empty(0)
        return x.set_(storage, 3, (4, 5), (5, 1)), y.set_(storage, 11, (3, 3), (6, 2))

    (x, y), twins = make(), make()
    run = torch.compile(function, backend=session.backend, dynamic=False, fullgraph=True)
    for a, b in zip((*run(x, y), x, y), (*function(*twins), *twins), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
        assert a.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_arguments_that_share_memory_as_two_dtypes(config: Config) -> None:
    records: list[GraphRecord] = []
    functions = (
        lambda x, y: (x.mul_(2), y + 1)[1],
        lambda x, y: (y[1:].add_(1), x * 2)[1],
    )
    options = {"progress": False}
    with Session(options=options, config=config, observer=records.append) as session:
        for function in functions:
            for dtype in (torch.int32, torch.complex64):
                run = torch.compile(function, backend=session.backend, fullgraph=True)
                x = torch.randn(3, 6, 2)
                twin = x.clone()
                assert torch.equal(run(x, x.view(dtype)), function(twin, twin.view(dtype)))
                assert torch.equal(x, twin)
    assert [r.fallback.startswith("GY-COMPILE-020") for r in records] == [True] * 4


def test_arguments_that_are_read_as_two_dtypes(session: Session) -> None:
    def read(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin() + y

    x = torch.randn(3, 4)
    run = torch.compile(read, backend=session.backend, fullgraph=True)
    torch.testing.assert_close(run(x, x.view(torch.int32)), read(x, x.view(torch.int32)))


@pytest.mark.parametrize("after", [torch.t, torch.ravel, torch.neg], ids=lambda op: op.__name__)
def test_padding_by_nothing_makes_no_view(
    session: Session, after: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Unlike `t` alone, `t` of it shares no memory with the argument."""

    def padded(x: torch.Tensor) -> torch.Tensor:
        return after(torch.nn.functional.pad(x, (0, 0, 0, 0)))

    torch._dynamo.reset()
    x = torch.randn(3, 4)
    result = torch.compile(padded, backend=session.backend)(x)
    assert torch.equal(result, padded(x))
    assert result.stride() == padded(x).stride()
    assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def off(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.dropout(x, 0.5, training=False)
    y.add_(1)
    return x * 2, y, F.dropout(y, 0.0), torch.dropout(x[1:], 0.3, False)


def inside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    z = F.dropout(y, 0.0)
    z[0] = 3
    return y, z


def checkpointed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return F.dropout(y, 0.5, training=False)

    def outer(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        within: torch.Tensor = checkpoint(inner, y, use_reentrant=False)
        return F.dropout(y, 0.0).t(), within, F.dropout(y, 0.0) * 2

    results: tuple[torch.Tensor, ...] = checkpoint(outer, x, use_reentrant=False)
    results[0].add_(1)
    return results


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [off, inside, checkpointed])
def test_dropout_that_drops_nothing_returns_its_argument(
    session: Session, function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], dynamic: bool
) -> None:
    run = torch.compile(function, backend=session.backend, dynamic=dynamic)
    for n in (3, 5):
        x = torch.randn(n, 4)
        y = x.clone()
        results, expected = run(x), function(y)
        torch.testing.assert_close((*results, x), (*expected, y))
        assert _shared(*results, x) == _shared(*expected, y)


@pytest.mark.parametrize("groups", [1, 4, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_shuffles_outside_of_the_host_share_memory_as_their_formula_does(
    groups: int, layout: torch.memory_format
) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        share_memory(gm)
        graphs.append(gm)
        return gm

    x = torch.randn(2, 4, 3, 5).contiguous(memory_format=layout)
    torch._dynamo.reset()
    torch.compile(lambda x: F.channel_shuffle(x, groups), backend=keep, dynamic=False)(x.to("meta"))
    (result,) = graphs[0](x)
    # On the host, this op has a kernel of its own besides the formula.
    formula = torch.ops.aten.native_channel_shuffle.default.decompose(x, groups)
    assert torch.equal(result, formula)
    assert _shared(result, x) == _shared(formula, x)


def _shared(*tensors: torch.Tensor) -> list[bool]:
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [a == b for a in places for b in places]
