"""The rewrites of expressions hold for all integers, and none goes without a proof."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("z3", reason="z3-solver is not installed; `nox -s prove` has it")
sys.path.insert(0, str(Path(__file__).parent))

from proofs.__main__ import law_holds, law_holds_here, prove, run, unreached
from proofs.rules import LAWS, NONE, rule

from gyrator_ir.expr import Sym


@pytest.fixture(scope="module")
def proofs():
    return run()


def test_every_rewrite_is_right(proofs):
    outcomes, _ = proofs

    assert not [(o.rule.name, o.wrong) for o in outcomes if o.wrong]
    assert sum(not o.exhausted for o in outcomes) >= 0.9 * len(outcomes)


def test_every_rewrite_is_among_them(proofs):
    _, lines = proofs

    assert not unreached(lines), "give these a statement in proofs/rules.py"


@pytest.mark.parametrize("name", LAWS)
def test_an_identity_of_division(name):
    assert law_holds(LAWS[name]) is not False
    assert law_holds_here(LAWS[name])


def test_a_wrong_rewrite_is_found(monkeypatch):
    from gyrator_ir.expr import build

    monkeypatch.setattr(build, "sum_of_terms", lambda terms, const: Sym("s8"))
    assert prove(rule("wrong", "", lambda w, x, y: w.sum_of([x, y]))).wrong


def test_what_follows_from_nothing_is_no_proof():
    never = NONE.with_range(Sym("s8"), 3, 2)
    assert prove(rule("never", "", lambda w, x, y: x + y, facts=never)).wrong
