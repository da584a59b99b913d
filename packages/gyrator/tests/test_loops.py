"""Loops over the slices of tensors and loops that values end: no op of them is left to PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_faults
from attrs import field, frozen
from torch._higher_order_ops import associative_scan, cond, scan, while_loop
from torch._higher_order_ops import map as map_op
from torch.utils import _pytree as pytree

from gyrator.config import Config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session


@frozen(eq=False)
class Compared:
    """Compiles functions, and compares them with eager."""

    session: Session
    records: list[GraphRecord] = field(factory=list)

    def check(
        self, fn: Callable[..., Any], *calls: tuple[torch.Tensor, ...], dynamic: bool = False
    ) -> None:
        """Compare results, their strides and the gradients of doubles."""
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend=self.session.backend, dynamic=dynamic, fullgraph=True)
        for call in calls:
            actual, expected = _run(compiled, call), _run(fn, call)
            torch.testing.assert_close(actual, expected)
            for a, b in zip(actual[0], expected[0], strict=True):
                assert a.stride() == b.stride() or 1 in a.shape
        assert not any(r.fallback for r in self.records)
        left = [e for r in self.records for e in r.externs if e.reason.startswith("GY-")]
        assert not left
        assert sum(len(r.kernels) for r in self.records) > 0


def _run(fn: Callable[..., Any], call: tuple[torch.Tensor, ...]) -> tuple[list[Any], list[Any]]:
    inputs = [t.clone().requires_grad_(t.dtype is torch.float64) for t in call]
    results = pytree.tree_leaves(fn(*inputs))
    expected = [r for r in results if r.requires_grad]
    if expected:
        sum(r.double().square().sum() for r in expected).backward()  # type: ignore[union-attr]
    return results, [t.grad for t in inputs]


@pytest.fixture
def options() -> dict[str, Any]:
    """More options of the session."""
    return {}


@pytest.fixture
def compared(config: Config, options: dict[str, Any]) -> Iterator[Compared]:
    """A session whose graphs are recorded."""
    records: list[GraphRecord] = []
    every = {"progress": False, "cache": False, **options}
    with Session(options=every, config=config, observer=records.append) as session:
        yield Compared(session, records)


wrappers = pytest.mark.parametrize(
    "options",
    [
        pytest.param({"wrapper": "python"}, marks=pytest.mark.long),
        {"wrapper": "cpp"},
        {"wrapper": "fx"},
    ],
    ids=lambda o: o["wrapper"],
)
"""Host languages. Other tests of this file compile loops and branches of each kind to Python."""


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def averages(x: torch.Tensor) -> Any:
    return scan(lambda c, y: (c * 0.9 + y, (c * y).sin()), x.new_zeros(x.shape[1]), x)


@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=pytest.mark.long), 5, 200])
def test_steps(compared: Compared, steps: int) -> None:
    compared.check(averages, (doubles(steps, 4),))


def test_dynamic_sizes(compared: Compared) -> None:
    compared.check(averages, *((doubles(n, n + 1),) for n in (70, 9, 3)), dynamic=True)


def test_slices_of_a_part(compared: Compared) -> None:
    def fn(x: torch.Tensor) -> Any:
        init = x[0, ::2]
        return scan(lambda c, y: (c * 0.5 + y, c * y), init.clone(), x[1:, 1::2].flip(0))

    compared.check(fn, (doubles(19, 6),), (doubles(29, 8),), dynamic=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_element_types(compared: Compared, dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> Any:
        return scan(lambda c, y: (torch.minimum(c + y, y * 2), c > y), x.new_zeros(4), x)

    compared.check(fn, (torch.randint(-9, 9, (33, 4)).to(dtype),))


def test_half_precision(compared: Compared) -> None:
    def fn(x: torch.Tensor) -> Any:
        return scan(lambda c, y: (y - c, c + y), torch.zeros_like(x[0]), x)

    compared.check(fn, (torch.randint(-3, 3, (9, 4)).bfloat16(),))


@wrappers
def test_a_cell_of_an_lstm_backwards(compared: Compared) -> None:
    def fn(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Any:
        def cell(state: Any, y: torch.Tensor) -> Any:
            h, c = state
            i, f, o, n = (torch.nn.functional.linear(y, w) + h @ u).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * n.tanh()
            h = o.sigmoid() * c.tanh()
            return (h, c.clone()), {"h": h.clone(), "i": i.sum(0)}

        return scan(cell, (h, h * 2), x, reverse=True)

    compared.check(fn, (doubles(20, 3, 4), doubles(3, 5), doubles(20, 4), doubles(5, 20)))


def test_a_selective_state_space(compared: Compared) -> None:
    def fn(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        def step(state: torch.Tensor, inputs: Any) -> Any:
            x, b, c = inputs
            x = x.unsqueeze(-1)
            state = state * (-a.exp() * x.sigmoid()).exp() + x * b
            return state, (state * c).sum(-1)

        return scan(step, x.new_zeros(a.shape), (x, b, c))[1]

    # Without gradients: AOTAutograd refuses this step, for what it saves shares memory with inputs.
    shapes = ((30, 6), (6, 4), (30, 4), (30, 4))
    compared.check(fn, tuple(torch.randn(shape) for shape in shapes))


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long)]
)
def test_loops_in_loops(compared: Compared, dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        def outer(c: torch.Tensor, rows: torch.Tensor) -> Any:
            last, seen = scan(lambda a, y: (a * 0.5 + y * w, (a * y).sin()), c, rows)
            return last.sin(), seen.sum(0)

        return scan(outer, x.new_zeros(x.shape[2]), x)

    calls = (
        (torch.randn(n, m, k, dtype=dtype), torch.randn(k, dtype=dtype))
        for n, m, k in ((11, 7, 3), (8, 9, 5))
    )
    compared.check(fn, *calls, dynamic=True)


def test_a_branch_in_a_loop(compared: Compared) -> None:
    def fn(x: torch.Tensor) -> Any:
        def step(c: torch.Tensor, y: torch.Tensor) -> Any:
            positive = y.sum() > 0
            n = torch.cond(positive, lambda a, b: a * 0.5 + b, lambda a, b: a - b.sin(), (c, y))
            return n, n.clone()

        return scan(step, x.new_zeros(x.shape[1]), x)

    compared.check(fn, (doubles(30, 3),))


def test_maps(compared: Compared) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        return map_op(lambda y, w: (y @ w).softmax(-1), x * 2, w)

    calls = ((doubles(n, 3, k), doubles(k, k)) for n, k in ((70, 4), (9, 5)))
    compared.check(fn, *calls, dynamic=True)


def test_associative_scans(compared: Compared) -> None:
    def fn(x: torch.Tensor) -> Any:
        def join(a: Any, b: Any) -> Any:
            return a[0] * b[0], a[1] * b[0] + b[1]

        return associative_scan(join, (x, x.sin()), 0, combine_mode="generic")

    compared.check(fn, (doubles(21, 3),))


@wrappers
def test_gradients_of_a_loop_that_a_value_ends(compared: Compared) -> None:
    def fn(n: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        def more(i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return i < 5

        return while_loop(more, lambda i, y: (i + 1, (y * w).sin()), (n, x))

    calls = ((torch.tensor(n), doubles(k, 3), doubles(k, 3)) for n, k in ((0, 5), (5, 6), (4, 6)))
    compared.check(fn, *calls, dynamic=True)


def until_five(x: torch.Tensor) -> torch.Tensor:
    """A loop that a value ends."""
    start = torch.zeros((), dtype=torch.int64), x
    return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, (y * 1.1 + i).sin()), start)[1]


@wrappers
def test_gradients_of_a_loop_in_a_branch(compared: Compared) -> None:
    def fn(x: torch.Tensor) -> Any:
        return cond(x.sum() > 0, until_five, torch.sin, (x,))

    x = doubles(3, 4).abs()
    compared.check(fn, (x,), (-x,))


@wrappers
def test_sizes_that_a_branch_decides(compared: Compared) -> None:
    def fn(x: torch.Tensor) -> Any:
        return cond(x.sum() > 0, lambda x: x[:2] * 2, lambda x: x[:3].sin(), (x,)).cumsum(0)

    x = torch.rand(4, 5)
    compared.check(fn, (x,), (-x,))


@torch_faults.LOOPS_IN_MAPS
@pytest.mark.parametrize("steps", [3, 6])
def test_gradients_of_a_loop_in_a_map(compared: Compared, steps: int) -> None:
    compared.check(lambda x: map_op(until_five, x), (doubles(steps, 4),))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("steps", [2, 9])
def test_complex_numbers(compared: Compared, dtype: torch.dtype, steps: int) -> None:
    def fn(x: torch.Tensor) -> Any:
        return scan(lambda c, y: (c * 0.5 + y, (c * y, c.abs() + y.real)), x[0] * 1, x)

    compared.check(fn, (torch.randn(steps, 3, dtype=dtype),))


def test_a_loop_that_never_runs_gives_copies(compared: Compared) -> None:
    def fn(x: torch.Tensor) -> Any:
        y = while_loop(lambda y: y.sum() < 0, lambda y: (y + 1,), (x,))[0]
        x.add_(1)
        return y

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=compared.session.backend, fullgraph=True)
    x = torch.rand(4)
    torch.testing.assert_close(compiled(x.clone()), x)


@wrappers
def test_repeated_regions_of_any_size(compared: Compared) -> None:
    @torch.compiler.nested_compile_region
    def layer(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.tanh(x @ w), x > 0

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        y, positive = layer(x, w)
        z, both = layer(y * 2, w.detach())
        return layer(z, w)[0], positive & both

    calls = ((doubles(n, k), doubles(k, k)) for n, k in ((3, 3), (5, 4)))
    compared.check(fn, *calls, dynamic=True)
