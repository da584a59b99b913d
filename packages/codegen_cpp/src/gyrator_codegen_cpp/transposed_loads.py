"""Transposed loads: tiles of points, turned in registers, so that memory is read along its rows.

A tile of both axes is read by vectors along the axis that is consecutive in memory, transposed into
a small array, and the body reads its vectors from there.
"""

from gyrator_codegen import Nest, axis_of
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.loops import Span, each, stretch, vector_loop
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Load
from gyrator_ir.tile.choices import settled


def transposed(scope: Scope, loops: Nest, span: Span) -> None:
    """Write the work on one tile of both axes: the stretch `span` along the vectors."""
    frame = scope.frame
    symbol = frame.tiled.transposed[0].along
    rows = settled(next(x.step for x in loops.grid if x.axes[0] is symbol))
    tile = f"{symbol.name}_tile"
    across = stretch(scope, axis_of(frame.kernel, symbol), tile, f"({tile} + 1)", rows)
    low, high = across.low, across.high
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
            first = at.index(s.index, **{symbol.name: low})
            given = f"{frame.pointers[s.buffer]} + {first}, {at.index(at.access(s.index).stride)}"
            live = at.live or "GY_LANES"
            at.line(f"gy_turn({given}, {arrays[s.name]}, {high} - {low}, {live});")
        with each(at, symbol, low, high):
            place = f"GY_LANES*({symbol.name} - {low})"
            ready = {load: f"gy_vload({array} + {place})" for load, array in arrays.items()}
            run(at.nested(ready=ready), body)

    vector_loop(scope, loops.symbol, span, 1, vector)
