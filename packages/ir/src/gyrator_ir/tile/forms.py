"""The text forms of the decisions of a tiled kernel."""

from enum import StrEnum

from gyrator_ir.expr import ZERO, Expr
from gyrator_ir.source import Configuration
from gyrator_ir.text.forms import (
    DTYPE,
    EXPR,
    INTEGER,
    NAME,
    NAMES,
    SYMBOL,
    Block,
    Codec,
    Form,
    FormTable,
    Part,
    flag,
    pairs,
    sequence,
)
from gyrator_ir.text.scanner import Scanner
from gyrator_ir.tile.nodes import (
    Access,
    Barrier,
    Choice,
    Contraction,
    IndexAccess,
    Loop,
    LoopKind,
    Method,
    Pair,
    Pipelined,
    Prefetch,
    Product,
    Reduction,
    Repeat,
    Reuse,
    Threads,
    Transposed,
    Unrounded,
)
from gyrator_ir.tile.nodes import Form as IndexForm


def _word_of(words: type[StrEnum]) -> Codec:
    def read(scanner: Scanner) -> StrEnum:
        word = scanner.name()
        if word not in words.__members__.values():
            scanner.fail(f"one of {', '.join(words)}")
        return words(word)

    return Codec(lambda value, _: value.value, read)


def _read_step(scanner: Scanner) -> int | str:
    following = scanner.text[scanner.at :].lstrip()[:1]
    return scanner.integer() if following.isdigit() else scanner.name()


STEP = Codec(lambda value, _: str(value), _read_step)
INTEGERS = sequence(INTEGER, "()")
EXPRESSIONS = sequence(EXPR, "()")


def _read_index(scanner: Scanner) -> Expr:
    scanner.expect("[")
    index = scanner.expr()
    scanner.expect("]")
    return index


INDEX = Codec(lambda value, w: f"[{w.expr(value)}]", _read_index)
_LOOP = (
    Part("axes", sequence(SYMBOL, "()")),
    Part("step", STEP, lead="by", omit=1),
)
LOOPS = {kind: Form(Loop, kind.value, _LOOP) for kind in LoopKind}

FORMS = FormTable(
    (
        Form(
            Reduction,
            "reduce",
            (
                Part("result", NAME),
                Part("method", _word_of(Method)),
                Part("unroll", STEP, lead="unroll", omit=1),
                Part("chain", INTEGER, lead="chain", omit=0),
                flag("wide", "wide"),
                Part("block", STEP, lead="block", omit=0),
                flag("reload", "reload"),
                Part("keep", NAMES, lead="keep", omit=()),
            ),
        ),
        Form(
            Contraction,
            "contraction",
            (
                Part("rows", INTEGER, lead="rows"),
                Part("columns", INTEGER, lead="columns"),
                Part("depth", INTEGER, lead="depth"),
                Part("group", INTEGER, lead="group", omit=1),
            ),
            blocks=(Block("products"),),
        ),
        Form(
            Product,
            "product",
            (
                Part("result", NAME),
                Part("left", NAME, lead="="),
                Part("right", NAME, lead="*"),
                Part("dtype", DTYPE, lead="in"),
                Part("along", sequence(SYMBOL, "()"), lead="along", omit=()),
                flag("direct", "direct"),
            ),
        ),
        Form(
            Threads,
            "threads",
            (Part("loops", INTEGER), Part("grain", INTEGER, lead="grain", omit=0)),
        ),
        Form(Transposed, "transposed", (Part("load", NAME), Part("along", SYMBOL, lead="along"))),
        Form(Pipelined, "pipelined", (Part("stage", INTEGER), Part("ahead", STEP, lead="ahead"))),
        Form(
            Prefetch,
            "prefetch",
            (
                Part("stage", INTEGER),
                Part("buffer", NAME),
                Part("index", INDEX, glued=True),
                flag("write", "write"),
                flag("second", "second"),
            ),
        ),
        Form(
            IndexForm,
            "form",
            (Part("index", INDEX), Part("written", INDEX, lead="as")),
        ),
        Form(
            IndexAccess,
            "access",
            (
                Part("index", INDEX),
                Part("kind", _word_of(Access)),
                Part("stride", INDEX, lead="by", omit=ZERO),
                Part("terms", pairs(EXPR), lead="of", omit=()),
                Part("ahead", INDEX, lead="ahead", omit=ZERO),
            ),
        ),
        Form(
            Pair,
            "pair",
            (
                Part("stage", INTEGER),
                Part("first", INTEGER, lead="statements"),
                Part("second", INTEGER, lead="and"),
            ),
        ),
        Form(
            Unrounded,
            "unrounded",
            (
                Part("stage", INTEGER),
                Part("statement", INTEGER, lead="statement"),
                Part("value", NAME, lead="of"),
            ),
        ),
        Form(
            Reuse,
            "reuse",
            (
                Part("stage", INTEGER),
                Part("statement", INTEGER, lead="statement"),
                Part("first_stage", INTEGER, lead="of"),
                Part("first_statement", INTEGER, lead="statement"),
            ),
        ),
        Form(
            Barrier,
            "barrier",
            (Part("stage", INTEGER), Part("statement", INTEGER, lead="statement")),
        ),
        Form(Choice, "choice", (Part("name", NAME), Part("values", INTEGERS, lead="of"))),
        Form(Configuration, "candidate", (Part("values", pairs(INTEGER)),)),
    )
)
"""The decisions other than loops that have a line of their own."""

REPEAT = Form(Repeat, "repeat", (Part("name", NAME), Part("kernel", NAME, lead="of")))
SHARED = (
    Part("costs", INTEGERS, lead="costs", omit=()),
    Part("grain", INTEGER, lead="grain", omit=0),
    Part("programs", INTEGER, lead="programs", omit=0),
    Part("selected", INTEGER, lead="selected", omit=1),
)
"""How the work of a group is distributed, at the end of its line."""

LISTS = (
    "reductions", "transposed", "pipelined", "prefetches", "forms", "accesses", "pairs",
    "unrounded", "reuses", "barriers", "choices", "candidates",
)  # fmt: skip
"""Fields of a tiled kernel that are printed as one line per item."""
NAMED = (
    "atomic",
    "cleared",
    "stack",
    "ahead",
    "exact",
    "approximate",
    "early",
    "fours",
    "replicated",
    "streamed",
)
"""Fields that are printed as one line of names."""
