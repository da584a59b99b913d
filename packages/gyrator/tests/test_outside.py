"""What comes from outside of a program: results of ops that are not what their metas say."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.config import Config
from gyrator.options import Options
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")
WRAPPERS = ("python", "cpp", "fx")
OPTIONS = {"cache": False, "strict": True}


def compiled(wrapper: str, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return Session(options={**OPTIONS, "wrapper": wrapper, **options}).backend


def same(got: torch.Tensor, want: torch.Tensor, name: str = "") -> None:
    """Assert equal types, sizes, bits that say what is still to be done, and values."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), name
    assert (got.is_conj(), got.is_neg()) == (want.is_conj(), want.is_neg()), name
    torch.testing.assert_close(got, want, msg=lambda text: f"{name}: {text}")


def complex_of(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


LAST = torch.channels_last
TORCH: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "angle": (lambda x: x.angle() + 1, lambda n: (complex_of(n, 4).t(),)),
    "conv2d": (
        lambda i, w: F.conv2d(i, w).real + 1,
        lambda n: (complex_of(n, 2, 5, 6).contiguous(memory_format=LAST), complex_of(3, 2, 2, 2)),
    ),
    "roll": (
        lambda x: x.roll(1, 1).real + 1,
        lambda n: (complex_of(n, 2, 3, 4).contiguous(memory_format=LAST),),
    ),
    "imag of conj": (lambda x: x.conj().imag + 1, lambda n: (complex_of(n, 8)[:, ::2].t(),)),
    "imag of nothing": (
        lambda x: ((y := x[:0].conj().resolve_conj().imag), y + 1)[0],
        lambda n: (complex_of(n),),
    ),
    "imag of adjoint": (lambda x: x.mH.imag + 1, lambda n: (complex_of(n, 3),)),
    "conj of expanded": (
        lambda x: (x.conj() * 2).real + 1,
        lambda n: (complex_of(n, 1).expand(n, 4),),
    ),
    "0-d": (lambda x: (x * 1j).imag + 0, lambda n: (torch.randn(()),)),
    "ldexp of integers": (
        lambda k, e: torch.ldexp(k, e[0]),
        lambda n: (torch.arange(n), torch.randn(n).bfloat16()),
    ),
    "ldexp of floats": (
        lambda x, e: torch.ldexp(x, e[0]),
        lambda n: (torch.randn(n), torch.randn(n).bfloat16()),
    ),
    "shuffle of one group": (
        lambda x: (F.channel_shuffle(x, 1), x.add_(1))[0] + x,
        lambda n: (torch.randn(n, 2, 3, 3),),
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", TORCH)
def test_ops_of_torch_whose_metas_are_wrong(name: str, wrapper: str) -> None:
    function, inputs = TORCH[name]
    dynamic = wrapper != "python"
    run = torch.compile(function, backend=compiled(wrapper, size_asserts=dynamic), dynamic=dynamic)
    for n in (3, 5) if dynamic else (3,):
        arguments = inputs(n)
        expected = function(*[x.clone() for x in arguments])
        same(run(*[x.clone() for x in arguments]), expected)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("rows", [(), (5,)])
def test_a_loss_whose_formula_in_torch_is_wrong(rows: tuple[int, ...], reduction: str) -> None:
    labels = [
        [3, 0, -1, 1, 2],
        [1, -1, 0, 2, 3],
        [0, 1, 2, 3, 4],
        [-1, 1, 2, 3, 4],
        [4, 2, 1, 0, -1],
    ]
    target = torch.tensor(labels if rows else labels[0])

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, target, reduction=reduction)

    x = torch.randn(*rows, 5, requires_grad=True)
    run = torch.compile(f, backend=compiled("python"))
    same(run(x.detach()), f(x.detach()))
    got, want = run(x), f(x)
    same(got.detach(), want.detach())
    gradients = [torch.autograd.grad(loss.square().sum(), x)[0] for loss in (got, want)]
    torch.testing.assert_close(*gradients)


@pytest.fixture(scope="module")
def liars() -> Iterator[None]:
    """Ops whose fake functions say something else than they do."""
    lib = torch.library.Library("liars", "DEF")

    def define(name: str, schema: str, real: Callable[..., Any], fake: Callable[..., Any]) -> None:
        lib.define(name + schema)
        lib.impl(name, real, "CompositeExplicitAutograd")
        torch.library.register_fake(f"liars::{name}", fake, lib=lib)

    one = "(Tensor x) -> Tensor"
    define("strides", one, lambda x: (x * 2).t().contiguous().t(), torch.empty_like)
    define("wide", one, lambda x: x.double() * 2, torch.empty_like)
    define("itself", one, lambda x: x, torch.empty_like)
    define("negated", one, lambda x: torch._neg_view(x.clone()), torch.empty_like)
    define("sizes", one, lambda x: x[:, :-1].clone(), torch.empty_like)
    define("nothing", one, lambda x: x.new_empty(0), torch.empty_like)

    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y

    like = lambda x: (torch.empty_like(x), torch.empty_like(x))  # noqa: E731
    define("twice", "(Tensor x) -> (Tensor, Tensor)", twice, like)
    define("listed", "(Tensor x) -> Tensor[]", lambda x: [*twice(x), x], lambda x: [*like(x), x])
    yield
    lib._destroy()


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.usefixtures("liars")
def test_results_are_mended(wrapper: str) -> None:
    names = ("strides", "wide", "itself", "negated")
    ops = [getattr(torch.ops.liars, name) for name in names]

    def every(xs: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(op(x), op(x) + x.add_(1)) for op, x in zip(ops, xs, strict=True)]

    run = torch.compile(every, backend=compiled(wrapper), dynamic=True)
    for n in (3, 4):
        x = torch.randn(n, 5)
        written = [x.clone() for _ in ops]
        for name, op, y, (first, second) in zip(names, ops, written, run(written), strict=True):
            whole = op(x.clone()).resolve_neg().float().clone()
            same(first, whole, name)
            assert first.stride() == x.stride(), name
            assert first.untyped_storage()._cdata != y.untyped_storage()._cdata, name
            same(second, whole + x + 1, name)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.usefixtures("liars")
def test_results_have_storage_of_their_own(wrapper: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = torch.ops.liars.twice(x)
        c, d, _ = torch.ops.liars.listed(x)
        return a.add_(1) + 0, b.mul_(3) + 0, c.add_(2) + 0, d.mul_(5) + 0

    x = torch.randn(4, 4)
    actual = torch.compile(function, backend=compiled(wrapper))(x)
    for got, want in zip(actual, (2 * x + 1, 6 * x, 2 * x + 2, 10 * x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.usefixtures("liars")
def test_other_sizes_are_an_error_and_size_asserts_raises_for_users_ops(wrapper: str) -> None:
    x = torch.randn(3, 5)
    for name, checked in (("sizes", False), ("nothing", False), ("strides", True), ("wide", True)):
        op = getattr(torch.ops.liars, name)
        run = torch.compile(
            lambda x, op=op: op(x) + 1, backend=compiled(wrapper, size_asserts=checked)
        )
        for _ in range(2):
            with pytest.raises(AssertionError, match=rf"GY-RUNTIME-091: liars.{name}.default"):
                run(x)


INPUTS = {
    "negated": lambda n: complex_of(n, 4).conj().imag,
    "conjugated": lambda n: complex_of(n, 4).conj(),
    "conjugated, transposed": lambda n: complex_of(4, n).mH,
    "negated, expanded": lambda n: complex_of(n, 1).conj().imag.expand(n, 4),
    "both": lambda n: torch.view_as_complex(torch.randn(n, 4, 2)._neg_view()).conj(),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_inputs_that_are_to_be_conjugated_or_negated(wrapper: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.view_as_real(x.resolve_conj().resolve_neg()) if x.is_complex() else x
        return y * 2 + 1, x.sum(1) + 1, x.abs()

    def every(xs: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        return [function(x) for x in xs]

    run = torch.compile(every, backend=compiled(wrapper), dynamic=True)
    for n in (3, 5):
        xs = [make(n) for make in INPUTS.values()]
        for name, got, want in zip(INPUTS, run(xs), every(xs), strict=True):
            for a, b in zip(got, want, strict=True):
                same(a, b, name)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_writes_to_inputs_that_are_to_be_conjugated_or_negated(wrapper: str, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        before = x.clone().abs()
        x.mul_(2)
        x[1:].add_(x[:1])
        x.conj()[0].sub_(1)
        return before + x.abs()

    def every(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [function(x) for x in xs]

    names = [name for name in INPUTS if "expanded" not in name]
    run = torch.compile(every, backend=compiled(wrapper), dynamic=dynamic)
    for n in (3, 5, 1):
        torch.manual_seed(n)
        xs = [INPUTS[name](n) for name in names]
        torch.manual_seed(n)
        ys = [INPUTS[name](n) for name in names]
        for name, x, y, got, want in zip(names, xs, ys, run(xs), every(ys), strict=True):
            same(got, want, name)
            same(x, y, name)
            assert x.stride() == y.stride(), name


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_results_keep_what_is_to_be_done(wrapper: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y.conj(), (y + 1).conj().imag, y.conj().t().conj(), (y - 1)._neg_view(), y.mH

    x = complex_of(3, 4)
    actual = torch.compile(function, backend=compiled(wrapper))(x)
    for got, want in zip(actual, function(x), strict=True):
        same(got, want)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_gradients_of_conjugated_values(wrapper: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * (1 + 2j)).conj()

    for weight in (3 - 1j, complex_of(4)):
        a, b = (torch.randn(4).requires_grad_() for _ in range(2))
        b.data.copy_(a.data)
        got = torch.compile(function, backend=compiled(wrapper))(a)
        same(got.detach(), function(b).detach())
        (got * weight).conj().imag.sum().backward()
        (function(b) * weight).conj().imag.sum().backward()
        torch.testing.assert_close(a.grad, b.grad)


BAD: dict[str, tuple[Any, str | None]] = {
    "sizes": (torch.randn(4, 7), r"\(4, 7\)"),
    "dimensions": (torch.randn(24), "24"),
    "strides": (torch.randn(6, 4).t(), r"\(1, 4\)"),
    "element type": (torch.randn(4, 6, dtype=torch.float64), "dtype|float64"),
    "device": (torch.randn(4, 6, device="meta"), None),
    "no tensor": (None, "NoneType"),
    "unbound sizes": (torch.randn(4, 0), r"\(4, 0\)"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_callers_without_guards_get_an_error(wrapper: str) -> None:
    x = torch.randn(4, 6)
    graph = make_fx(lambda x, y: (x * 2 + y, x.mm(y.t())), tracing_mode="fake")(x, x + 1)
    call = (
        Session()
        .engine(Options(cache=False, strict=True, wrapper=wrapper))
        .compile(graph, "inference")
        .call
    )
    for inputs, message in BAD.values():
        for args in ([inputs, x], [x, inputs]):
            with pytest.raises((AssertionError, TypeError), match=message) as error:
                call(list(args))
            if isinstance(inputs, torch.Tensor):
                assert "GY-RUNTIME-090" in str(error.value)
    with pytest.raises(TypeError):
        call([x])
    odd = torch.randn(2, 4, 6).as_strided((4, 6), (6, 1), 9)
    torch.testing.assert_close(call([odd, x])[0], odd * 2 + x)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_symbolic_sizes_of_inputs_must_agree(wrapper: str) -> None:
    x = torch.randn(4, 6)
    graph = make_fx(lambda x, y: (x * 2 + y,), tracing_mode="symbolic")(x, x + 1)
    call = (
        Session()
        .engine(Options(cache=False, strict=True, wrapper=wrapper))
        .compile(graph, "inference")
        .call
    )
    y = torch.randn(9, 3)
    torch.testing.assert_close(call([y, y])[0], y * 3)
    for bad in (torch.randn(9, 4), torch.randn(3, 9).t(), torch.randn(9, 3).double()):
        with pytest.raises(AssertionError, match="GY-RUNTIME-090"):
            call([y, bad])


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_as_strided_stays_inside_of_tensors_of_any_size(wrapper: str, config: Config) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (2, 3), (2, 1), 1).cumsum(-2)

    with Session(options={"wrapper": wrapper, "strict": True}, config=config) as session:
        compiled = torch.compile(f, backend=session.backend, dynamic=True)
        x = torch.randn(4, 3)
        assert torch.equal(compiled(x), f(x))
        for shape in ((0, 2), (2, 2)):
            with pytest.raises(RuntimeError, match="outside of the tensor"):
                compiled(torch.randn(shape))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_as_strided_scatter_leaves_what_lies_between_elements(
    dynamic: bool, start: int, config: Config
) -> None:
    """Places before and between a tensor's elements are of its storage alone."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.as_strided_scatter(y, (2, 2), (1, 2), start) * 2

    with Session(options={"strict": True, "progress": False}, config=config) as session:
        compiled = torch.compile(f, backend=session.backend, dynamic=dynamic)
        x = torch.randn(40)[1:19].view(3, 6)[:, ::2]
        y = torch.randn(2, 2)
        assert torch.equal(compiled(x, y), f(x, y))


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_gradients_that_are_zeros_lie_on_the_device_of_their_tensor(
    wrapper: str, config: Config
) -> None:
    with Session(options={"wrapper": wrapper, "strict": True}, config=config) as session:
        x = torch.randn(2, 3, requires_grad=True)
        torch.compile(lambda x: x.sum(1).sgn(), backend=session.backend)(x).sum().backward()
        assert x.grad is not None and not x.grad.any()
