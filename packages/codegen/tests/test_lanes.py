"""Addresses along the lanes, against counting them out."""

import itertools

import pytest

from gyrator_codegen import lane_access, lane_slope, split_terms
from gyrator_ir.expr import Const, Sym, evaluate, expr, maximum, minimum
from gyrator_ir.tile.nodes import Access

V, U, S, T = Sym("i1"), Sym("i0"), Sym("s0"), Sym("t0")
LANES = 8
NONE = frozenset()

CASES = {
    "unit": (V + 5, Access.UNIT),
    "uniform": (3 * U + 2, Access.UNIFORM),
    "strided": (3 * V + U, Access.STRIDED),
    "reversed": (10 - V, Access.STRIDED),
    "symbolic stride": (S * V + U, Access.STRIDED),
    "row of a reshape": ((V + 64 * U) // 16, Access.UNIFORM),
    "column of a reshape": ((V + 64 * U) % 16, Access.UNIT),
    "both": (100 * (V // 8) + V % 8, Access.UNIT),
    "scaled numerator": ((2 * V) // 48, Access.UNIFORM),
    "crosses": (V // 4, Access.LANES),
    "crosses at an odd place": ((V + 3) // 8, Access.LANES),
    "crosses by another symbol": ((V + U) % 8, Access.LANES),
    "divisor not known": (V % S, Access.LANES),
    "quadratic": (V * V, Access.LANES),
    "rolled": ((V + 61) % 64 + 64 * U, Access.RUNS),
    "reflected": (9 - maximum(V - 2, 2 - V) + 2 * V, Access.LANES),
    "clamped": (minimum(maximum(V - 3, Const(0)), Const(40)), Access.RUNS),
    "reflected twice": (
        63 - maximum(63 - maximum(V - 2, 2 - V), maximum(V - 2, 2 - V) - 63),
        Access.RUNS,
    ),
    "every second of a roll": (2 * ((V + 3) % 64), Access.LANES),
    "backwards in a roll": ((3 - V) % 64, Access.LANES),
}


@pytest.mark.parametrize("name", CASES)
def test_access(name):
    e, kind = CASES[name]

    assert lane_access(e, V, LANES, NONE).kind is kind


@pytest.mark.parametrize("name", [name for name, (_, kind) in CASES.items() if kind is Access.RUNS])
def test_runs_grow_by_no_more_than_one(name):
    addresses = [evaluate(CASES[name][0], {V: k, U: 3}) for k in range(200)]

    growth = [b - a for a, b in itertools.pairwise(addresses)]

    assert max(growth) == 1
    assert growth.count(1) > len(growth) // 8


@pytest.mark.parametrize("name", CASES)
def test_slope_is_what_lanes_show(name):
    e, _ = CASES[name]
    slope = lane_slope(e, V, LANES)
    if slope is None:
        return
    for start, u, s in itertools.product(range(0, 64, LANES), (0, 1, 3), (1, 5)):
        env = {U: u, S: s}
        first = evaluate(e, env | {V: start})
        step = evaluate(slope, env)
        values = [evaluate(e, env | {V: start + k}) for k in range(LANES)]
        assert values == [first + k * step for k in range(LANES)]


def test_bound_symbols_vary():
    assert lane_access(T + V, V, LANES, frozenset({T})).kind is Access.LANES
    assert lane_access(T + V, V, LANES, NONE).kind is Access.UNIT


@pytest.mark.parametrize("inner", [{V}, {U}, {U, V}, set()])
def test_split_terms_adds_up(inner):
    e = 64 * U + V * S + (V // 3) * 5 + S + 7
    fixed, moving = split_terms(e, frozenset(inner))

    assert fixed + moving is e
    assert fixed.free_symbols.isdisjoint(inner)


def test_split_of_a_lone_symbol():
    assert split_terms(V, frozenset({V})) == (Const(0), V)
    assert split_terms(expr(3), frozenset({V})) == (Const(3), Const(0))
