"""What must hold of every tiled kernel.

GY-TILE-001  each axis is walked by some loop, and no loop walks what is no axis
GY-TILE-002  grid loops come first; loops that share an axis walk the same axes, and an inner step
             divides the one outside
GY-TILE-003  a step is at least 1 or names a choice, and so are the steps of a pipelined stage, and
             what a reduction takes at a time; a choice has different values of at least 1; each
             candidate gives every choice one of its values
GY-TILE-004  there is one reduction for each `Reduce`, in order, whose method fits its kind: chains
             or wide accumulators are of sums of floats, two passes of `welford` and
             `online_softmax`, products of `dot`
GY-TILE-005  a reduction at once has all elements of a point in one step
GY-TILE-006  a contraction names its loops: different grid loops of rows and of columns, and a loop
             over inner axes; its products are those reductions whose method is `matrix`
GY-TILE-007  threads share out no more loops than there are grid loops
GY-TILE-008  what is staged, fetched, cleared or combined is loaded or stored by the kernel; what
             lies on the stack is a local of a constant extent, what is plain a division; an index
             has one form, and is one access, a strided one with a stride and a gathered one with
             terms; what is computed ahead is defined, what is exact is a cast, what is approximate
             a quotient in `f32`, what is drawn by fours a random number, what is loaded early never
             changed; pairs are of two loads, or two plain stores, of neighbours without masks; an
             unrounded store is of a cast of its value to its buffer's type; a load reuses what an
             earlier one of its buffer reads, or a plain store writes; barriers stand ahead of
             statements
GY-TILE-009  members of a group are its kernels, each of them at least once, on its device; costs
             are one for each kernel, or none; a power of two is selected at a time
GY-TILE-010  a repeat is of a kernel before it

The kernel itself is checked as in a schedule (GY-KERNEL-001 to 024).
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from gyrator_ir.body.nodes import Bind, Let, Load, Reduce, ReduceKind, Store, StoreMode
from gyrator_ir.body.rewrite import defined
from gyrator_ir.body.verify import Checker, Where
from gyrator_ir.expr import ONE, ZERO, Const, Expr, FloorDiv, Mod, Sym
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.kernel.verify import verify_kernel
from gyrator_ir.provenance import Origin
from gyrator_ir.text.scanner import Writer
from gyrator_ir.tile.nodes import (
    DRAWN,
    QUOTIENTS,
    Access,
    Contraction,
    LoopKind,
    Method,
    Repeat,
    Tiled,
    TiledGroup,
    TiledKernel,
    TiledTemplate,
    TileProgram,
)
from gyrator_ir.tile.print import show_tiled
from gyrator_ir.types import DType

__all__ = ["verify"]

_SUMS = (ReduceKind.SUM, ReduceKind.DOT)
_TWO_PASS = (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX)


def verify(program: TileProgram) -> TileProgram:
    """Return `program` unchanged, or raise `VerifyError` for the first thing that is wrong."""
    known: set[str] = set()
    for kernel in program.kernels:
        if isinstance(kernel, Repeat):
            if kernel.kernel not in known:
                where = partial(_text, kernel)
                said = f"no kernel {kernel.kernel!r} stands before its repeat"
                Checker("TILE", {}, program.origins).fail(10, said, where)
            continue
        if isinstance(kernel, TiledKernel):
            known.add(kernel.kernel.name)
        verify_tiled(kernel, program.origins)
    return program


def verify_tiled(
    tiled: TiledKernel | TiledGroup | TiledTemplate, origins: Sequence[Origin] = ()
) -> None:
    """Raise `VerifyError` for the first thing that is wrong with one kernel or group."""
    checker = Checker("TILE", {}, origins)
    if isinstance(tiled, TiledKernel):
        verify_kernel(tiled.kernel, origins)
        _Kernel(tiled, checker).run()
        return
    where = partial(_text, tiled)
    if isinstance(tiled, TiledTemplate):
        verify_kernel(tiled.kernel, origins)
        _check_choices(tiled, lambda said: checker.fail(3, said, where))
        return
    if set(tiled.members) != set(range(len(tiled.kernels))):
        checker.fail(9, "each kernel is a member, and each member a kernel", where)
    if len(tiled.costs) not in (0, len(tiled.kernels)):
        said = f"{len(tiled.costs)} costs, and {len(tiled.kernels)} kernels"
        checker.fail(9, said, where)
    if tiled.selected.bit_count() != 1:
        checker.fail(9, f"{tiled.selected} members are selected, which is no power of two", where)
    for kernel in tiled.kernels:
        if kernel.kernel.device != tiled.device:
            said = f"{kernel.kernel.name!r} is on {kernel.kernel.device}, not {tiled.device}"
            checker.fail(9, said, where)
        verify_tiled(kernel, origins)


def _text(tiled: Tiled) -> str:
    return "\n".join(show_tiled(tiled, Writer()))


def _check_choices(
    tiled: TiledKernel | TiledTemplate, fail: Callable[[str], None]
) -> dict[str, tuple[int, ...]]:
    """Return the values of all choices."""
    choices = {c.name: c.values for c in tiled.choices}
    for c in tiled.choices:
        if not c.values or min(c.values) < 1 or len(set(c.values)) != len(c.values):
            fail(f"choice {c.name} needs different values of at least 1")
    for candidate in tiled.candidates:
        given = dict(candidate.values)
        for name, values in choices.items():
            if given.get(name) not in values:
                fail(f"a candidate gives {name} the value {given.get(name)}")
    return choices


def axes_extent(kernel: Kernel, symbols: Sequence[Sym]) -> Expr | None:
    """Return the product of the extents of some axes; None where one of them is no axis."""
    extents = {a.symbol: a.extent for a in (*kernel.axes, *kernel.inner)}
    total: Expr = Const(1)
    for symbol in symbols:
        if symbol not in extents:
            return None
        total = total * extents[symbol]
    return total


class _Kernel:
    """Checks one tiled kernel."""

    def __init__(self, tiled: TiledKernel, checker: Checker) -> None:
        self._t = tiled
        self._checker = checker
        self._where: Where = partial(_text, tiled)
        checker.rows = tiled.kernel.origins

    def _fail(self, number: int, said: str) -> None:
        self._checker.fail(number, said, self._where)

    def run(self) -> None:
        """Raise for the first thing that is wrong."""
        self._axes()
        self._order()
        self._steps()
        self._reductions()
        if self._t.contraction is not None:
            self._contraction(self._t.contraction)
        grid = sum(loop.kind is LoopKind.GRID for loop in self._t.loops)
        if self._t.threads is not None and self._t.threads.loops > grid:
            self._fail(7, f"threads share {self._t.threads.loops} loops, and {grid} are grid loops")
        self._buffers()

    def _axes(self) -> None:
        kernel = self._t.kernel
        axes = {a.symbol for a in (*kernel.axes, *kernel.inner)}
        walked = {s for loop in self._t.loops for s in loop.axes}
        for symbol in sorted(axes ^ walked, key=lambda s: s.name):
            said = "is walked by no loop" if symbol in axes else "is no axis of the kernel"
            self._fail(1, f"{symbol.name} {said}")

    def _order(self) -> None:
        outside: list[tuple[tuple[Sym, ...], int | str]] = []
        grid = True
        for loop in self._t.loops:
            if loop.kind is LoopKind.GRID and not grid:
                self._fail(2, "a grid loop stands inside of another loop")
            grid = loop.kind is LoopKind.GRID
            if len(set(loop.axes)) != len(loop.axes):
                self._fail(2, "a loop walks each axis once")
            if not loop.axes and self._t.kernel.axes:
                self._fail(2, "a loop walks at least one axis of a kernel that has axes")
            for axes, step in outside:
                if set(axes).isdisjoint(loop.axes):
                    continue
                if axes != loop.axes:
                    self._fail(2, f"two loops share an axis of {_names(axes)} but not all of them")
                if isinstance(loop.step, str):
                    continue
                for outer in self._values(step):
                    if outer % loop.step:
                        self._fail(2, f"a step of {loop.step} does not divide the {outer} outside")
            outside.append((loop.axes, loop.step))

    def _values(self, step: int | str) -> tuple[int, ...]:
        if isinstance(step, int):
            return (step,)
        return next((c.values for c in self._t.choices if c.name == step), ())

    def _steps(self) -> None:
        choices = _check_choices(self._t, partial(self._fail, 3))
        for loop in self._t.loops:
            self._step(loop.step, choices)
        for p in self._t.pipelined:
            self._step(p.ahead, choices)
        for r in self._t.reductions:
            self._step(r.unroll, choices)
            self._step(r.block or 1, choices)

    def _step(self, step: int | str, choices: Collection[str]) -> None:
        if isinstance(step, str):
            if step not in choices:
                self._fail(3, f"there is no choice {step!r}")
        elif step < 1:
            self._fail(3, f"a step of {step}")

    def _reductions(self) -> None:
        kernel = self._t.kernel
        reduces = [s for stage in kernel.stages for s in stage.body if isinstance(s, Reduce)]
        named = [r.result for r in self._t.reductions]
        if named != [s.names[0] for s in reduces]:
            self._fail(4, f"the kernel reduces {[s.names[0] for s in reduces]}, not {named}")
        for r, s in zip(self._t.reductions, reduces, strict=True):
            if r.chain and not (s.kind in _SUMS and s.dtype.is_float):
                self._fail(4, f"{r.result} is no sum of floats, which has chains")
            if r.wide and not (s.kind in _SUMS and s.dtype.is_float):
                self._fail(4, f"{r.result} is no sum of floats, which may be wide")
            if r.wide and r.chain:
                self._fail(4, f"{r.result}: chains are of accumulators that are not wide")
            two_pass = r.method is Method.TWO_PASS
            if two_pass and s.kind not in _TWO_PASS:
                self._fail(4, f"{r.result} is a {s.kind.value}, which needs no second pass")
            if two_pass and not r.block:
                self._fail(4, f"{r.result}: two passes are over blocks")
            if r.block and not (two_pass or r.chain):
                self._fail(4, f"{r.result}: blocks are for two passes and for chains")
            if (r.keep or r.reload) and not two_pass:
                self._fail(4, f"{r.result}: only a second pass keeps values or loads again")
            if r.method is Method.MATRIX and s.kind is not ReduceKind.DOT:
                self._fail(4, f"{r.result} is a {s.kind.value}, no product")
            if r.method is Method.AT_ONCE:
                self._at_once(r.result)

    def _at_once(self, result: str) -> None:
        inner = {a.symbol for a in self._t.kernel.inner}
        least = {c.name: min(c.values) for c in self._t.choices}
        for loop in self._t.loops:
            if inner.isdisjoint(loop.axes):
                continue
            extent = axes_extent(self._t.kernel, loop.axes)
            step = least[loop.step] if isinstance(loop.step, str) else loop.step
            if not isinstance(extent, Const) or extent.value > step:
                self._fail(5, f"{result} is reduced at once, {_names(loop.axes)} in several steps")

    def _contraction(self, c: Contraction) -> None:
        loops = self._t.loops
        if max(c.rows, c.columns, c.depth) >= len(loops) or c.group < 1:
            self._fail(6, f"there are {len(loops)} loops")
        grid = [loops[n].kind is LoopKind.GRID for n in (c.rows, c.columns, c.depth)]
        inner = {a.symbol for a in self._t.kernel.inner}
        if grid != [True, True, False] or c.rows == c.columns:
            self._fail(6, "rows and columns are two grid loops, and depth is none")
        if not inner.issuperset(loops[c.depth].axes):
            self._fail(6, "depth is a loop over inner axes")
        matrix = [r.result for r in self._t.reductions if r.method is Method.MATRIX]
        if [p.result for p in c.products] != matrix:
            self._fail(6, f"products are those of {matrix}, not {[p.result for p in c.products]}")

    def _buffers(self) -> None:
        body = [s for stage in self._t.kernel.stages for s in stage.body]
        loads = {s.name for s in body if isinstance(s, Load)}
        stored = {s.buffer for s in body if isinstance(s, Store)}
        known = {b.name for b in self._t.kernel.parameters}
        known |= {local.name for local in self._t.kernel.locals}
        for name in (*(x.load for x in self._t.transposed), *self._t.replicated):
            if name not in loads:
                self._fail(8, f"there is no load {name!r}")
        for name in (*self._t.atomic, *self._t.cleared):
            if name not in stored:
                self._fail(8, f"nothing is stored to {name!r}")
        fixed = {x.name for x in self._t.kernel.locals if isinstance(x.extent, Const)}
        for name in self._t.stack:
            if name not in fixed:
                self._fail(8, f"there is no local {name!r} of a constant extent")
        named = {n for s in body for n in defined(s)}
        named |= {s.symbol.name for s in body if isinstance(s, Bind)}
        for name in self._t.ahead:
            if name not in named:
                self._fail(8, f"there is no value {name!r} to compute ahead")
        casts = {s.name for s in body if isinstance(s, Let) and s.op == "cast"}
        for name in self._t.exact:
            if name not in casts:
                self._fail(8, f"there is no cast {name!r}")
        computed = (s for s in body if isinstance(s, Let) and s.dtype is DType.F32)
        quotients = {s.name for s in computed if s.op in QUOTIENTS}
        for name in self._t.approximate:
            if name not in quotients:
                self._fail(8, f"there is no quotient {name!r} in f32")
        plain = {s.name for s in body if isinstance(s, Load) and s.mask is None}
        plain -= {s.name for s in body if isinstance(s, Load) and s.buffer in stored}
        for name in self._t.early:
            if name not in plain:
                self._fail(8, f"there is no load {name!r} that nothing comes before")
        drawn = {s.name for s in body if isinstance(s, Let) and s.op in DRAWN}
        for name in self._t.fours:
            if name not in drawn:
                self._fail(8, f"there is no random number {name!r}")
        for e in self._t.plain:
            if not isinstance(e, FloorDiv | Mod):
                self._fail(8, f"{e!r} is no quotient and no remainder")
        if len({f.index for f in self._t.forms}) != len(self._t.forms):
            self._fail(8, "an index has two forms")
        self._accesses()
        for stage in (x.stage for x in self._t.pipelined):
            if stage >= len(self._t.kernel.stages):
                self._fail(8, f"there is no stage {stage} to pipeline")
        for p in self._t.prefetches:
            if p.buffer not in known or p.stage >= len(self._t.kernel.stages):
                self._fail(8, f"there is no stage {p.stage} that could ask for {p.buffer!r}")
        if self._t.index not in (DType.I32, DType.I64):
            self._fail(8, f"indices are i32 or i64, not {self._t.index.value}")

    def _accesses(self) -> None:
        if len({a.index for a in self._t.accesses}) != len(self._t.accesses):
            self._fail(8, "an index is two accesses")
        for a in self._t.accesses:
            if (a.kind is Access.STRIDED) == (a.stride is ZERO):
                self._fail(8, f"access [{a.index!r}]: a stride is what strided accesses have")
            if (a.kind is Access.GATHERED) != bool(a.terms):
                self._fail(8, f"access [{a.index!r}]: terms are what gathered accesses have")
        self._places()

    def _places(self) -> None:
        bodies = {n: stage.body for n, stage in enumerate(self._t.kernel.stages)}
        places = {(n, k): s for n, body in bodies.items() for k, s in enumerate(body)}
        for x in self._t.barriers:
            if (x.stage, x.statement) not in places:
                self._fail(8, f"stage {x.stage} has no statement {x.statement} for a barrier")
        casts = {
            (s.name, *s.args, s.dtype)
            for s in places.values()
            if isinstance(s, Let) and s.op == "cast"
        }
        for u in self._t.unrounded:
            match places.get((u.stage, u.statement)):
                case Store(value=name, buffer=buffer, mode=StoreMode.SET) if (
                    name, u.value, self._t.kernel.storage[buffer]
                ) in casts:  # fmt: skip
                    continue
            said = f"statement {u.statement} of stage {u.stage}"
            self._fail(8, f"{said} stores no cast of {u.value!r} to the type of its buffer")
        for r in self._t.reuses:
            here, first = (r.stage, r.statement), (r.first_stage, r.first_statement)
            match places.get(first), places.get(here):
                case (
                    Load(buffer=a) | Store(buffer=a, mask=None, mode=StoreMode.SET),
                    Load(buffer=b),
                ) if a == b and first < here:
                    continue
            said = f"statement {r.statement} of stage {r.stage}"
            self._fail(8, f"{said} is no load that an earlier statement may stand for")
        for pair in self._t.pairs:
            body = bodies.get(pair.stage, ())
            if not pair.first < pair.second < len(body):
                self._fail(8, f"stage {pair.stage} has no such pair of statements")
            one, other = body[pair.first], body[pair.second]
            if not _neighbours(one, other):
                said = f"statements {pair.first} and {pair.second} of stage {pair.stage}"
                self._fail(8, f"{said} are no loads and no stores of neighbours")


def _neighbours(one: object, other: object) -> bool:
    match one, other:
        case (
            Load(buffer=a, index=i, mask=None),
            Load(buffer=b, index=j, mask=None),
        ) | (
            Store(buffer=a, index=i, mask=None, mode=StoreMode.SET),
            Store(buffer=b, index=j, mask=None, mode=StoreMode.SET),
        ):
            return a == b and j is i + ONE
    return False


def _names(axes: Sequence[Sym]) -> str:
    return f"({', '.join(s.name for s in axes)})"
