"""Formulas of templates: how they print, parse and must be."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import evolve

from gyrator_ir.body.nodes import Bind, Store
from gyrator_ir.body.parse import read_statement
from gyrator_ir.body.print import show_statement
from gyrator_ir.body.rewrite import defined, expressions, reads, renamed, rewritten
from gyrator_ir.body.verify import SIZE_KINDS, Checker, Scope, Where
from gyrator_ir.expr import Expr, Sym, SymKind
from gyrator_ir.loop.nodes import Formula, TemplateKind
from gyrator_ir.text.forms import build
from gyrator_ir.text.lines import Line, indented
from gyrator_ir.text.scanner import Scanner
from gyrator_ir.types import DType

BATCH, HEAD, ROW, COLUMN = PLACES = tuple(Sym(f"i{n}") for n in range(4))
"""What a formula's statements are over."""

_WANTED: Mapping[TemplateKind, Sequence[tuple[str, int, DType]]] = {
    TemplateKind.FLEX_ATTENTION: (("score", 1, DType.F32), ("mask", 0, DType.BOOL)),
    TemplateKind.FLEX_ATTENTION_GRADIENTS: (
        ("score", 1, DType.F32),
        ("mask", 0, DType.BOOL),
        ("slope", 2, DType.F32),
    ),
}
"""Name, number of given values and type of the result of each formula of a kind."""


def show_formula(f: Formula) -> list[str]:
    """Print `formula score (a) -> b`, and its statements below it."""
    head = f"formula {f.name} ({', '.join(f.given)}) -> {f.result}"
    return [head, *indented([show_statement(s) for s in f.body])]


def read_formula(line: Line) -> Formula:
    """Read what `show_formula` writes."""
    s = Scanner(line)
    s.expect("formula")
    name = s.name()
    given: list[str] = []
    s.expect("(")
    while not s.looks(")"):
        given.append(s.name())
        if not s.take(","):
            break
    s.expect(")")
    s.expect("->")
    result = s.name()
    s.end()
    body = tuple(map(read_statement, line.children))
    values = {"name": name, "given": tuple(given), "body": body, "result": result}
    found = build(line, Formula, values)
    assert isinstance(found, Formula)
    return found


def formulas_on(formulas: Iterable[Formula], buffers: Mapping[str, str]) -> tuple[Formula, ...]:
    """Return the formulas with other names of buffers."""
    return tuple(
        evolve(f, body=tuple(rewritten(s, buffers=buffers) for s in f.body)) for f in formulas
    )


def apart(formulas: Iterable[Formula]) -> tuple[Formula, ...]:
    """Return the formulas with names of values and symbols that no two of them share."""
    found: list[Formula] = []
    count = 0
    for f in formulas:
        names = {n: f"{f.name}_{n}" for n in f.given}
        symbols: dict[Sym, Expr] = {}
        for s in f.body:
            names |= {n: f"{f.name}_{n}" for n in defined(s)}
            if isinstance(s, Bind):
                symbols[s.symbol] = Sym(f"t{count}", SymKind.INDIRECT)
                count += 1
        body = tuple(renamed(s, names, symbols) for s in f.body)
        given = tuple(names[n] for n in f.given)
        found.append(Formula(f.name, given, body, names[f.result]))
    return tuple(found)


def sizes_in(formulas: Iterable[Formula]) -> Iterator[Sym]:
    """Yield the size symbols that formulas mention."""
    for f in formulas:
        for s in f.body:
            for e in expressions(s):
                yield from (x for x in e.free_symbols if x.kind in SIZE_KINDS)


def check_formulas(
    kind: TemplateKind,
    formulas: Sequence[Formula],
    inputs: Iterable[str],
    sizes: Iterable[Sym],
    checker: Checker,
    where: Where,
) -> None:
    """Fail (019) unless the formulas are those of a kind, over buffers among `inputs`."""
    wanted = _WANTED.get(kind, ())
    if [f.name for f in formulas] != [name for name, _, _ in wanted]:
        said = f"{kind.value} has the formulas {[name for name, _, _ in wanted]}"
        checker.fail(19, f"{said}, not {[f.name for f in formulas]}", where)
    known = set(inputs)
    for f, (name, count, dtype) in zip(formulas, wanted, strict=True):
        if len(f.given) != count or len(set(f.given)) != count:
            checker.fail(19, f"formula {name} is given {count} values, not {f.given}", where)
        if any(isinstance(s, Store) for s in f.body):
            checker.fail(19, f"formula {name} stores", where)
        if not known.issuperset(reads(f.body)):
            others = sorted(set(reads(f.body)) - known)
            checker.fail(19, f"formula {name} loads from {others}, which are no inputs", where)
        scope = Scope(values=dict.fromkeys(f.given, DType.F32), symbols={*sizes, *PLACES})
        checker.statements(f.body, scope)
        if scope.values.get(f.result) is not dtype:
            checker.fail(19, f"formula {name} gives no {dtype.value}", where)
