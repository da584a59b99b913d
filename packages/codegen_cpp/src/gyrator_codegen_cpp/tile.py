"""Transposed loads: tiles of points, turned in registers, so that memory is read along its rows.

A kernel's vectors run along one axis. A load whose neighbouring elements lie along another axis
would touch a cache line a lane; instead a tile of both axes is read by vectors along that other
axis, transposed into a small array, and the body reads its vectors from there.
"""

from attrs import frozen

from gyrator_codegen import Access, extent_guess, lane_access
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.code import Code
from gyrator_codegen_cpp.loops import Span, static, vector_loop
from gyrator_codegen_cpp.scalars import lane_type
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.body import Axis, Bind, Load
from gyrator_ir.types import DType

_NO_SYMBOLS: frozenset[Sym] = frozenset()


@frozen
class Tiling:
    """`across` is the axis along which the transposed `loads` are contiguous."""

    across: Axis
    rows: int
    """Points of `across` in a tile, a multiple of the lanes."""
    loads: tuple[Load, ...]

    @property
    def counter(self) -> Sym:
        """The symbol that numbers the tiles along `across`."""
        return Sym(f"{self.across.symbol.name}_tile")


def tiling(kernel: Kernel, along: Axis, lanes: int) -> Tiling | None:
    """Return the tiles that a kernel with vectors along an axis wants, or None."""
    if lanes == 1 or kernel.inner or extent_guess(along.extent) < lanes:
        return None
    body = [s for stage in kernel.stages for s in stage.body]
    bound = {s.symbol for s in body if isinstance(s, Bind)}
    best: Tiling | None = None
    for axis in kernel.axes:
        if axis.symbol is along.symbol or extent_guess(axis.extent) < lanes:
            continue
        loads = tuple(
            s for s in body if isinstance(s, Load) and _turned(s, axis.symbol, along.symbol, bound)
        )
        if loads and (best is None or len(loads) > len(best.loads)):
            best = Tiling(axis, 2 * lanes, loads)
    return best


def _turned(s: Load, across: Sym, along: Sym, bound: set[Sym]) -> bool:
    if s.mask is not None or not s.index.free_symbols.isdisjoint(bound):
        return False
    # One lane is enough to ask for: a quotient that is constant in it has to be affine.
    here = lane_access(s.index, across, 1 << 20, _NO_SYMBOLS).kind
    there = lane_access(s.index, along, 1 << 20, _NO_SYMBOLS).kind
    return here is Access.UNIT and there is Access.STRIDED


def write(code: Code, along: Axis, span: Span, tiles: Tiling) -> None:
    """Write the work on one tile of `across` and the stretch `span` of `along`."""
    frame, across = code.frame, tiles.across
    name = across.symbol.name
    low, high = f"{name}_low", f"{name}_high"
    code.line(f"const si64 {low} = {tiles.counter.name} * {tiles.rows};")
    code.line(f"const si64 {high} = gy_least({low} + {tiles.rows}, {code.index(across.extent)});")
    arrays: dict[str, str] = {}
    for s in tiles.loads:
        lane = lane_type(frame.storage[s.buffer])
        arrays[s.name] = frame.names.take(f"{s.name}_tile")
        size = tiles.rows * frame.width
        code.line(f"alignas(64) s{lane} {arrays[s.name]}[{size}];")
    extent = static(across.extent)
    even = extent is not None and extent % tiles.rows == 0
    body = [s for stage in frame.kernel.stages for s in stage.body]

    def vector(at: Code, copy: int) -> None:
        for s in tiles.loads:
            _fill(at, s, tiles, arrays[s.name], even)
        with at.block(f"for (si64 {name} = {low}; {name} < {high}; {name}++) {{"):
            texts = {
                load: f"gy_vload({array} + GY_LANES*({name} - {low}))"
                for load, array in arrays.items()
            }
            run(at.nested(ready=texts), body)

    vector_loop(code, along.symbol, span, 1, vector)


def _fill(code: Code, s: Load, tiles: Tiling, array: str, even: bool) -> None:
    """Write the way of one load's tile from memory into its array."""
    dtype = code.frame.storage[s.buffer]
    if code.live is not None or dtype.compute.size != 4 or dtype is DType.BOOL:
        _fill_by_lane(code, s, tiles, array)
        return
    if even:
        _fill_turned(code, s, tiles, array)
        return
    name = tiles.across.symbol.name
    with code.block(f"if ({name}_high - {name}_low == {tiles.rows}) {{"):
        _fill_turned(code, s, tiles, array)
    with code.block("else {"):
        _fill_by_lane(code, s, tiles, array)


def _fill_turned(code: Code, s: Load, tiles: Tiling, array: str) -> None:
    assert code.lanes is not None
    lanes, width = code.lanes.symbol, code.frame.width
    name = tiles.across.symbol.name
    base = code.symbols.get(lanes, lanes.name)
    rows = [f"turn{k}" for k in range(width)]
    word = f"v{lane_type(code.frame.storage[s.buffer])}"
    pointer = code.frame.pointers[s.buffer]
    head = f"for (si64 {name} = {name}_low; {name} < {name}_high; {name} += GY_LANES) {{"
    with code.block(head):
        for k, row in enumerate(rows):
            e = code.index(s.index, **{lanes.name: f"({base} + {k})" if k else base})
            code.line(f"{word} {row} = gy_vload({pointer} + {e});")
        code.line(f"gy_transpose({', '.join(rows)});")
        for k, row in enumerate(rows):
            place = f"GY_LANES*({name} - {name}_low + {k})"
            code.line(f"gy_store({array} + {place}, {row});")


def _fill_by_lane(code: Code, s: Load, tiles: Tiling, array: str) -> None:
    name = tiles.across.symbol.name
    limit = code.live or "GY_LANES"
    pointer = code.frame.pointers[s.buffer]
    with code.block(f"for (si64 lane = 0; lane < {limit}; lane++) {{"):
        e = code.at_lane(s.index, "lane")
        place = f"GY_LANES*({name} - {name}_low) + lane"
        head = f"for (si64 {name} = {name}_low; {name} < {name}_high; {name}++)"
        code.line(f"{head} {array}[{place}] = gy_sload({pointer} + {e});")
