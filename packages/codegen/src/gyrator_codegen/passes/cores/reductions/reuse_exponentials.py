"""`reuse-exponentials`: reuse the exponentials that the reduction of a softmax computes.

A two-pass `online_softmax` of x computes exp(x - maximum) for each element. A later stage usually
computes the same exponentials to divide them by the sum.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import static
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Const, IndexValue, Let, Load, Reduce, ReduceKind
from gyrator_ir.body.rewrite import defined, writes
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Method, Reduction, TiledKernel

_Key = tuple[object, ...]


@frozen
class ReuseExponentials(KernelPass):
    """Keep the exponentials for later stages, if a row is a single block."""

    name: ClassVar[str] = "reuse-exponentials"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if not any(r.method is Method.TWO_PASS for r in tiled.reductions) or len(kernel.inner) != 1:
            return tiled
        length = static(kernel.inner[0].extent)
        again = {} if length is None else _shared_exponentials(kernel)

        def keeping(r: Reduction) -> Reduction:
            names = again.get(r.result, ())
            one_block = (
                r.method is Method.TWO_PASS and length is not None and length <= settled(r.block)
            )
            return evolve(r, keep=names) if names and one_block else r

        return evolve(tiled, reductions=tuple(map(keeping, tiled.reductions))) if again else tiled


def _shared_exponentials(kernel: Kernel) -> dict[str, tuple[str, ...]]:
    """Return the names of later values that equal exp(x - maximum) of an `online_softmax`, by the
    name of the maximum."""
    written = set(writes(kernel.statements))
    outer: dict[str, int] = {}
    exponentials: dict[int, str] = {}
    again: dict[str, tuple[str, ...]] = {}
    # Value numbering: keys refer to operands by number, and so do not grow.
    numbers: dict[_Key, int] = {}

    def number(key: _Key) -> int:
        return numbers.setdefault(key, len(numbers))

    for stage in kernel.stages:
        values = dict(outer)
        for s in stage.body:
            key = _key(s, values, written)
            names = defined(s)
            if len(names) == 1 and key is not None:
                values[names[0]] = number(key)
                maximum = exponentials.get(values[names[0]])
                if maximum is not None and stage.level is Level.INNER:
                    again[maximum] = (*again.get(maximum, ()), names[0])
            if isinstance(s, Reduce):
                outer |= {name: number(("reduced", name)) for name in names}
                if s.kind is ReduceKind.ONLINE_SOFTMAX:
                    difference = number(("sub", s.dtype, values[s.args[0]], outer[names[0]]))
                    exponentials[number(("exp", s.dtype, difference))] = names[0]
        if stage.level is Level.OUTER:
            outer = values
    return again


def _key(s: KernelStatement, values: dict[str, int], written: set[str]) -> _Key | None:
    """Return the value-numbering key of a statement, or None if it does not define one value."""
    name = defined(s)[0] if len(defined(s)) == 1 else ""
    match s:
        case Load(buffer=buffer, index=index, mask=mask) if buffer not in written:
            return ("load", buffer, index, values.get(mask) if mask else None)
        case Const(value=value, dtype=dtype):
            return ("const", repr(value), dtype)
        case IndexValue(expr=e, dtype=dtype):
            return ("index", e, dtype)
        case Let(op=op, args=args, dtype=dtype):
            return (op, dtype, *(values.get(a, ("value", a)) for a in args))
    return ("value", name) if name else None
