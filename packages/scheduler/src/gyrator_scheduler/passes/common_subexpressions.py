"""`common-subexpressions`: compute equal values of a body once."""

from typing import ClassVar

from attrs import evolve

from gyrator_ir.body.nodes import Bind, Load, Statement, Store
from gyrator_ir.body.rewrite import live, renamed, value_key
from gyrator_ir.define import frozen
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Reduction, Scan, Sort
from gyrator_scheduler.passes.rewriting import each_loop


@frozen
class CommonSubexpressions:
    """Replace a statement that equals an earlier one of its body by the earlier value, and
    eliminate dead statements. Loads of a buffer that the body stores to are not merged."""

    name: ClassVar[str] = "common-subexpressions"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with shorter bodies."""
        return each_loop(program, _shared)


def _shared(op: LoopOperation) -> LoopOperation:
    stored = {s.buffer for s in op.body if isinstance(s, Store)}
    names: dict[str, str] = {}
    symbols: dict[Sym, Expr] = {}
    values: dict[object, str | Sym] = {}
    body: list[Statement] = []
    for s in op.body:
        s = renamed(s, names, symbols) if names or symbols else s
        key = None if isinstance(s, Load) and s.buffer in stored else value_key(s)
        if key is None:
            body.append(s)
            continue
        earlier = values.get(key)
        if earlier is None:
            values[key] = s.symbol if isinstance(s, Bind) else s.name  # type: ignore[union-attr]
            body.append(s)
        elif isinstance(s, Bind):
            assert isinstance(earlier, Sym)
            symbols[s.symbol] = earlier
        else:
            assert isinstance(earlier, str)
            names[s.name] = earlier  # type: ignore[union-attr]  # stores have no key
    if isinstance(op, Reduction):
        reduction = op.reduce
        if names:
            reduction = evolve(reduction, args=tuple(names.get(a, a) for a in reduction.args))
        live_body = live(body, reduction.args)
        return op if live_body == op.body else evolve(op, body=live_body, reduce=reduction)
    if isinstance(op, (Scan, Sort)):
        return op
    live_body = live(body)
    return op if live_body == op.body else evolve(op, body=live_body)
