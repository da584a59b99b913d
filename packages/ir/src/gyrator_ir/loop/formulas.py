"""Formulas of templates: printing, parsing and verification."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import evolve

from gyrator_ir.body.nodes import Bind, Const, Store
from gyrator_ir.body.parse import read_statement
from gyrator_ir.body.print import show_statement
from gyrator_ir.body.rewrite import defined, expressions, reads, renamed, rewritten
from gyrator_ir.body.verify import SIZE_KINDS, Checker, Scope, Where
from gyrator_ir.expr import Expr, Sym, SymKind
from gyrator_ir.loop.nodes import Formula, TemplateKind
from gyrator_ir.text.forms import NAMES, build
from gyrator_ir.text.lines import Line, indented
from gyrator_ir.text.scanner import Scanner
from gyrator_ir.types import DType

BATCH, HEAD, ROW, COLUMN = SCORE_INDICES = tuple(Sym(f"i{n}") for n in range(4))
"""The index symbols of a score, which the statements of a formula may use."""

_SIGNATURES: Mapping[TemplateKind, Sequence[tuple[str, int, DType]]] = {
    TemplateKind.FLEX_ATTENTION: (("score", 1, DType.F32), ("mask", 0, DType.BOOL)),
    TemplateKind.FLEX_ATTENTION_PARTS: (("score", 1, DType.F32), ("mask", 0, DType.BOOL)),
    TemplateKind.FLEX_ATTENTION_GRADIENTS: (
        ("score", 1, DType.F32),
        ("mask", 0, DType.BOOL),
        ("slope", 2, DType.F32),
    ),
    TemplateKind.CONVOLUTION: (("after", 1, DType.F32),),
    TemplateKind.DEPTHWISE: (("after", 1, DType.F32),),
}
"""Name, number of parameters and result type of each formula of a kind."""


def show_formula(f: Formula) -> list[str]:
    """Print `formula score (a) -> b`, followed by its statements."""
    head = f"formula {f.name} ({', '.join(f.parameters)}) -> {f.result}"
    return [head, *indented([show_statement(s) for s in f.body])]


def read_formula(line: Line) -> Formula:
    """Parse the output of `show_formula`."""
    s = Scanner(line)
    s.expect("formula")
    name = s.name()
    parameters = NAMES.read(s)
    s.expect("->")
    result = s.name()
    s.end()
    body = tuple(map(read_statement, line.children))
    values = {"name": name, "parameters": parameters, "body": body, "result": result}
    return build(line, Formula, values)


def formulas_on(formulas: Iterable[Formula], buffers: Mapping[str, str]) -> tuple[Formula, ...]:
    """Return the formulas with buffers renamed."""
    return tuple(
        evolve(f, body=tuple(rewritten(s, buffers=buffers) for s in f.body)) for f in formulas
    )


def with_distinct_names(formulas: Iterable[Formula]) -> tuple[Formula, ...]:
    """Return the formulas with values and symbols renamed so that no two share a name."""
    renamed_formulas: list[Formula] = []
    count = 0
    for f in formulas:
        names = {n: f"{f.name}_{n}" for n in f.parameters}
        symbols: dict[Sym, Expr] = {}
        for s in f.body:
            names |= {n: f"{f.name}_{n}" for n in defined(s)}
            if isinstance(s, Bind):
                symbols[s.symbol] = Sym(f"t{count}", SymKind.INDIRECT)
                count += 1
        body = tuple(renamed(s, names, symbols) for s in f.body)
        parameters = tuple(names[n] for n in f.parameters)
        renamed_formulas.append(Formula(f.name, parameters, body, names[f.result]))
    return tuple(renamed_formulas)


def is_true(formula: Formula) -> bool:
    """Return whether the result of a formula is the constant true."""
    return any(
        isinstance(s, Const) and s.name == formula.result and s.value is True for s in formula.body
    )


def sizes_in(formulas: Iterable[Formula]) -> Iterator[Sym]:
    """Yield the size symbols that occur in formulas."""
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
    """Fail (019) unless the formulas are those of the kind and load only from `inputs`."""
    signatures = _SIGNATURES.get(kind, ())
    if [f.name for f in formulas] != [name for name, _, _ in signatures]:
        message = f"{kind.value} has the formulas {[name for name, _, _ in signatures]}"
        checker.fail(19, f"{message}, not {[f.name for f in formulas]}", where)
    buffers = set(inputs)
    for f, (name, count, dtype) in zip(formulas, signatures, strict=True):
        if len(f.parameters) != count or len(set(f.parameters)) != count:
            checker.fail(19, f"formula {name} has {count} parameters, not {f.parameters}", where)
        if any(isinstance(s, Store) for s in f.body):
            checker.fail(19, f"formula {name} stores", where)
        if not buffers.issuperset(reads(f.body)):
            others = sorted(set(reads(f.body)) - buffers)
            checker.fail(19, f"formula {name} loads from {others}, which are not inputs", where)
        scope = Scope(
            values=dict.fromkeys(f.parameters, DType.F32), symbols={*sizes, *SCORE_INDICES}
        )
        checker.statements(f.body, scope)
        if scope.values.get(f.result) is not dtype:
            checker.fail(19, f"the result of formula {name} must be {dtype.value}", where)
