"""The text form of facts: one line, items separated by `; `.

s0 in [2, 4096]; s1 in [*, s0]; s0 multiple 8; s2 = 2*s0; s0 ~ 128; assume s0 < s3
"""

from __future__ import annotations

import re

from gyrator_ir.diagnostics import ParseError
from gyrator_ir.expr.facts import ShapeFacts
from gyrator_ir.expr.nodes import Sym
from gyrator_ir.expr.parse import parse_cond, parse_expr
from gyrator_ir.expr.printer import to_text

_SYMBOL = r"(?P<sym>\w+)"
_RANGE = re.compile(_SYMBOL + r" in \[(?P<lo>\*|-?\d+), (?P<hi>.+)\]")
_MULTIPLE = re.compile(_SYMBOL + r" multiple (?P<by>\d+)")
_EQUAL = re.compile(_SYMBOL + r" = (?P<value>.+)")
_HINT = re.compile(_SYMBOL + r" ~ (?P<value>-?\d+)")
_ASSUME = re.compile(r"assume (?P<cond>.+)")


def facts_to_text(facts: ShapeFacts) -> str:
    """Return the facts as one line, which is empty if there are none."""
    items = [
        f"{sym.name} in [{'*' if r.lo is None else r.lo}, {'*' if r.hi is None else to_text(r.hi)}]"
        for sym, r in facts.ranges
    ]
    items += [f"{sym.name} multiple {by}" for sym, by in facts.divisors]
    items += [f"{sym.name} = {to_text(value)}" for sym, value in facts.equalities]
    items += [f"{sym.name} ~ {value}" for sym, value in facts.hints]
    items += [f"assume {to_text(cond)}" for cond in facts.assumed]
    return "; ".join(items)


def parse_facts(text: str) -> ShapeFacts:
    """Parse facts; `parse_facts(facts_to_text(f)) == f`.

    Raises:
        ParseError: GY-EXPR-004, if an item is not in the format of `facts_to_text`.
    """
    facts = ShapeFacts()
    for item in filter(None, (part.strip() for part in text.split(";"))):
        facts = _with_item(facts, item)
    return facts


def _with_item(facts: ShapeFacts, item: str) -> ShapeFacts:
    if match := _RANGE.fullmatch(item):
        lo, hi = match["lo"], match["hi"]
        return facts.with_range(
            Sym(match["sym"]), None if lo == "*" else int(lo), None if hi == "*" else parse_expr(hi)
        )
    if match := _MULTIPLE.fullmatch(item):
        return facts.with_divisible(Sym(match["sym"]), int(match["by"]))
    if match := _HINT.fullmatch(item):
        return facts.with_hint(Sym(match["sym"]), int(match["value"]))
    if match := _EQUAL.fullmatch(item):
        return facts.with_equal(Sym(match["sym"]), parse_expr(match["value"]))
    if match := _ASSUME.fullmatch(item):
        return facts.with_cond(parse_cond(match["cond"]))
    raise ParseError.of(
        "GY-EXPR-004",
        f"{item!r} is not a fact",
        where=item,
        help="write `s0 in [lo, hi]`, `s0 multiple k`, `s0 = e`, `s0 ~ v` or `assume c`",
    )
