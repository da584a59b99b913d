"""Fetching a row's memory before it is needed, in kernels that go over each row several times.

Only the first pass over a row waits for memory; the later ones find it in the nearest cache and
leave memory idle. So the last pass asks for what the first pass over the next row will read, and
the first pass for where later ones will store.
"""

from collections.abc import Sequence

from attrs import field, frozen

from gyrator_codegen import Access, lane_access
from gyrator_codegen_cpp.code import Code
from gyrator_codegen_cpp.loops import static
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.loop.body import Bind, Load, Store, StoreMode

_LEAST, _MOST = 512, 16384  # bytes of a row: less is not worth asking for, more does not stay
_NO_SYMBOLS: frozenset[Sym] = frozenset()


@frozen
class Ahead:
    """Addresses (buffer, index) that a stage asks for while it runs."""

    next_row: tuple[tuple[str, Expr], ...] = ()
    same_row: tuple[tuple[str, Expr], ...] = ()
    row: Sym | None = field(default=None)
    """The axis that leads to the next row."""

    def write_next_row(self, code: Code) -> None:
        """Write the requests for one vector of the next row."""
        if self.row is None or code.live is not None:
            return
        following = {self.row.name: f"({self.row.name} + 1)"}
        for buffer, e in self.next_row:
            pointer = code.frame.pointers[buffer]
            code.line(f"__builtin_prefetch({pointer} + {code.index(e, **following)});")

    def write_same_row(self, code: Code) -> None:
        """Write the requests for one vector of this row."""
        if code.live is not None:
            return
        for buffer, e in self.same_row:
            code.line(f"__builtin_prefetch({code.address(buffer, e, Access.UNIT)}, 1);")


NOTHING = Ahead()


def plan(kernel: Kernel, symbol: Sym) -> tuple[Ahead, ...]:
    """Return what each stage of a kernel asks for whose vectors run along the inner axis `symbol`.

    Only for rows along one axis, whose length is known.
    """
    silent = (NOTHING,) * len(kernel.stages)
    passes = [n for n, stage in enumerate(kernel.stages) if stage.level is Level.INNER]
    length = static(kernel.inner[0].extent) if len(kernel.inner) == 1 else None
    if len(passes) < 2 or not kernel.axes or length is None:
        return silent
    row, first, last = kernel.axes[-1].symbol, passes[0], passes[-1]
    later = [kernel.stages[n] for n in passes[1:]]
    if any(isinstance(s, Bind) for stage in kernel.stages for s in stage.body):
        return silent
    sizes = {b.name: length * b.dtype.size for b in kernel.parameters}
    wanted = {name for name, size in sizes.items() if _LEAST <= size <= _MOST}
    reads = _addresses([kernel.stages[first]], Load, symbol, wanted)
    stores = _addresses(later, Store, symbol, wanted)
    found = list(silent)
    found[first] = Ahead(same_row=stores)
    found[last] = Ahead(tuple(a for a in reads if row in a[1].free_symbols), row=row)
    return tuple(found)


def _addresses(
    stages: Sequence[Stage], kind: type[Load] | type[Store], symbol: Sym, wanted: set[str]
) -> tuple[tuple[str, Expr], ...]:
    found: dict[tuple[str, Expr], None] = {}
    for stage in stages:
        for s in stage.body:
            if not isinstance(s, Load | Store) or not isinstance(s, kind) or s.mask is not None:
                continue
            if isinstance(s, Store) and s.mode is not StoreMode.SET:
                continue
            unit = lane_access(s.index, symbol, 1 << 20, _NO_SYMBOLS).kind is Access.UNIT
            if unit and s.buffer in wanted:
                found[s.buffer, s.index] = None
    return tuple(found)
