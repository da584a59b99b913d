"""The text forms of the decisions of a tiled kernel."""

from gyrator_ir.expr import Expr
from gyrator_ir.source import Configuration
from gyrator_ir.text.forms import (
    CODECS,
    EXPR,
    INTEGER,
    Block,
    Codec,
    FormTable,
    Grammar,
    member_of,
    pairs,
    sequence,
)
from gyrator_ir.text.scanner import Scanner
from gyrator_ir.tile.nodes import (
    Access,
    Barrier,
    Choice,
    Contraction,
    Fission,
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
    Section,
    Threads,
    TiledGroup,
    Transposed,
    Unrounded,
    Wait,
)
from gyrator_ir.tile.nodes import Form as IndexForm


def _read_step(scanner: Scanner) -> int | str:
    following = scanner.text[scanner.at :].lstrip()[:1]
    return scanner.integer() if following.isdigit() else scanner.name()


def _read_index(scanner: Scanner) -> Expr:
    scanner.expect("[")
    index = scanner.expr()
    scanner.expect("]")
    return index


EXPRESSIONS = sequence(EXPR, "()")
_GRAMMAR = Grammar(
    {
        **CODECS,
        "step": Codec(lambda value, _: str(value), _read_step),
        "index": Codec(lambda value, w: f"[{w.expr(value)}]", _read_index),
        "terms": pairs(EXPR),
        "choices": pairs(INTEGER),
        "method": member_of(Method),
        "kind": member_of(Access),
    }
)
_form = _GRAMMAR.form

LOOPS = {kind: _form(Loop, f"{kind.value} {{axes:symbols}} [by {{step}}]") for kind in LoopKind}

FORMS = FormTable(
    (
        _form(
            Reduction,
            "reduce {result} {method} [unroll {unroll:step}] [chain {chain:integer}] [wide] "
            "[compensated] [block {block:step}] [reload] [keep {keep:names}] "
            "[group {group:integer}] [apart] [narrow] [fused] [of {of}]",
        ),
        _form(
            Contraction,
            "contraction rows {rows:integer} columns {columns:integer} depth {depth:integer} "
            "[group {group:integer}]",
            Block("products"),
        ),
        _form(
            Product,
            "product {result} = {left} * {right} in {dtype} [along {along:symbols}] [direct] "
            "[tf32]",
        ),
        _form(Threads, "threads {loops:integer} [grain {grain:integer}]"),
        _form(Transposed, "transposed {load} along {along:symbol}"),
        _form(
            Section,
            "section {start:integer} [scalar] [true {true:names}] [false {false:names}] "
            "[indices {indices:terms}]",
        ),
        _form(Fission, "fission {stage:integer} of {values:names}"),
        _form(Pipelined, "pipelined {stage:integer} ahead {ahead:step}"),
        _form(Prefetch, "prefetch {stage:integer} {buffer}{index} [write] [second]"),
        _form(IndexForm, "form {index} as {written:index}"),
        _form(
            IndexAccess,
            "access {index} {kind} [by {stride:index}] [of {terms}] [ahead {ahead:index}]",
        ),
        _form(Pair, "pair {stage:integer} statements {first:integer} and {second:integer}"),
        _form(Unrounded, "unrounded {stage:integer} statement {statement:integer} of {value}"),
        _form(
            Reuse,
            "reuse {stage:integer} statement {statement:integer} "
            "of {first_stage:integer} statement {first_statement:integer}",
        ),
        _form(Barrier, "barrier {stage:integer} statement {statement:integer}"),
        _form(Wait, "wait [after {after:names}] [releasing]"),
        _form(Choice, "choice {name} of {values:integers}"),
        _form(Configuration, "candidate {values:choices}"),
    )
)
"""The decisions other than loops that have a line of their own."""

REPEAT = _form(Repeat, "repeat {name} of {kernel}")
SHARED = _GRAMMAR.parts(
    TiledGroup,
    " [costs {costs:integers}] [grain {grain:integer}] [programs {programs:integer}] "
    "[selected {selected:integer}]",
)
"""How the work of a group is distributed, at the end of its line."""

LISTS = (
    "reductions", "transposed", "sections", "fissions", "pipelined", "prefetches", "forms",
    "accesses", "pairs", "unrounded", "reuses", "barriers", "choices", "candidates",
)  # fmt: skip
"""Fields of a tiled kernel that are printed as one line per item."""
NAMED = (
    "atomic", "cleared", "stack", "ahead", "exact", "truncated", "approximate", "reciprocals",
    "early", "fours", "packed", "replicated", "streamed", "near",
)  # fmt: skip
"""Fields that are printed as one line of names."""
