"""Launch configurations of attention, ranked by a model of memory, registers and idle cores.

A program keeps `XBLOCK` queries and walks over `RBLOCK` keys and values at a time: it reads keys
and values once for every `XBLOCK` queries, and what it holds of them lies in shared memory
`num_stages` times, so that loads run ahead. The sums of the result and a block of scores lie in
registers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType

from attrs import frozen

from gyrator_ir.source import Configuration
from gyrator_ir.target import Heuristics

_LANES = 32  # threads of a warp, as far as choices go
_REGISTERS = 230  # numbers that a thread holds without spilling, as measured on an H100
_WAITING = MappingProxyType({1: 1.6, 2: 1.2})  # for loads, by stages
_WAITING_GRADIENTS = MappingProxyType({1: 1.1, 2: 1.2})
_GRADIENT_REGISTERS = 330  # two blocks of scores are alive in turn
_WAITING_WIDE = MappingProxyType({1: 1.3, 3: 1.1})  # exact products take longer than loads
_SHARED = 49152  # bytes of shared memory that any device gives a program
_MOST = 4  # candidates of a kernel
LEAST_BLOCK = 16
"""Places along each side of the smallest block."""

_SHAPES = (
    (128, 128, 8, 3),
    (128, 128, 8, 2),
    (128, 64, 8, 3),
    (128, 64, 4, 3),
    (128, 64, 8, 2),
    (128, 32, 4, 3),
    (64, 128, 4, 2),
    (64, 64, 4, 3),
    (64, 64, 4, 2),
    (64, 32, 4, 3),
    (64, 32, 4, 2),
    (32, 64, 4, 3),
    (32, 64, 4, 2),
    (32, 32, 4, 2),
    (32, 32, 4, 1),
    (16, 128, 4, 3),
    (16, 64, 4, 4),
    (16, 64, 4, 3),
    (16, 64, 4, 2),
    (16, 32, 4, 3),
    (16, 32, 4, 2),
    (16, 16, 4, 1),
)
"""`XBLOCK`, `RBLOCK`, `num_warps` and `num_stages` that are worth a thought; the last fits any
device."""

_GRADIENT_SHAPES = (
    (128, 128, 8, 2),
    (128, 64, 4, 2),
    (64, 128, 4, 2),
    (64, 64, 4, 3),
    (64, 64, 4, 2),
    (64, 64, 4, 1),
    (64, 32, 4, 3),
    (32, 128, 4, 3),
    (32, 64, 4, 3),
    (32, 64, 4, 2),
    (32, 32, 4, 2),
    (32, 32, 4, 1),
    (16, 16, 4, 1),
)
"""The same for gradients, whose programs walk along rows or along columns."""


@frozen(kw_only=True)
class Problem:
    """What the model knows of an attention: numbers of typical sizes."""

    heads: int
    """Of all batches."""
    rows: int
    columns: int
    query: int
    """Numbers of a query or key as it is held: a power of two."""
    value: int
    width: int
    """Bytes of an element."""
    row_block: int = 0
    """Blocks of rows fill one of so many; 0 for any."""
    column_block: int = 0

    def takes(self, x: int, r: int) -> bool:
        """Whether blocks of `x` rows and `r` columns fill those of a block mask."""
        return not self.row_block % x and not self.column_block % r


Shape = tuple[int, int, int, int]


def candidates(problem: Problem, heuristics: Heuristics) -> tuple[Configuration, ...]:
    """Return configurations, the best guess first."""
    fitting = list(_fitting(problem, heuristics.shared_bytes or _SHARED)) or [_SHAPES[-1]]
    return _ranked(fitting, lambda shape: _price(shape, problem, heuristics))


def gradient_candidates(problem: Problem, heuristics: Heuristics) -> tuple[Configuration, ...]:
    """Return configurations for the gradients, the best guess first."""
    shared = heuristics.shared_bytes or _SHARED
    fitting = [
        s
        for s in _GRADIENT_SHAPES
        if problem.takes(*s[:2]) and _gradient_bytes(s, problem) <= shared
    ]
    return _ranked(
        fitting or [_GRADIENT_SHAPES[-1]], lambda shape: _gradient_price(shape, problem, shared)
    )


def _gradient_bytes(shape: Shape, problem: Problem) -> int:
    """Return the shared memory of a program: its vectors, those it walks over, and weights."""
    x, r, _, stages = shape
    vectors = max(r + stages * x, x + stages * r) * (problem.query + problem.value)
    if problem.width > 2:  # exact products take their left factors from there once more
        vectors += max(x, r) * (problem.query + problem.value)
    return (vectors + x * r) * problem.width


def _ranked(shapes: Sequence[Shape], price: Callable[[Shape], float]) -> tuple[Configuration, ...]:
    return tuple(
        Configuration((("XBLOCK", x), ("RBLOCK", r), ("num_warps", warps), ("num_stages", stages)))
        for x, r, warps, stages in sorted(shapes, key=price)[:_MOST]
    )


def _gradient_price(shape: Shape, problem: Problem, shared: int) -> float:
    x, r, warps, stages = shape
    rows, columns = max(problem.rows, 1), max(problem.columns, 1)
    work = (-(-rows // x) * x / rows) * (-(-columns // r) * r / columns)
    numbers = (r * (problem.query + problem.value) + 3 * x * r) / (_LANES * warps)
    spilled = math.pow(max(1.0, numbers / _GRADIENT_REGISTERS), 3)
    reread = (1 + 8 / x) * (1 + 8 / r)
    # Four warps of a matrix unit take 64 rows: queries for some programs, keys for others.
    idle = math.sqrt(max(1.0, 16 * warps / x) * max(1.0, 16 * warps / r))
    resident = shared // _gradient_bytes(shape, problem) * warps
    lonely = math.sqrt(max(1.0, 8 / max(resident, 1)))
    return work * spilled * reread * idle * lonely * _WAITING_GRADIENTS.get(stages, 1.0)


def _fitting(problem: Problem, shared: int) -> Iterator[Shape]:
    for shape in _SHAPES:
        if problem.takes(*shape[:2]) and _bytes(shape, problem) <= shared:
            yield shape


def _bytes(shape: Shape, problem: Problem) -> int:
    """Return the shared memory of a program: queries, and the keys and values under way."""
    x, r, _, stages = shape
    held = x * problem.query + stages * r * (problem.query + problem.value)
    if problem.width > 2:  # exact products take their left factors from there once more
        held += x * (r + problem.query)
    return held * problem.width


def least_bytes(problem: Problem, gradients: bool) -> int:
    """Return the shared memory of the smallest program."""
    if gradients:
        return _gradient_bytes(_GRADIENT_SHAPES[-1], problem)
    return _bytes(_SHAPES[-1], problem)


def _price(shape: tuple[int, int, int, int], problem: Problem, heuristics: Heuristics) -> float:
    x, r, warps, stages = shape
    rows, columns = max(problem.rows, 1), max(problem.columns, 1)
    tiles, steps = -(-rows // x), -(-columns // r)
    work = (tiles * x / rows) * (steps * r / columns)
    numbers = x * (problem.value + 2.5 * r) / (_LANES * warps)
    spilled = math.pow(max(1.0, numbers / _REGISTERS), 3)
    reread = (1 + 8 / x) * (1 + 6 / r)
    alone = 1 + x / 384  # large programs have few beside them that work while they wait
    uneven = math.pow(max(1.0, r / problem.value), 0.3)
    waiting = (_WAITING_WIDE if problem.width > 2 else _WAITING).get(stages, 1.0)
    programs = max(problem.heads * tiles, 1)
    idle = -(-programs // heuristics.cores) * heuristics.cores / programs
    return work * spilled * reread * alone * uneven * waiting * idle
