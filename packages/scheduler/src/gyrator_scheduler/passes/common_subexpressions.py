"""`common-subexpressions`: compute equal values of a body once."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_ir.body.nodes import Bind, Load, Statement, Store
from gyrator_ir.body.rewrite import live, renamed, value_key
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Reduction, Scan, Sort
from gyrator_scheduler.passes.rewriting import each_loop


@frozen
class CommonSubexpressions:
    """Replace a statement that equals an earlier one of its body by the earlier one's value, and
    drop what then feeds nothing. Loads of a buffer that the body stores to stay where they are."""

    name: ClassVar[str] = "common-subexpressions"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with shorter bodies."""
        return each_loop(program, _shared)


def _shared(op: LoopOperation) -> LoopOperation:
    stored = {s.buffer for s in op.body if isinstance(s, Store)}
    names: dict[str, str] = {}
    symbols: dict[Sym, Expr] = {}
    seen: dict[object, str | Sym] = {}
    body: list[Statement] = []
    for s in op.body:
        s = renamed(s, names, symbols) if names or symbols else s
        key = None if isinstance(s, Load) and s.buffer in stored else value_key(s)
        if key is None:
            body.append(s)
            continue
        known = seen.get(key)
        if known is None:
            seen[key] = s.symbol if isinstance(s, Bind) else s.name  # type: ignore[union-attr]
            body.append(s)
        elif isinstance(s, Bind):
            assert isinstance(known, Sym)
            symbols[s.symbol] = known
        else:
            assert isinstance(known, str)
            names[s.name] = known  # type: ignore[union-attr]  # stores have no key
    if isinstance(op, Reduction):
        fold = op.reduce
        if names:
            fold = evolve(fold, args=tuple(names.get(a, a) for a in fold.args))
        kept = live(body, fold.args)
        return op if kept == op.body else evolve(op, body=kept, reduce=fold)
    if isinstance(op, (Scan, Sort)):
        return op
    kept = live(body)
    return op if kept == op.body else evolve(op, body=kept)
