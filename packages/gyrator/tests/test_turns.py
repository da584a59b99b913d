"""Elements that take turns: interleaving, parts of complex numbers in a row, repeated rows."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gyrator.session import Session

Program = Callable[..., Any]


def stacked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([x + y, x - y], -1).flatten(-2)


def rotated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return turned * y[..., : turned.shape[-1]] + x[..., : turned.shape[-1]]


def by_complex_numbers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = (torch.view_as_complex(t.float().reshape(*t.shape[:-1], -1, 2)) for t in (x, y))
    return torch.view_as_real(x * y).flatten(-2)


PROGRAMS: dict[str, Program] = {
    "stacked": stacked,
    "stacked in front": lambda x, y: torch.stack([x + y, x - y], 0),
    "three stacked": lambda x, y: torch.stack([x + y, x - y, x * y], -1).flatten(-2),
    "four stacked": lambda x, y: torch.stack([x + y, x - y, x, y], -1).flatten(-2),
    "joined and apart": lambda x, y: (stacked(x, y), stacked(x, y)[..., ::2] * 2),
    "repeated rows": lambda x, y: (x + y).repeat_interleave(2, 0),
    "repeated columns": lambda x, y: (x + y).repeat_interleave(2, -1),
    "parity": lambda x, y: torch.where(torch.arange(x.shape[-1]) % 2 == 0, x, y),
    "third": lambda x, y: torch.where(torch.arange(x.shape[-1]) // 3 % 3 == 0, x, y),
    "looked up": lambda x, y: stacked(x[torch.arange(x.shape[0]) // 2], y),
}
EVEN: dict[str, Program] = {
    "rotated": rotated,
    "rotated in place": lambda x, y: x.clone().copy_(rotated(x, y)),
    "pixel shuffle": lambda x, y: F.pixel_shuffle((x + y)[None, :4].expand(3, 4, -1)[..., None], 2),
    "apart": lambda x, y: (x[..., ::2] + y[..., 1::2], x[..., 1::2] * 2),
}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
OTHERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (
        torch.randint(0, 100, shape).to(dtype) if dtype in OTHERS else torch.randn(shape).to(dtype)
    )


def check(
    session: Session, program: Program, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype
) -> None:
    """Compile a program for inputs of each shape, as one graph, and compare with eager."""

    def run(inputs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[Any]:
        return [program(x, y) for x, y in inputs]

    inputs = [(values(shape, dtype), values(shape, dtype)) for shape in shapes]
    got = torch.compile(run, backend=session.backend)(inputs)
    torch.testing.assert_close(got, run(inputs), rtol=0, atol=0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_elements_that_take_turns(name: str, session: Session) -> None:
    shapes = ((5, 70), (2, 3, 64), (4, 1), (1, 33), (0, 6))
    check(session, PROGRAMS[name], shapes, torch.float32)


@pytest.mark.parametrize("name", EVEN)
def test_pairs(name: str, session: Session) -> None:
    check(session, EVEN[name], ((5, 70), (4, 64), (6, 2), (8, 34)), torch.float32)


@pytest.mark.parametrize("dtype", FLOATS + OTHERS, ids=str)
def test_pairs_of_each_type(dtype: torch.dtype, session: Session) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.stack([x[..., 1::2] & y[..., ::2], x[..., ::2]], -1).flatten(-2)
        return joined, joined[..., 1::2] | y[..., ::2]

    def of_floats(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.stack([x[..., 1::2] + y[..., ::2], x[..., ::2]], -1).flatten(-2)
        return joined, joined[..., 1::2] - y[..., ::2]

    check(session, program if dtype in OTHERS else of_floats, [(3, 140)], dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_rotary_embedding_of_complex_numbers(dtype: torch.dtype, session: Session) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return by_complex_numbers(x, y).to(x.dtype)

    check(session, program, [(3, 7, 2, 48)], dtype)


@pytest.mark.parametrize("name", ["stacked", "repeated rows", "repeated columns", "parity"])
def test_dynamic_sizes(name: str, session: Session) -> None:
    compiled = torch.compile(PROGRAMS[name], backend=session.backend, dynamic=True)
    for shape in ((3, 40), (7, 33), (2, 5)):
        x, y = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(compiled(x, y), PROGRAMS[name](x, y), rtol=0, atol=0)
