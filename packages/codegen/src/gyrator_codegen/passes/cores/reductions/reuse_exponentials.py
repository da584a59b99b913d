"""`reuse-exponentials`: exponentials that a softmax's reduction has computed already.

`online_softmax` of x in two passes has exp(x - maximum) of each element at hand; what follows it
usually computes the same exponential to divide it by the sum.
"""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.analysis import static
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Const, IndexValue, Let, Load, Reduce, ReduceKind
from gyrator_ir.body.rewrite import defined, writes
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Method, Reduction, TiledKernel

_Key = tuple[object, ...]


@frozen
class ReuseExponentials(KernelPass):
    """Keep the exponentials of rows that are one block for later stages."""

    name: ClassVar[str] = "reuse-exponentials"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if not any(r.method is Method.TWO_PASS for r in tiled.reductions) or len(kernel.inner) != 1:
            return tiled
        length = static(kernel.inner[0].extent)
        again = {} if length is None else _shared_exponentials(kernel)

        def kept(r: Reduction) -> Reduction:
            names = again.get(r.result, ())
            whole = (
                r.method is Method.TWO_PASS and length is not None and length <= settled(r.block)
            )
            return evolve(r, keep=names) if names and whole else r

        return evolve(tiled, reductions=tuple(map(kept, tiled.reductions))) if again else tiled


def _shared_exponentials(kernel: Kernel) -> dict[str, tuple[str, ...]]:
    """Return for `online_softmax` results, by the name of their maximum, the names of the later
    values that equal exp(x - maximum)."""
    written = set(writes(s for stage in kernel.stages for s in stage.body))
    outer: dict[str, int] = {}
    wanted: dict[int, str] = {}
    again: dict[str, tuple[str, ...]] = {}
    # Equal keys get one number, so that a key holds numbers and stays as short as its statement.
    numbers: dict[_Key, int] = {}

    def number(key: _Key) -> int:
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
    return again


def _key(s: KernelStatement, known: dict[str, int], written: set[str]) -> _Key | None:
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
