"""Fit the tables of the prelude's AVX-512 functions: a polynomial for each of 32 intervals, and
those of 16 doubles, some of which hold polynomials too.

A function of float32 is computed as ``f(b) + d (c1 + c2 d + ...)`` with ``d = x - b``, where ``b``
and the coefficients come out of tables by the upper bits of ``x``. ``b`` lies near the middle of
its interval, where ``f(b)`` is very near a float32 (Gal's accurate tables), so that the sum's one
rounding is nearly all of the error. The interval at 0 has no ``b`` and adds its product to ``x``.

Run ``python packages/codegen_cpp/tools/fit_tables.py [name ...]``; it prints the tables as they
stand in the headers and the largest error of a polynomial, relative to the function.
"""

import sys
from collections.abc import Callable, Iterator

import attrs
import mpmath as mp
import numpy as np
from fit import fit_rounded, nodes, remez

Function = Callable[[mp.mpf], mp.mpf]

ENTRIES = 32
POINTS = 64
WIDE_ENTRIES = 16


@attrs.frozen
class Table:
    """A function above 0, in intervals of ``steps`` an octave of which the first begins at 0."""

    name: str
    f: Function
    low: float
    """Where the first interval would begin if its octave were like the others."""
    top: float
    """Where the function is 1 to float32, and arguments are cut."""
    steps: int
    degree: int


@attrs.frozen
class Entry:
    """What stands in the tables for one interval, and the relative error there."""

    middle: float
    value: float
    coefficients: tuple[float, ...]
    error: float


def entry(table: Table, place: int) -> Entry:
    """Fit the interval ``place`` of a table, counted from 0."""
    octave, step = divmod(place, table.steps)
    low = table.low * 2**octave * (1 + step / table.steps)
    if low >= table.top:
        return Entry(0.0, 0.0, (0.0,) * table.degree, 0.0)
    high = low + table.low * 2**octave / table.steps
    middle = _accurate(table.f, low, high, np.float32) if place else 0.0
    start = mp.mpf(low if place else 0)
    grid = [x for x in nodes(start, mp.mpf(high), POINTS) if x not in (0, middle)]
    steps = [x - middle for x in grid]
    base = table.f(mp.mpf(middle))
    values = [(table.f(x) - (base if place else x)) / d for x, d in zip(grid, steps, strict=True)]
    weights = [abs(d) / table.f(x) for x, d in zip(grid, steps, strict=True)]
    rounded = fit_rounded(values, steps, weights, table.degree - 1)
    error = max(
        abs(v - sum(c * d**k for k, c in enumerate(rounded))) * w
        for v, d, w in zip(values, steps, weights, strict=True)
    )
    return Entry(middle, float(base) if place else 0.0, tuple(rounded), float(error))


def _accurate(f: Function, low: float, high: float, dtype: type) -> float:
    """A number near the middle of an interval at which ``f`` is nearly a number of ``dtype``."""
    near = np.linspace(0.7 * low + 0.3 * high, 0.3 * low + 0.7 * high, 1001).astype(dtype)
    middle = (low + high) / 2
    by_nearness = sorted(map(float, near), key=lambda b: abs(b - middle))
    good = (b for b in by_nearness if _distance(f(mp.mpf(b)), dtype) < 1 / 32)
    return next(good, by_nearness[0])


def _distance(y: mp.mpf, dtype: type) -> float:
    rounded = dtype(float(y))
    return float(abs(y - mp.mpf(float(rounded))) / abs(float(np.spacing(rounded))))


def arctangents() -> Iterator[tuple[float, float]]:
    """For the quarters of the octaves from 1/16 to 14, ordered as those of tables of polynomials:
    a number b near the middle, at which the function is very near a float32, and its arctangent.
    The first interval begins at 0 and has that for b; the last one, which has no end, the quarter
    turn, and b = 1 for the division by the number itself."""
    for k in range(ENTRIES):
        octave, step = divmod((k - 12) % ENTRIES, 4)
        low, high = (2.0 ** (octave - 4) * (1 + s / 4) for s in (step, step + 1))
        if (octave, step) == (0, 0):
            yield 0.0, 0.0
        elif (octave, step) == (7, 3):
            yield 1.0, float(mp.pi / 2)
        else:
            b = _accurate(mp.atan, low, high, np.float32)
            yield b, float(mp.atan(mp.mpf(b)))


def wide_arctangents() -> Iterator[tuple[float, ...]]:
    """For the places of numbers from 0 to 1, 15.88 x - 1.4991 rounded: a number b near the middle
    of the interval, at which the function is very near a float64, as is what is left of pi/2 as
    one; both. The first interval has 0 for b, and the last place is that of its lower part."""
    quarter = mp.mpf(float(mp.pi / 2))
    for k in range(WIDE_ENTRIES):
        b = mp.mpf(0)
        if 0 < k < WIDE_ENTRIES - 1:
            near = mp.nint(2**30 * (mp.mpf(k) + 1.4991) / 15.88) / 2**30
            tries = (near + mp.mpf(j) / 2**30 for j in range(20000))
            both = ((b, mp.atan(b), quarter - mp.atan(b)) for b in tries)
            b = next(
                b for b, *angles in both if all(_distance(a, np.float64) < 1 / 32 for a in angles)
            )
        yield float(b), float(mp.atan(b)), float(quarter - mp.atan(b))


def _erfcx(x: mp.mpf) -> mp.mpf:
    return mp.exp(x * x) * mp.erfc(x)


def complements() -> Iterator[tuple[float, ...]]:
    """Of exp(x^2) erfc(x), by the eighths of the octaves of x + 1 from 1 to 16, a row as those of
    tables of polynomials, to degree 5."""
    for k in range(ENTRIES):
        octave, step = divmod((k - 24) % ENTRIES, 8)
        low, high = (2.0**octave * (1 + s / 8) - 1 for s in (step, step + 1))
        middle = _accurate(_erfcx, low, high, np.float32)
        base = _erfcx(mp.mpf(middle))
        grid = [x for x in nodes(mp.mpf(low), mp.mpf(high), POINTS) if x != middle]
        steps = [x - middle for x in grid]
        values = [(_erfcx(x) - base) / d for x, d in zip(grid, steps, strict=True)]
        weights = [abs(d) / _erfcx(x) for x, d in zip(grid, steps, strict=True)]
        yield middle, float(base), *fit_rounded(values, steps, weights, 4)


def logarithms() -> Iterator[tuple[float, float]]:
    """By the upper five bits of the mantissa m in [0.75, 1.5): about 1 / m, and minus its log."""
    for k in range(ENTRIES):
        low, unit = (1 + k / 32, 1 / 32) if k < 16 else (0.5 + k / 64, 1 / 64)
        if k in {0, ENTRIES - 1}:
            yield 1.0, 0.0
            continue
        near = np.float32(1 / (low + unit / 2))
        candidates = (float(near) + j * float(np.spacing(near)) for j in range(-2000, 2001))
        best = min(candidates, key=lambda c: _distance(-mp.log(mp.mpf(c)), np.float32))
        yield best, float(-mp.log(mp.mpf(best)))


def wide_logarithms(base: mp.mpf = mp.e) -> Iterator[tuple[float, ...]]:
    """By the upper four bits of the mantissa m in [0.75, 1.5): c, about 1 / m in sixty-fourths, so
    that m c is exact or nearly so, and minus its logarithm, which is a multiple of 2^-42 and a
    rest."""
    for k in range(WIDE_ENTRIES):
        low, high = (1 + k / 16, 1 + (k + 1) / 16) if k < 8 else (0.5 + k / 32, 0.5 + (k + 1) / 32)
        near = (j / 64 for j in range(40, 90))
        ends = (low, high)
        c = min(near, key=lambda c: max(abs(x * c - 1) for x in ends))
        c = 1.0 if k in {0, WIDE_ENTRIES - 1} else c
        exact = -mp.log(mp.mpf(c)) / mp.log(base)
        first = float(mp.nint(exact * 2**42)) / 2**42
        yield c, first, float(exact - mp.mpf(first))


def wide_powers() -> Iterator[tuple[float, ...]]:
    """Powers of 2^(1/16), and what was rounded of them, in units of themselves."""
    for k in range(WIDE_ENTRIES):
        exact = mp.mpf(2) ** (mp.mpf(k) / WIDE_ENTRIES)
        yield float(exact), float((exact - mp.mpf(float(exact))) / exact)


@attrs.frozen
class WideTable:
    """A function of float64 in 16 intervals between ``bounds``, in the order of their places."""

    name: str
    f: Function
    bounds: tuple[float, ...]
    degree: int
    added: int | None = None
    """How many intervals add to x, the first of them around 0. The others then add to f(b), which
    has two parts and b in the middle; without a number ``f(b)`` is nearly a float64."""
    turn: int = 0
    """The place of the first interval, or the last if ``falling``."""
    falling: bool = False
    """Whether places fall where the intervals rise; their middles then stand in a row, too."""


def wide_entry(table: WideTable, place: int) -> Entry:
    """Fit the interval ``place`` of a table of doubles, counted from 0."""
    low, high = table.bounds[place : place + 2]
    if table.added is None:
        middle = _accurate(table.f, low, high, np.float64)
    else:
        middle = (low + high) / 2 if place else 0.0
    exact = table.f(mp.mpf(middle))
    base = mp.mpf(float(exact))
    at_x = place < (table.added or 0)
    first = mp.mpf(0)
    if table.added is not None:
        first = mp.mpf(float(exact - (middle if at_x else base)))
    grid = [x for x in nodes(mp.mpf(low), mp.mpf(high), 8 * table.degree) if x not in (0, middle)]
    steps = [x - middle for x in grid]
    sums = [table.f(x) - (x if at_x else base) - first for x in grid]
    values = [y / d for y, d in zip(sums, steps, strict=True)]
    weights = [abs(d) / table.f(x) for x, d in zip(grid, steps, strict=True)]
    coefficients, error = remez(values, steps, weights, 0, table.degree - 1)
    if table.added is not None:
        coefficients.insert(0, first)
    return Entry(middle, float(base), tuple(map(float, coefficients)), float(error))


def wide_tables() -> tuple[WideTable, ...]:
    """All tables of polynomials of doubles."""
    step = 197 / 512
    equal = (0.0, *(step * (k + 0.5) for k in range(WIDE_ENTRIES)))
    quarters = tuple((2.0 ** (k // 4) * (1 + k % 4 / 4) - 1) * 0.4 for k in range(WIDE_ENTRIES + 1))
    halves = (
        0.0,
        *(0.99999 - 2.0 ** -(k // 2) * (1 - k % 2 / 4) for k in range(1, WIDE_ENTRIES + 1)),
    )
    return (
        WideTable("erf_wide", mp.erf, equal, 12, added=2),
        WideTable("erfinv_wide", mp.erfinv, halves, 15, added=4, turn=14, falling=True),
        WideTable("erfc_wide", _erfcx, quarters, 12, turn=8),
    )


def tables() -> tuple[Table, ...]:
    """All tables of polynomials."""
    return (
        Table("tanh", mp.tanh, 0.0625, 9.5, 4, 5),
        Table("erf", mp.erf, 0.0625, 3.99, 4, 6),
    )


def _doubles() -> tuple[tuple[str, Callable[[], Iterator[tuple[float, ...]]]], ...]:
    return (
        ("log_wide", wide_logarithms),
        ("log2_wide", lambda: wide_logarithms(mp.mpf(2))),
        ("log10_wide", lambda: wide_logarithms(mp.mpf(10))),
        ("exp_wide", wide_powers),
        ("atan_wide", wide_arctangents),
    )


def _print(name: str, columns: list[tuple[float, ...]], wide: bool = False) -> None:
    sys.stdout.write(f"{name}\n")
    for row in zip(*columns, strict=True):
        texts = [repr(c).removesuffix(".0") if wide else f"{np.float32(c):.9g}" for c in row]
        floats = [t if t in "01" or wide else f"{t}f" for t in texts]
        sys.stdout.write("  {" + ", ".join(floats) + "},\n")


def _print_fit(
    name: str, entries: list[Entry], turn: int, centred: bool = True, wide: bool = False
) -> None:
    """Print polynomials, the first of which is at the place ``turn``; ``centred`` ones are in steps
    from the middles of their intervals, which are printed too."""
    worst = max(e.error for e in entries)
    sys.stdout.write(f"{name}: error 2^{float(mp.log(worst, 2)):.1f}\n")
    turned = [entries[(k - turn) % len(entries)] for k in range(len(entries))]
    middles = [(e.middle,) if centred else () for e in turned]
    rows = [(*m, e.value, *e.coefficients) for m, e in zip(middles, turned, strict=True)]
    _print(name, rows, wide)


def main(names: list[str]) -> None:
    """Print the tables called ``names``, or all of them."""
    for table in tables():
        if not names or table.name in names:
            # the upper bits of the first interval are not 0: a table begins where they are
            bits = int(np.float32(table.low).view(np.uint32))
            first = bits >> (23 - table.steps.bit_length() + 1)
            _print_fit(table.name, [entry(table, k) for k in range(ENTRIES)], first)
    for wide in wide_tables():
        if not names or wide.name in names:
            entries = [wide_entry(wide, k) for k in range(WIDE_ENTRIES)]
            entries = entries[::-1] if wide.falling else entries
            centred = wide.added is None or wide.falling
            _print_fit(wide.name, entries, wide.turn, centred, wide=True)
    for name, values in (("atan", arctangents), ("erfc", complements), ("log", logarithms)):
        if not names or name in names:
            _print(name, list(values()))
    for name, values in _doubles():
        if not names or name in names:
            _print(name, list(values()), wide=True)


if __name__ == "__main__":
    main(sys.argv[1:])
