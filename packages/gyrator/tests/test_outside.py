"""What comes from outside of a program: results of ops that are not what their metas say."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gyrator.session import Session

WRAPPERS = ("python", "cpp", "fx")
OPTIONS = {"cache": False, "strict": True}


def compiled(wrapper: str, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return Session(options={**OPTIONS, "wrapper": wrapper, **options}).backend


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Assert equal types, sizes, bits that say what is still to be done, and values."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert (got.is_conj(), got.is_neg()) == (want.is_conj(), want.is_neg())
    torch.testing.assert_close(got, want)


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
    "imag of adjoint": (lambda x: x.mH.imag + 1, lambda n: (complex_of(n, 3),)),
    "conj of expanded": (
        lambda x: (x.conj() * 2).real + 1,
        lambda n: (complex_of(n, 1).expand(n, 4),),
    ),
    "0-d": (lambda x: (x * 1j).imag + 0, lambda n: (torch.randn(()),)),
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
        given = inputs(n)
        expected = function(*[x.clone() for x in given])
        same(run(*[x.clone() for x in given]), expected)


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
@pytest.mark.parametrize("name", ["strides", "wide", "itself", "negated"])
@pytest.mark.usefixtures("liars")
def test_results_are_mended(name: str, wrapper: str) -> None:
    op = getattr(torch.ops.liars, name)
    run = torch.compile(
        lambda x: (op(x), op(x) + x.add_(1)), backend=compiled(wrapper), dynamic=True
    )
    for n in (3, 4):
        x = torch.randn(n, 5)
        whole = op(x.clone()).resolve_neg().float().clone()
        first, second = run(y := x.clone())
        torch.testing.assert_close(first, whole)
        assert first.stride() == x.stride() and first.dtype is x.dtype
        assert first.untyped_storage()._cdata != y.untyped_storage()._cdata
        torch.testing.assert_close(second, whole + x + 1)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.usefixtures("liars")
def test_results_have_storage_of_their_own(wrapper: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = torch.ops.liars.twice(x)
        c, d, _ = torch.ops.liars.listed(x)
        return a.add_(1) + 0, b.mul_(3) + 0, c.add_(2) + 0, d.mul_(5) + 0

    x = torch.randn(4, 4)
    found = torch.compile(function, backend=compiled(wrapper))(x)
    for got, want in zip(found, (2 * x + 1, 6 * x, 2 * x + 2, 10 * x), strict=True):
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
