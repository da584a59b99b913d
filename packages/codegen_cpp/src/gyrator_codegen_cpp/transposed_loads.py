"""Transposed loads: tiles of points, turned in registers, so that memory is read along its rows.

A tile of both axes is read by vectors along the axis that is consecutive in memory, transposed into
a small array, and the body reads its vectors from there.
"""

from attrs import frozen

from gyrator_codegen import Nest, axis_of, static
from gyrator_codegen_cpp.addresses import at_lane
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.loops import Span, vector_loop
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Load
from gyrator_ir.tile.choices import settled
from gyrator_ir.types import DType


@frozen
class _Tile:
    """Points `across`, the axis along which the transposed loads are consecutive."""

    name: str
    rows: int
    even: bool
    """Every tile has all of its rows."""


def transposed(scope: Scope, loops: Nest, span: Span) -> None:
    """Write the work on one tile of both axes: the stretch `span` along the vectors."""
    frame = scope.frame
    symbol = frame.tiled.transposed[0].along
    rows = settled(next(x.step for x in loops.grid if x.axes[0] is symbol))
    extent = axis_of(frame.kernel, symbol).extent
    known = static(extent)
    tile = _Tile(symbol.name, rows, known is not None and known % rows == 0)
    name = tile.name
    low, high = f"{name}_low", f"{name}_high"
    scope.line(f"const si64 {low} = {name}_tile * {rows};")
    scope.line(f"const si64 {high} = gy_least({low} + {rows}, {scope.index(extent)});")
    body = [s for stage in frame.kernel.stages for s in stage.body]
    names = {t.load for t in frame.tiled.transposed}
    loads = [s for s in body if isinstance(s, Load) and s.name in names]
    arrays: dict[str, str] = {}
    for s in loads:
        lane = lane_type(frame.storage[s.buffer])
        arrays[s.name] = frame.names.take(f"{s.name}_tile")
        scope.line(f"alignas(64) s{lane} {arrays[s.name]}[{rows * frame.width}];")

    def vector(at: Scope, copy: int) -> None:
        for s in loads:
            _fill(at, s, tile, arrays[s.name])
        with at.block(f"for (si64 {name} = {low}; {name} < {high}; {name}++) {{"):
            texts = {
                load: f"gy_vload({array} + GY_LANES*({name} - {low}))"
                for load, array in arrays.items()
            }
            run(at.nested(ready=texts), body)

    vector_loop(scope, loops.symbol, span, 1, vector)


def _fill(scope: Scope, s: Load, tile: _Tile, array: str) -> None:
    """Write the way of one load's tile from memory into its array."""
    dtype = scope.frame.storage[s.buffer]
    if scope.live is not None or dtype.compute.size != 4 or dtype is DType.BOOL:
        _fill_by_lane(scope, s, tile, array)
        return
    if tile.even:
        _fill_turned(scope, s, tile, array)
        return
    name = tile.name
    with scope.block(f"if ({name}_high - {name}_low == {tile.rows}) {{"):
        _fill_turned(scope, s, tile, array)
    with scope.block("else {"):
        _fill_by_lane(scope, s, tile, array)


def _fill_turned(scope: Scope, s: Load, tile: _Tile, array: str) -> None:
    assert scope.lanes is not None
    lanes, width = scope.lanes.symbol, scope.frame.width
    name = tile.name
    base = scope.symbols.get(lanes, lanes.name)
    rows = [f"turn{k}" for k in range(width)]
    word = f"v{lane_type(scope.frame.storage[s.buffer])}"
    pointer = scope.frame.pointers[s.buffer]
    head = f"for (si64 {name} = {name}_low; {name} < {name}_high; {name} += GY_LANES) {{"
    with scope.block(head):
        for k, row in enumerate(rows):
            e = scope.index(s.index, **{lanes.name: f"({base} + {k})" if k else base})
            scope.line(f"{word} {row} = gy_vload({pointer} + {e});")
        scope.line(f"gy_transpose({', '.join(rows)});")
        for k, row in enumerate(rows):
            place = f"GY_LANES*({name} - {name}_low + {k})"
            scope.line(f"gy_store({array} + {place}, {row});")


def _fill_by_lane(scope: Scope, s: Load, tile: _Tile, array: str) -> None:
    name = tile.name
    limit = scope.live or "GY_LANES"
    pointer = scope.frame.pointers[s.buffer]
    with scope.block(f"for (si64 lane = 0; lane < {limit}; lane++) {{"):
        e = at_lane(scope, s.index)
        place = f"GY_LANES*({name} - {name}_low) + lane"
        head = f"for (si64 {name} = {name}_low; {name} < {name}_high; {name}++)"
        scope.line(f"{head} {array}[{place}] = gy_sload({pointer} + {e});")
