"""Statements with other names, addresses and buffers."""

import pytest

from gyrator_ir.body.parse import read_statement
from gyrator_ir.body.print import show_statement
from gyrator_ir.body.rewrite import defined, named, renamed, rewritten, used, value_key
from gyrator_ir.expr import Sym
from gyrator_ir.text.lines import parse_lines

STATEMENTS = (
    "a = load x[4*i0] if a",
    "a: f32 = add a, b",
    "a: f32 = const 0.5",
    "a: i64 = index i0 + 1",
    "t0 = bind a below i0 wrap check if b",
    "store.add x[i0], a if a",
    "a, b, c: f32 = reduce.welford a",
    "a: f32 = scan.sum a reverse",
    "a, b: f32 = sort a stable",
)


def read(text: str):
    (line,) = parse_lines(text)
    return read_statement(line)


@pytest.mark.parametrize("text", STATEMENTS)
def test_only_what_a_statement_binds_is_named_anew(text):
    s = read(text)
    names = tuple(f"n{k}" for k in range(len(defined(s))))

    result = named(s, names)

    assert defined(result) == names and used(result) == used(s)
    assert value_key(result) == value_key(s)
    assert show_statement(named(result, defined(s))) == text


@pytest.mark.parametrize("text", STATEMENTS)
def test_all_names_buffers_and_addresses_are_replaced(text):
    s = read(text)
    names = {n: f"{n}_new" for n in (*defined(s), *used(s))}

    result = rewritten(s, names, lambda e: e + 7, {"x": "y"})

    assert used(result) == tuple(names[n] for n in used(s))
    assert defined(result) == tuple(names[n] for n in defined(s))
    back = rewritten(result, {new: n for n, new in names.items()}, lambda e: e - 7, {"y": "x"})
    assert back == s


@pytest.mark.parametrize("text", STATEMENTS)
def test_nothing_to_replace_gives_the_same_object(text):
    s = read(text)

    assert rewritten(s) is s
    assert renamed(s, {"other": "name"}, {Sym("i9"): Sym("i8")}) is s
