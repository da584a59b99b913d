from enum import StrEnum
from typing import ClassVar, Literal

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from gyrator_ir.checks import natural
from gyrator_ir.diagnostics import ParseError
from gyrator_ir.passes import Pipeline, Step, parse_pipeline, show_pipeline


class Mode(StrEnum):
    SAFE = "safe"
    BOLD = "very-bold"


@frozen
class Fuse:
    name: ClassVar[str] = "fuse"
    limit: int = field(default=3, validator=natural)
    keep: frozenset[str] = frozenset()
    mode: Mode = Mode.SAFE
    ratio: float | None = None
    order: tuple[int, ...] = ()
    loud: bool = False
    level: Literal["low", "high"] = "low"
    note: str = ""

    def run(self, program):
        return [*program, self.limit]


@frozen
class Nothing:
    name: ClassVar[str] = "drop-dead-buffers"

    def run(self, program):
        return program


TABLE = {p.name: p for p in (Fuse, Nothing)}


def test_passes_run_in_order_and_are_traced():
    steps: list[Step] = []
    pipeline = Pipeline((Fuse(1), Nothing(), Fuse(2)), verifier=lambda p: p)
    assert pipeline.run([], steps.append) == [1, 2]
    assert [(s.name, s.changed) for s in steps] == [
        ("fuse", True),
        ("drop-dead-buffers", False),
        ("fuse", True),
    ]


@pytest.mark.parametrize(("verify", "times"), [("ends", 2), ("each", 5)])
def test_the_verifier_runs_at_the_ends_or_after_each(verify, times):
    seen: list[object] = []

    def verifier(program):
        seen.append(program)
        return program

    Pipeline((Fuse(), Fuse(), Nothing()), verifier, verify).run([])
    assert len(seen) == times


def test_a_pipeline_is_a_value():
    assert Pipeline((Fuse(1),), list) == Pipeline((Fuse(1),), list)


def test_text():
    text = (
        "fuse{limit=4, keep=[x, y], mode=very-bold, ratio=0.5, order=[1, -2], loud=true, "
        'level=high, note="a b"},drop-dead-buffers'
    )
    passes = parse_pipeline(text, TABLE)
    fuse = Fuse(4, frozenset("xy"), Mode.BOLD, 0.5, (1, -2), True, "high", "a b")
    assert passes == (fuse, Nothing())
    assert show_pipeline(passes) == text


def test_defaults_are_left_out():
    assert show_pipeline((Fuse(), Nothing())) == "fuse,drop-dead-buffers"
    assert parse_pipeline("", TABLE) == ()
    assert parse_pipeline("fuse{}", TABLE) == (Fuse(),)
    assert parse_pipeline("fuse{ratio=2}", TABLE) == (Fuse(ratio=2.0),)
    assert type(parse_pipeline("fuse{ratio=2}", TABLE)[0].ratio) is float
    assert parse_pipeline("fuse{ratio=inf}", TABLE) == (Fuse(ratio=float("inf")),)
    assert parse_pipeline("fuse{ratio=-inf}", TABLE) == (Fuse(ratio=float("-inf")),)


@given(
    st.builds(
        Fuse,
        st.integers(0),
        st.frozensets(st.text()),
        st.sampled_from(Mode),
        st.none() | st.floats(allow_nan=False),
        st.lists(st.integers()).map(tuple),
        st.booleans(),
        st.sampled_from(["low", "high"]),
        st.text(),
    )
)
def test_any_options_round_trip(fuse):
    assert parse_pipeline(show_pipeline((fuse, Nothing())), TABLE) == (fuse, Nothing())


@pytest.mark.parametrize(
    ("text", "code", "help"),
    [
        ("fus", "GY-PASS-001", "did you mean 'fuse'?"),
        ("xyz", "GY-PASS-001", "known: drop-dead-buffers, fuse"),
        ("fuse{limt=3}", "GY-PASS-002", "did you mean 'limit'?"),
        ("drop-dead-buffers{x=3}", "GY-PASS-002", "there are none"),
        ("fuse{limit=x}", "GY-PASS-003", ""),
        ("fuse{limit=true}", "GY-PASS-003", ""),
        ("fuse{limit=-1}", "GY-PASS-003", ""),
        ("fuse{mode=meek}", "GY-PASS-003", ""),
        ("fuse{level=middle}", "GY-PASS-003", ""),
        ("fuse{keep=[1]}", "GY-PASS-003", ""),
        ("fuse{ratio=x}", "GY-PASS-003", ""),
        ("fuse{", "GY-PARSE-001", ""),
        ("fuse,", "GY-PARSE-001", ""),
        ("fuse nothing", "GY-PARSE-001", ""),
    ],
)
def test_errors(text, code, help):
    with pytest.raises(ParseError) as caught:
        parse_pipeline(text, TABLE)
    found = caught.value.diagnostic
    assert found.code == code
    assert help in found.help
