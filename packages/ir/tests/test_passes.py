from enum import StrEnum
from typing import ClassVar, Literal

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from gyrator_ir.checks import natural
from gyrator_ir.diagnostics import ParseError, VerifyError
from gyrator_ir.passes import Level, Off, PassEdits, PassError, Pipeline, Tracer, configured
from gyrator_ir.text.passes import parse_pipeline, show_pipeline


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
    limits: tuple[tuple[str, int], ...] = ()

    def run(self, program):
        return [*program, self.limit]


@frozen
class Nothing:
    name: ClassVar[str] = "drop-dead-buffers"

    def run(self, program):
        return program


TABLE = {p.name: p for p in (Fuse, Nothing)}


def checked(program):
    if 14 in program:
        raise RuntimeError("there is a 14")
    if 13 in program:
        raise VerifyError.of("GY-TEST-001", "there is a 13", provenance=("op",))
    return program


LISTS = Level("lists", list, str, checked)
IN_PLACE = Level("lists", list, str, checked, in_place=True)


@frozen
class Append:
    name: ClassVar[str] = "append"
    item: object = 7

    def run(self, program):
        return [*program, self.item]


@frozen
class Extend:
    name: ClassVar[str] = "extend"
    by: object = True

    def run(self, program):
        if self.by:
            program.append(1)
        return self.by


def lists(*passes, **more):
    return Pipeline(LISTS, passes, **more)


def test_passes_run_in_order_and_are_traced():
    tracer = Tracer(texts=True)
    assert lists(Fuse(1), Nothing(), Append()).run([], tracer) == [1, 7]
    assert [(s.level, s.name, s.changed, s.before, s.after) for s in tracer.steps] == [
        ("lists", "fuse", True, "[]", "[1]"),
        ("lists", "drop-dead-buffers", False, "[1]", "[1]"),
        ("lists", "append", True, "[1]", "[1, 7]"),
    ]
    assert all(s.seconds >= 0 for s in tracer.steps)
    timed = Tracer()
    lists(Fuse()).run([], timed)
    assert [s.before + s.after for s in timed.steps] == [""]


def test_what_is_off_keeps_its_place():
    pipeline = lists(Fuse(1), Off(Append()))
    assert pipeline.names == ("fuse", "append")
    assert pipeline.run([]) == [1]
    assert PassEdits().after("append", Fuse(2)).apply(pipeline).run([]) == [1, 2]
    assert PassEdits().last("lists", Append()).apply(pipeline).run([]) == [1, 7]
    edits = PassEdits().replaced("append", Fuse(2)).after("fuse", Nothing(), Fuse(3))
    assert edits.apply(pipeline).run([]) == [1, 3, 3]
    assert PassEdits().configured("append", item=5).apply(pipeline).passes[1] == Off(Append(5))
    assert PassEdits().configured("fuse", limit=4).apply(pipeline).run([]) == [4]


@pytest.mark.parametrize(("verify", "times"), [("never", 0), ("end", 1), ("each", 2)])
def test_what_changed_is_verified(verify, times):
    seen: list[object] = []

    def verifier(program):
        seen.append(program)
        return program

    level = Level("lists", list, str, verifier)
    Pipeline(level, (Fuse(), Append(), Nothing()), verify=verify).run([])
    Pipeline(level, (Nothing(),), verify=verify).run([])
    assert len(seen) == times


@pytest.mark.parametrize(("item", "code"), [(13, "GY-TEST-001"), (14, "GY-PASS-013")])
def test_errors_name_the_pass(item, code):
    bad = lists(Fuse(1), Append(item), Fuse(2))
    with pytest.raises(VerifyError, match=f"{code}: (.|\n)*from: pass 'append' of the level lists"):
        PassEdits().first("lists", Nothing()).apply(bad).run([])


@pytest.mark.parametrize(
    ("level", "by"), [(LISTS, True), (LISTS, None), (IN_PLACE, None), (IN_PLACE, [])]
)
def test_what_a_pass_returns_is_checked(level, by):
    help = "return whether it changed its argument" if level.in_place else "return a list"
    with pytest.raises(PassError, match=f"GY-PASS-011: pass 'extend' (.|\n)*{help}"):
        Pipeline(level, (Extend(by),)).run([])


def test_programs_are_changed_in_place():
    tracer, program = Tracer(texts=True), []
    passes = (Extend(), Extend(False))
    assert Pipeline(IN_PLACE, passes).run(program, tracer) is program == [1]
    assert [(s.changed, s.before, s.after) for s in tracer.steps] == [
        (True, "[]", "[1]"),
        (False, "[1]", "[1]"),
    ]


ALL = lists(Fuse(), Nothing())


@pytest.mark.parametrize(
    ("edits", "passes"),
    [
        (PassEdits().without("fuse", "drop-dead-buffers"), ()),
        (PassEdits().without("fuse", level="other"), ALL.passes),
        (PassEdits().before("fuse", Append()), (Append(), Fuse(), Nothing())),
        (PassEdits().after("fuse", Append(), Fuse(2)), (Fuse(), Append(), Fuse(2), Nothing())),
        (PassEdits().replaced("fuse", Append(), level="lists"), (Append(), Nothing())),
        (PassEdits().configured("fuse", limit=9, loud=True), (Fuse(9, loud=True), Nothing())),
        (PassEdits().first("lists", Append()), (Append(), Fuse(), Nothing())),
        (PassEdits().last("lists", Append()).without("fuse"), (Nothing(), Append())),
        (PassEdits().only("lists"), ()),
        (PassEdits().last("lists", Append()).after("append", Fuse(1)).without("fuse", "append"),
         (Nothing(),)),
    ],
)  # fmt: skip
def test_edits(edits, passes):
    assert edits.apply(ALL).passes == passes
    assert (edits.apply(ALL) is ALL) == (passes is ALL.passes)
    assert hash(edits) == hash(PassEdits(edits.edits))
    edits.without().check([ALL, Pipeline(Level("other", list, str, list), (Fuse(),))])


NONE = PassEdits()


@pytest.mark.parametrize(
    ("edits", "code", "message", "help"),
    [
        (
            NONE.without("fuze"),
            "001",
            "no pass 'fuze'",
            "'fuse'? there are lists: fuse, drop-dead-",
        ),
        (NONE.without("fuse", level="loop"), "009", "no level 'loop'", "known: lists"),
        (NONE.last("list", Fuse()), "009", "no level 'list'", "did you mean 'lists'?"),
        (NONE.without("xyz", level="lists"), "001", "on the level lists", "there are lists: "),
        (NONE.without("fuse").after("fuse", Append()), "001", "no pass 'fuse'", "there are"),
        (NONE.configured("fuse", limit="x"), "003", "cannot be 'x'", "of the type `int`, now 3"),
        (NONE.configured("fuse", limt=3), "002", "no option 'limt'", "did you mean 'limit'?"),
    ],
)
def test_edits_that_name_nothing(edits, code, message, help):
    with pytest.raises(PassError) as caught:
        edits.check([ALL])
    diagnostic = caught.value.diagnostic
    assert diagnostic.code == f"GY-PASS-{code}"
    assert message in diagnostic.message and help in diagnostic.help


@frozen
class Nameless:
    def run(self, program):
        return program


@frozen
class Idle:
    name: ClassVar[str] = "idle"
    run: object = None


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (Fuse, "it is a class, not an object"), ("fuse", "str is not a class of attrs"),
        (print, "is not a class of attrs"), (Nameless(), "Nameless has no `name`"),
        (Idle(), "Idle has no method `run`"),
    ],
)  # fmt: skip
def test_what_is_no_pass_is_refused(one, why):
    with pytest.raises(PassError, match=f"GY-PASS-010: .* is not a pass: .*{why}"):
        PassEdits().after("fuse", one)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("limit", "x"), ("limit", 2.0), ("limit", True), ("limit", None), ("limit", -1),
        ("keep", ("a",)), ("keep", frozenset({1})), ("mode", "bold"), ("ratio", "0.5"),
        ("order", [1]), ("order", (1, "2")), ("loud", 1), ("level", "middle"), ("note", None),
        ("limits", (("a", 1, 2),)), ("limits", (("a", "b"),)),
    ],
)  # fmt: skip
def test_options_of_another_type_are_refused(option, value):
    with pytest.raises(PassError) as caught:
        configured(Fuse(), {option: value})
    diagnostic = caught.value.diagnostic
    assert diagnostic.code == "GY-PASS-003"
    assert repr(value) in diagnostic.message and option in diagnostic.message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("limit", 0), ("keep", frozenset("a")), ("mode", Mode.BOLD), ("ratio", None), ("ratio", 2),
        ("order", ()), ("order", (1, 2)), ("loud", True), ("level", "high"), ("note", ""),
        ("limits", (("a", 1), ("b", 2))),
    ],
)  # fmt: skip
def test_options_of_the_type_of_a_field_are_accepted(option, value):
    assert getattr(configured(Fuse(), {option: value}), option) == value


@frozen
class Broken:
    name: ClassVar[str] = "broken"
    error: Exception

    def run(self, program):
        raise self.error


def test_a_pass_that_raises_is_blamed():
    line = Broken.run.__code__.co_firstlineno + 1
    with pytest.raises(PassError) as caught:
        Pipeline(LISTS, (Broken(KeyError("nothing")),)).run([])
    diagnostic = caught.value.diagnostic
    assert diagnostic.code == "GY-PASS-014" and "not Gyrator's code" in diagnostic.help
    assert diagnostic.message == (
        f"pass 'broken' of the level lists raised KeyError: 'nothing', at {__file__}:{line} in run"
    )
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(VerifyError, match="GY-TEST-001"):  # which says what is wrong
        Pipeline(LISTS, (Broken(VerifyError.of("GY-TEST-001", "a reason")),)).run([])


def test_a_pass_of_gyrator_that_raises_is_not():
    ours = type("Ours", (Broken,), {"__module__": "gyrator_scheduler.passes.ours"})
    with pytest.raises(KeyError, match="nothing"):
        Pipeline(LISTS, (ours(KeyError("nothing")),)).run([])


def test_the_part_of_a_pipeline_up_to_a_pass():
    assert ALL.until("drop-dead-buffers", included=False).passes == (Fuse(),)
    assert ALL.until("fuse", included=True).passes == (Fuse(),)


def test_text():
    text = (
        "fuse{limit=4, keep=[x, y], mode=very-bold, ratio=0.5, order=[1, -2], loud=true, "
        'level=high, note="a b", limits=[[x, 1], [y, 2]]},drop-dead-buffers'
    )
    passes = parse_pipeline(text, TABLE)
    fuse = Fuse(
        4, frozenset("xy"), Mode.BOLD, 0.5, (1, -2), True, "high", "a b", (("x", 1), ("y", 2))
    )
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


def test_options_that_are_not_given_are_those_of_the_pass():
    assert parse_pipeline("fuse{loud=true},fuse", {"fuse": Fuse(9)}) == (
        Fuse(9, loud=True),
        Fuse(9),
    )


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
        st.lists(st.tuples(st.text(), st.integers())).map(tuple),
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
        ("fuse{limits=[[x]]}", "GY-PASS-003", ""),
        ("fuse{limits=[[1, x]]}", "GY-PASS-003", ""),
        ("fuse{", "GY-PARSE-001", ""),
        ("fuse,", "GY-PARSE-001", ""),
        ("fuse nothing", "GY-PARSE-001", ""),
    ],
)
def test_errors(text, code, help):
    with pytest.raises(ParseError) as caught:
        parse_pipeline(text, TABLE)
    diagnostic = caught.value.diagnostic
    assert diagnostic.code == code
    assert help in diagnostic.help
