"""Complex numbers in kernels: against eager, over layouts, types, special values and gradients."""

import cmath
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gyrator.reports.records import GraphRecord
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")
TYPES = (torch.complex64, torch.complex128)
PLACES = torch.tensor([2, 0, 3, 3])
Program = Callable[..., Any]

ARITHMETIC: dict[str, Program] = {
    "add": lambda x, y: x + y,
    "add alpha": lambda x, y: torch.add(x, y, alpha=2.5),
    "add complex alpha": lambda x, y: torch.add(x, y, alpha=1 - 2j),
    "sub": lambda x, y: torch.sub(x, y, alpha=2),
    "rsub": lambda x, y: 3.0 - x,
    "mul": lambda x, y: x * y,
    "mul real": lambda x, y: x * y.abs(),
    "mul number": lambda x, y: x.real * (1 - 2j),
    "div": lambda x, y: x / y,
    "div number": lambda x, y: x / 2.5,
    "neg": lambda x, y: -x,
    "reciprocal": lambda x, y: x.reciprocal(),
    "square": lambda x, y: torch.square(x),
    "powers": lambda x, y: (x**0, x**1, x**2, x**3, x**-1, x**-2),
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=2),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x, value=2),
    "conj": lambda x, y: x.conj() * y,
    "conj_physical": lambda x, y: torch.conj_physical(x),
    "sgn": lambda x, y: x.sgn(),
    "abs": lambda x, y: x.abs(),
    "angle": lambda x, y: x.angle(),
    "mixed": lambda x, y: (x * y).conj() * x.abs() + y / x,
}
FUNCTIONS: dict[str, Program] = {
    "exp": lambda x, y: x.exp(),
    "log": lambda x, y: x.log(),
    "log near the unit circle": lambda x, y: (x / x.abs()).log(),
    "sqrt": lambda x, y: (x.sqrt(), x**0.5),
    "polar": lambda x, y: torch.polar(x.abs(), y.angle()),
}
COMPARISONS: dict[str, Program] = {
    "eq": lambda x, y: (x == y, x == x.clone(), x == 1 + 2j),
    "ne": lambda x, y: x != y,
    "finite": lambda x, y: (x.isnan(), x.isinf(), x.isfinite()),
    "bool": lambda x, y: (x - x[0]).bool(),
    "where": lambda x, y: torch.where(x.real > 0, x, y),
    "where real": lambda x, y: torch.where(x.real > 0, x, y.real),
    "masked_fill": lambda x, y: x.masked_fill(y.real > 0, 1 - 2j),
}
TENSORS: dict[str, Program] = {
    "parts": lambda x, y: (x.real, x.imag, (x * y).real + 1, (x * y).imag * 2),
    "complex": lambda x, y: torch.complex(x.real * 2, y.imag),
    "numbers": lambda x, y: (
        torch.zeros_like(x) + y,
        torch.ones_like(x) * y,
        torch.full_like(x, 1 + 2j),
        torch.full((3,), 2.0, dtype=x.dtype),
    ),
    "types": lambda x, y: (x.to(torch.complex128), x.real.to(y.dtype), x.real + y),
    "copies": lambda x, y: (x.clone(), (x * y).t().contiguous(), torch.empty_like(x).copy_(y)),
    "views": lambda x, y: (
        (x * y)[1] + 1,
        (x * y)[1:, ::2] * 2,
        (x * y).permute(1, 0) + x.t(),
        (x * y)[:, :1].expand(4, 6) + x,
        torch.diagonal(x * y) * 2,
    ),
    "joined": lambda x, y: (torch.cat([x, y * 2], 1), torch.stack([x * 2, y], -1)),
    "places": lambda x, y: (
        (x * y)[PLACES],
        x.index_select(0, PLACES) * 2,
        x.gather(0, PLACES[:, None].expand(4, 6)),
        x.flip(0),
        x.roll(1, 0) * y,
        (x * y).triu(),
        torch.nn.functional.pad(x * y, (1, 2), value=3.0),
        (x * y).repeat(2, 1),
    ),
    "writes": lambda x, y: (
        x.index_put((PLACES,), y, accumulate=True),
        x.index_add(0, PLACES, y),
        torch.slice_scatter(x, y[1:3], 0, 1, 3),
        torch.select_scatter(x, y[1], 0, 1),
    ),
    "lazy": lambda x, y: (x.conj().imag, x.conj().imag * 2, x[:, :1].expand(4, 6).conj()),
    "shared": lambda x, y: (lambda z: (z, z.real, z[1]))(x * y),
}
FOLDS: dict[str, Program] = {
    "sum": lambda x, y: ((x * y).sum(), (x * y).sum(0), x.sum(dtype=torch.complex128)),
    "mean": lambda x, y: (x * y).mean(1, keepdim=True),
    "norm": lambda x, y: (torch.linalg.vector_norm(x * y), torch.linalg.vector_norm(x, 1, dim=0)),
    "cumsum": lambda x, y: (x * y).cumsum(0),
    "calls between": lambda x, y: (torch.fft.fft(x * y) * y, (x * 2) @ (y.t() * 3) + 1),
}
GROUPS = {
    "arithmetic": ARITHMETIC,
    "functions": FUNCTIONS,
    "comparisons": COMPARISONS,
    "tensors": TENSORS,
    "folds": FOLDS,
}
LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "dense": lambda t: torch.randn(4, 6, dtype=t),
    "strided": lambda t: torch.randn(4, 12, dtype=t)[:, ::2],
    "transposed": lambda t: torch.randn(6, 4, dtype=t).t(),
    "offset": lambda t: torch.randn(40, dtype=t)[3:27].view(4, 6),
    "conjugated": lambda t: torch.randn(4, 6, dtype=t).conj(),
}


def together(programs: dict[str, Program]) -> Program:
    """Return one program that returns the results of all."""

    def program(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for one in programs.values():
            inputs = one(x, y)
            results.extend(inputs if isinstance(inputs, tuple) else (inputs,))
        return results

    return program


def agree(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert (actual.is_conj(), actual.is_neg()) == (expected.is_conj(), expected.is_neg())
    assert actual.numel() == 0 or actual.stride() == expected.stride()
    narrow = actual.dtype in (torch.complex64, torch.float32)
    close = {"rtol": 3e-6, "atol": 3e-6} if narrow else {"rtol": 1e-13, "atol": 1e-13}
    torch.testing.assert_close(
        actual.resolve_conj(), expected.resolve_conj(), equal_nan=True, **close
    )


# The width of the elements and most layouts don't meet in one place of the compiler.
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [*((torch.complex64, layout) for layout in LAYOUTS),
     *((torch.complex128, layout) for layout in ("dense", "strided"))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("group", GROUPS)
def test_results_are_those_of_eager(session: Session, group: str, dtype, layout: str) -> None:
    program = together(GROUPS[group])
    x, y = LAYOUTS[layout](dtype), LAYOUTS["dense"](dtype)
    compiled = torch.compile(program, backend=session.backend, dynamic=layout == "strided")
    for actual, expected in zip(compiled(x, y), program(x, y), strict=True):
        agree(actual, expected)
    if layout == "strided":
        x, y = torch.randn(4, 24, dtype=dtype)[:, ::4], LAYOUTS["dense"](dtype)
        for actual, expected in zip(compiled(x, y), program(x, y), strict=True):
            agree(actual, expected)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 1, 3)], ids=str)
def test_shapes(session: Session, shape: tuple[int, ...]) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * y + 1, torch.view_as_real(x / y), x.abs(), x.sum(), x.conj(), x == y

    x, y = torch.randn(shape, dtype=torch.complex64), torch.randn(shape, dtype=torch.complex64)
    compiled = torch.compile(program, backend=session.backend)
    for actual, expected in zip(compiled(x, y), program(x, y), strict=True):
        agree(actual, expected)


INFINITY, NAN = float("inf"), float("nan")
PARTS = (0.0, -0.0, 1.0, -2.5, INFINITY, -INFINITY, NAN)
SPECIAL = torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=torch.complex128)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_special_values(session: Session, dtype: torch.dtype) -> None:
    """Both parts are infinite, NaN, zero and signed as eager's vectors have them."""
    exact: dict[str, Program] = {
        **{name: ARITHMETIC[name] for name in ("add", "sub", "mul", "div", "reciprocal", "powers")},
        **{name: ARITHMETIC[name] for name in ("abs", "angle", "neg", "mul real", "div number")},
        **{name: FUNCTIONS[name] for name in ("exp", "log", "sqrt")},
    }
    program = together(exact)
    x = SPECIAL.repeat(len(SPECIAL)).to(dtype)
    y = SPECIAL.repeat_interleave(len(SPECIAL)).to(dtype)
    compiled = torch.compile(program, backend=session.backend)
    for actual, expected in zip(compiled(x, y), program(x, y), strict=True):
        one, other = (
            torch.view_as_real(t) if t.is_complex() else t for t in (actual.clone(), expected)
        )
        torch.testing.assert_close(one, other, equal_nan=True, rtol=3e-6, atol=0.0)
        finite = other.abs() > 0  # of zeros eager's scalars and vectors have different signs
        assert torch.equal(one.signbit()[finite], other.signbit()[finite])


@pytest.mark.parametrize("exponent", [-37, -20, 0, 20, 37])
def test_magnitudes_do_not_overflow_between(session: Session, exponent: int) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x / y, x.abs(), x.sgn(), x.sqrt(), x.log(), y.reciprocal()

    x = torch.randn(64, dtype=torch.complex64) * 10.0**exponent
    y = torch.randn(64, dtype=torch.complex64) * 10.0**exponent
    compiled = torch.compile(program, backend=session.backend)
    for actual, expected in zip(compiled(x, y), program(x, y), strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-6, atol=0.0)


def test_branch_cuts(session: Session) -> None:
    x = torch.tensor([complex(-4.0, 0.0), complex(-4.0, -0.0), -1j, 1j, complex(0.0, -0.0)])

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sqrt(), x[:4].log(), x.angle()

    root, logarithm, angle = torch.compile(program, backend=session.backend)(x)
    assert root[0] == 2j and root[1] == -2j
    for actual, inputs in zip(logarithm.tolist(), x.tolist(), strict=False):
        assert cmath.isclose(actual, cmath.log(inputs), rel_tol=1e-6)
    assert torch.equal(angle, x.angle())


DIFFERENTIABLE = {
    name: program
    for name, program in {**ARITHMETIC, **FUNCTIONS, **FOLDS}.items()
    if name != "add complex alpha"
}


@pytest.mark.parametrize(
    "dynamic", [pytest.param(False, marks=pytest.mark.long), True], ids=["static", "dynamic"]
)
def test_gradients_are_those_of_eager(session: Session, dynamic: bool) -> None:
    program = together(DIFFERENTIABLE)

    def gradients(f: Program) -> list[torch.Tensor]:
        x, y = (t.clone().requires_grad_() for t in inputs)
        results = [r for r in f(x, y) if r.requires_grad]
        seeds = [torch.ones_like(r) * (1 - 0.5j if r.is_complex() else 1) for r in results]
        return [*results, *torch.autograd.grad(results, (x, y), seeds)]

    inputs = tuple(torch.randn(5, 5, dtype=torch.complex128) for _ in range(2))
    expected = gradients(program)
    actual = gradients(torch.compile(program, backend=session.backend, dynamic=dynamic))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def rotary(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn pairs of neighbours, as Llama's first code did."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_rotary_embedding_is_one_kernel(
    config, records: list[GraphRecord], wrapper: str, dtype: torch.dtype
) -> None:
    torch._dynamo.reset()
    turns = torch.polar(torch.ones(8, 1, 4), torch.randn(8, 1, 4))
    options = {"strict": True, "progress": False, "wrapper": wrapper}
    with Session(options=options, config=config, observer=records.append) as session:
        x = torch.randn(2, 8, 3, 8).to(dtype)
        actual = torch.compile(rotary, backend=session.backend)(x, turns)
    torch.testing.assert_close(actual, rotary(x, turns))
    (record,) = records
    assert (record.launches, len(record.externs)) == (1, 0)


def test_a_rotary_embedding_is_trained_in_kernels(
    session: Session, records: list[GraphRecord]
) -> None:
    turns = torch.polar(torch.ones(8, 1, 4), torch.randn(8, 1, 4))
    x = torch.randn(2, 8, 3, 8)
    seed = torch.randn_like(x)

    def gradient(f: Program) -> torch.Tensor:
        inputs = x.clone().requires_grad_()
        (actual,) = torch.autograd.grad(f(inputs, turns), inputs, seed)
        return actual

    actual = gradient(torch.compile(rotary, backend=session.backend))
    torch.testing.assert_close(actual, gradient(rotary))
    assert [(r.launches, len(r.externs)) for r in records] == [(1, 0), (1, 0)]


def test_gradients_of_calls_that_may_raise(session: Session) -> None:
    """Solving for the gradient checks for errors: an effect, for which a token is passed on."""

    def gradient(f: Callable[..., Any], inputs: torch.Tensor) -> torch.Tensor:
        x = inputs.clone().requires_grad_()
        torch.view_as_real(f(x * 2)).sum().backward()
        assert x.grad is not None
        return x.grad

    x = torch.randn(4, 4, dtype=torch.complex64)
    compiled = torch.compile(torch.linalg.eigvals, backend=session.backend)
    torch.testing.assert_close(gradient(compiled, x), gradient(torch.linalg.eigvals, x))


def test_mutation_of_an_input(session: Session) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(y)
        x[0] = 1j
        return x.abs()

    x, y = torch.randn(4, 6, dtype=torch.complex64)[:, ::2], torch.randn(4, 3)
    actual, expected = x.clone(), x.clone()
    compiled = torch.compile(program, backend=session.backend)
    torch.testing.assert_close(compiled(actual, y), program(expected, y))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.bool], ids=str)
def test_parts_of_real_elements(session: Session, kind: torch.dtype) -> None:
    """The imaginary part of integers that become elements is 0."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        replaced = x.select_scatter(y[0], 0, -1), x.slice_scatter(y, 0, 1, 4)
        sums = (y.sum(dtype=x.dtype), y.sum(1, dtype=x.dtype), y.mean(0, dtype=x.dtype))
        return *replaced, x[:3].diagonal_scatter(y[:, 0]), *sums, y.cumsum(1, dtype=x.dtype)

    x, y = torch.randn(5, 3, dtype=torch.complex64), torch.randint(0, 9, (3, 3)).to(kind)
    compiled = torch.compile(program, backend=session.backend)
    torch.testing.assert_close(compiled(x, y), program(x, y))


def test_bitwise_numerics_keep_arithmetic_in_aten(config, records: list[GraphRecord]) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * y).sqrt() / y, torch.cat([x, y]).flip(0), (x + y).exp().real

    torch._dynamo.reset()
    x, y = torch.randn(7, 5, dtype=torch.complex64), torch.randn(7, 5, dtype=torch.complex64)
    options = {"strict": True, "progress": False, "numerics": "bitwise"}
    with Session(options=options, config=config, observer=records.append) as session:
        actual = torch.compile(program, backend=session.backend)(x, y)
    for one, other in zip(actual, program(x, y), strict=True):
        assert torch.equal(one, other)
    assert records[0].launches


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "program",
    [
        lambda y: (y.conj().t(), y),
        lambda y: (y.mH, y.conj().imag),
        lambda y: (torch._neg_view(y)[1:], y),
        lambda y: (y.conj()[1:].conj().t(), y),
        lambda y: ((z := y.conj().t()), z[1:].conj()),
    ],
)
def test_pending_views_share_memory(session: Session, program: Program, dynamic: bool) -> None:
    def shared(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return program(x.sgn())  # type: ignore[no-any-return]

    x = torch.randn(4, 3, dtype=torch.complex64)
    got = torch.compile(shared, backend=session.backend, dynamic=dynamic)(x)
    for actual, expected in zip(got, shared(x), strict=True):
        torch.testing.assert_close(actual, expected)
        assert (actual.is_conj(), actual.is_neg()) == (expected.is_conj(), expected.is_neg())
    assert got[0].untyped_storage().data_ptr() == got[1].untyped_storage().data_ptr()
