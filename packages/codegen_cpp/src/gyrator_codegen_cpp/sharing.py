"""Exponentials that a softmax's reduction has computed already, found again in later stages.

`online_softmax` of x ends with exp(x - maximum) of each element at hand; what follows it usually
computes the same exponential to divide it by the sum.
"""

from attrs import frozen

from gyrator_ir.expr import Expr
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level
from gyrator_ir.loop.body import Const, IndexValue, Let, Load, Reduce, ReduceKind
from gyrator_ir.loop.rewrite import defined, writes

Key = tuple[object, ...]


@frozen
class Shared:
    """For a kernel's `online_softmax` results, by the name of their maximum: the names of the
    later values that equal exp(x - maximum)."""

    again: dict[str, tuple[str, ...]]


def shared_exponentials(kernel: Kernel) -> Shared:
    """Find the values of later stages that an `online_softmax` computes on its way."""
    written = set(writes(s for stage in kernel.stages for s in stage.body))
    outer: dict[str, int] = {}
    wanted: dict[int, str] = {}
    again: dict[str, tuple[str, ...]] = {}
    # Equal keys get one number, so that a key holds numbers and stays as short as its statement.
    numbers: dict[Key, int] = {}

    def number(key: Key) -> int:
        return numbers.setdefault(key, len(numbers))

    for stage in kernel.stages:
        known = dict(outer)
        for s in stage.body:
            key = _key(s, known, written)
            names = defined(s)
            if len(names) == 1 and key is not None:
                known[names[0]] = number(key)
                found = wanted.get(known[names[0]])
                if found is not None and stage.level is Level.INNER:
                    again[found] = (*again.get(found, ()), names[0])
            if isinstance(s, Reduce):
                outer |= {name: number(("reduced", name)) for name in names}
                if s.kind is ReduceKind.ONLINE_SOFTMAX:
                    apart = number(("sub", s.dtype, known[s.args[0]], outer[names[0]]))
                    wanted[number(("exp", s.dtype, apart))] = names[0]
        if stage.level is Level.OUTER:
            outer = known
    return Shared(again)


def _key(s: KernelStatement, known: dict[str, int], written: set[str]) -> Key | None:
    """Return what the value of a statement is made of; None where it can't be told."""
    name = defined(s)[0] if len(defined(s)) == 1 else ""
    match s:
        case Load(buffer=buffer, index=index, mask=mask) if buffer not in written:
            return ("load", buffer, index, known.get(mask) if mask else None)
        case Const(value=value, dtype=dtype):
            return ("const", repr(value), dtype)
        case IndexValue(expr=e, dtype=dtype):
            return ("index", e, dtype)
        case Let(op=op, args=args, dtype=dtype):
            return (op, dtype, *(known.get(a, ("value", a)) for a in args))
    return ("value", name) if name else None


def direct(body: list[KernelStatement], reduce: Reduce) -> tuple[str, Expr] | None:
    """Return (buffer, index) if what is reduced is just loaded."""
    for s in body:
        if isinstance(s, Load) and s.name == reduce.args[0] and s.mask is None:
            return s.buffer, s.index
    return None
