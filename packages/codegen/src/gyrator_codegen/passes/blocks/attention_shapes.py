"""Block shapes of attention, ranked by a model of memory, registers and idle cores.

A program keeps `XBLOCK` queries and iterates over blocks of `RBLOCK` keys and values. Keys and
values are read once per `XBLOCK` queries and are in shared memory `num_stages` times, for
prefetching. The accumulators of the result and a block of scores are in registers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType

from gyrator_codegen.analysis import guess, power_of_two
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, ShapeFacts
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.loop.templates import literal, piece_of
from gyrator_ir.source import Configuration

_LANES = 32  # assumed number of threads in a warp
_REGISTERS = 230  # values per thread without spilling, as measured on an H100
_WAITING = MappingProxyType({1: 1.6, 2: 1.2})  # cost factor of waiting for loads, by stages
_WAITING_GRADIENTS = MappingProxyType({1: 1.1, 2: 1.03})
_GRADIENT_REGISTERS = 260
_ALIVE = 3  # live blocks of scores, and the maximum number of a formula:
_MAX_ALIVE = 4
_TOGETHER = 1.05  # cost factor of two warp groups that wait for each other
_WAITING_WIDE = MappingProxyType({1: 1.3, 3: 1.1})  # exact products take longer than loads
_SHARED = 49152  # bytes of shared memory available to a program on any device
_MAX_CANDIDATES = 4  # maximum number of candidates of a kernel
_LEAST_VECTOR = 16  # minimum vector length for matrix units
LEAST_BLOCK = 16
"""Side length of the smallest block."""

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
"""Configurations to consider: `XBLOCK`, `RBLOCK`, `num_warps`, `num_stages`. The last one fits any
device."""

_GRADIENT_SHAPES = (
    (128, 128, 128, 8, 2),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 8, 2),
    (128, 128, 64, 8, 1),
    (128, 128, 32, 8, 3),
    (128, 128, 32, 8, 2),
    (128, 128, 32, 4, 2),
    (64, 128, 64, 8, 2),
    (64, 64, 64, 4, 3),
    (64, 64, 64, 4, 2),
    (64, 64, 64, 4, 1),
    (64, 64, 32, 4, 3),
    (64, 64, 32, 4, 2),
    (32, 32, 32, 4, 2),
    (32, 32, 32, 4, 1),
    (16, 16, 16, 4, 1),
)
"""Configurations to consider: block lengths of rows, of columns, and of the loops of programs of
either kind; `num_warps`, `num_stages`."""


@frozen(kw_only=True)
class Problem:
    """The parameters of the performance model, for typical sizes."""

    heads: int
    """Number of heads of all batches."""
    rows: int
    columns: int
    query: int
    """Padded length of a query or key: a power of two."""
    value: int
    width: int
    """Size of an element in bytes."""
    row_block: int = 0
    """Length of the mask's blocks of rows, which blocks must divide; 0 without one."""
    column_block: int = 0
    slopes: int = 0
    """Number of statements in the formula of the score gradients."""

    def matches_mask(self, x: int, r: int) -> bool:
        """Return whether blocks of `x` rows and `r` columns divide those of the block mask."""
        return not self.row_block % x and not self.column_block % r


def problem_of(kernel: TemplateKernel, facts: ShapeFacts) -> Problem:
    """Return the typical sizes of a kernel's attention."""
    q, k, v = kernel.inputs[:3]
    names = dict(kernel.attributes)

    def number(name: str, absent: int) -> int:
        return literal(kernel.attributes, name, int) if name in names else absent

    row_block, column_block = number("row_block", 0), number("column_block", 0)
    parts, together = number("parts", 1), number("together", 1)
    return Problem(
        row_block=row_block if together == 1 else 0,
        column_block=piece_of(column_block) if "parts" in names else column_block,
        heads=guess(q.shape[0], facts) * guess(q.shape[1], facts) * parts // together,
        rows=guess(q.shape[2], facts) * together,
        columns=guess(k.shape[2], facts) // parts,
        query=vector_of(q),
        value=vector_of(v),
        width=q.dtype.size,
        slopes=sum(len(f.body) for f in kernel.formulas if f.name == "slope"),
    )


def vector_of(tensor: TensorRef) -> int:
    """Return the padded length of a head's vectors."""
    length = tensor.shape[3]
    assert isinstance(length, Const)
    return max(power_of_two(length.value), _LEAST_VECTOR)


Shape = tuple[int, ...]
_BLOCKS = ("XBLOCK", "RBLOCK")
_GRADIENT_BLOCKS = (*_BLOCKS, "KBLOCK")


def attention_shapes(problem: Problem, cores: int, shared: int) -> tuple[Configuration, ...]:
    """Return configurations, best estimate first."""
    fitting = list(_fitting(problem, shared or _SHARED)) or [_SHAPES[-1]]
    return _ranked(_BLOCKS, fitting, lambda shape: _price(shape, problem, cores))


def gradient_shapes(problem: Problem, cores: int, shared: int) -> tuple[Configuration, ...]:
    """Return configurations for the gradients, best estimate first."""
    shared = shared or _SHARED
    fitting = [
        s
        for s in _GRADIENT_SHAPES
        if problem.matches_mask(s[0], s[2]) and problem.matches_mask(s[2], s[1])
        if _gradient_bytes(s, problem) <= shared
    ]
    return _ranked(
        _GRADIENT_BLOCKS,
        fitting or [_GRADIENT_SHAPES[-1]],
        lambda shape: _gradient_price(shape, problem, shared),
    )


def _gradient_bytes(shape: Shape, problem: Problem) -> int:
    """Return the shared memory of a program: its own vectors, those of its loop, and weights."""
    x, r, k, _, stages = shape
    vectors = (max(x, r) + stages * k) * (problem.query + problem.value)
    if problem.width > 2:  # exact products also read their left factors from shared memory
        vectors += max(x, r) * (problem.query + problem.value)
    return (vectors + max(x, r) * k) * problem.width


def _ranked(
    names: Sequence[str], shapes: Sequence[Shape], price: Callable[[Shape], float]
) -> tuple[Configuration, ...]:
    names = (*names, "num_warps", "num_stages")
    best = sorted(shapes, key=price)[:_MAX_CANDIDATES]
    return tuple(Configuration(tuple(zip(names, shape, strict=True))) for shape in best)


def _gradient_price(shape: Shape, problem: Problem, shared: int) -> float:
    x, r, k, warps, stages = shape
    rows, columns = max(problem.rows, 1), max(problem.columns, 1)
    work = (-(-rows // x) * x / rows) * (-(-columns // r) * r / columns)
    alive = _ALIVE + min(problem.slopes, _MAX_ALIVE)
    numbers = max(x, r) * (problem.query + problem.value + alive * k) / (_LANES * warps)
    spilled = math.pow(max(1.0, numbers / _GRADIENT_REGISTERS), 3)
    # Four warps feed a matrix unit; each group of four processes a share of the loop's block.
    reread = (1 + 2 / x) * (1 + 2 / r) * (1 + 2 * warps / k)
    # Four warps of a matrix unit process 64 rows: queries in some programs, keys in others.
    idle = math.sqrt(max(1.0, 16 * warps / x) * max(1.0, 16 * warps / r))
    resident = shared // _gradient_bytes(shape, problem) * warps
    lonely = math.sqrt(max(1.0, 8 / max(resident, 1)))
    waiting = _WAITING_GRADIENTS.get(stages, 1.0) * (_TOGETHER if warps > 4 else 1.0)
    return work * spilled * reread * idle * lonely * waiting


def _fitting(problem: Problem, shared: int) -> Iterator[Shape]:
    for shape in _SHAPES:
        if problem.matches_mask(*shape[:2]) and _bytes(shape, problem) <= shared:
            yield shape


def _bytes(shape: Shape, problem: Problem) -> int:
    """Return the shared memory of a program: queries, and the prefetched keys and values."""
    x, r, _, stages = shape
    numbers = x * problem.query + stages * r * (problem.query + problem.value)
    if problem.width > 2:  # exact products also read their left factors from shared memory
        numbers += x * (r + problem.query)
    return numbers * problem.width


def least_bytes(problem: Problem, gradients: bool) -> int:
    """Return the shared memory of the smallest program."""
    if gradients:
        return _gradient_bytes(_GRADIENT_SHAPES[-1], problem)
    return _bytes(_SHAPES[-1], problem)


def _price(shape: Shape, problem: Problem, cores: int) -> float:
    x, r, warps, stages = shape
    rows, columns = max(problem.rows, 1), max(problem.columns, 1)
    tiles, steps = -(-rows // x), -(-columns // r)
    work = (tiles * x / rows) * (steps * r / columns)
    numbers = x * (problem.value + 2.5 * r) / (_LANES * warps)
    spilled = math.pow(max(1.0, numbers / _REGISTERS), 3)
    reread = (1 + 8 / x) * (1 + 6 / r)
    alone = 1 + x / 384  # few large programs are resident to hide latency
    uneven = math.pow(max(1.0, r / problem.value), 0.3)
    waiting = (_WAITING_WIDE if problem.width > 2 else _WAITING).get(stages, 1.0)
    programs = max(problem.heads * tiles, 1)
    idle = -(-programs // cores) * cores / programs
    return work * spilled * reread * alone * uneven * waiting * idle
