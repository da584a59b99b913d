"""Matrix products as C++: functions that read factors, and the epilogue of a register tile, passed
to the blocked loops of the prelude."""

from gyrator_codegen.analysis import static
from gyrator_codegen.nests import axis_of, is_dots
from gyrator_codegen_cpp.body import address, run
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.loops import axis_range, each, vector_loop
from gyrator_codegen_cpp.scope import Array, Scope, Span
from gyrator_ir.body.nodes import Axis, Load
from gyrator_ir.expr import ONE, ZERO, Sym, subs
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Product

_COLUMNS = 1024
"""The maximum number of columns of units that are computed together: partial sums of all columns
may be in memory."""


def product(scope: Scope) -> None:
    """Emit a unit of a matrix product."""
    frame, c = scope.frame, scope.frame.tiled.contraction
    assert c is not None
    loops, kernel, (p,) = frame.tiled.loops, frame.kernel, c.products
    row, column, depth = (axis_of(kernel, loops[n].axes[0]) for n in (c.rows, c.columns, c.depth))
    deep, tall, _, rows = (settled(x.step) for x in loops[c.depth :])
    across = _units_across(scope, column, settled(loops[c.columns].step))
    sides = ((row, loops[c.rows], "1"), (column, loops[c.columns], across or "1"))
    spans = [_unit(scope, a, settled(x.step), units) for a, x, units in sides]
    bounds = ", ".join(f"{s.low}, {s.high}" for s in spans)
    left, right, done = (
        frame.names.take(f"{name}_{word}")
        for name, word in ((p.left, "at"), (p.right, "at"), (p.result, "done"))
    )
    for name, value, point, along in zip(
        (left, right), (p.left, p.right), (row, column), p.along, strict=True
    ):
        _reader(scope, name, value, (point.symbol, depth.symbol), along)
    operands = f"{left}, {left}_one, {right}, {right}_one"
    head = f"s{lane_type(p.dtype)}, {rows}"
    if is_dots(p):
        _finish(scope, done, p, row, column)
        extent = scope.index(depth.extent)
        scope.line(f"gy_dot_product<{head}>({bounds}, {extent}, {operands}, {done});")
        _skip(scope, column, across)
        return
    origin = _address(scope, p, column, depth) if p.direct else "0, 0"
    _finish(scope, done, p, row, column)
    count = static(row.extent)
    left_over = count % rows if count is not None else 0
    transposed = (s is depth.symbol for s in p.along)
    flags = ", ".join("true" if x else "false" for x in (*transposed, p.direct))
    scope.line(
        f"gy_matrix_product<{head}, {left_over or rows}, {flags}>({bounds}, "
        f"{scope.index(depth.extent)}, {tall}, {deep}, {operands}, {origin}, {done});"
    )
    _skip(scope, column, across)


def _units_across(scope: Scope, column: Axis, step: int) -> str:
    """Emit the number of units that this thread computes together, since they have the same rows,
    which are then packed once; return its name, or nothing for a single unit."""
    tile, extent = f"{column.symbol.name}_tile", static(column.extent)
    most = _COLUMNS // step
    if most < 2 or tile not in list(scope.frame.digits)[1:] or (extent and extent <= step):
        return ""
    name = scope.frame.names.take("units")
    left = f"{scope.index(scope.frame.digits[tile])} - {tile}"
    scope.line(f"const si64 {name} = gy_least(gy_least(end - p, {left}), {most});")
    return name


def _skip(scope: Scope, column: Axis, units: str) -> None:
    """Emit the steps over all but the last one of some units."""
    if units:
        tile = f"{column.symbol.name}_tile"
        scope.line(f"p += {units} - 1;", f"{tile} += {units} - 1;")


def _unit(scope: Scope, axis: Axis, step: int, units: str) -> Span:
    """Return the rows, or the columns, of a unit, or of several."""
    extent, tile = static(axis.extent), f"{axis.symbol.name}_tile"
    if extent is not None and extent <= step:
        tile = "0"
    return axis_range(scope, axis, tile, f"({tile} + {units})", step)


def _reader(scope: Scope, name: str, value: str, symbols: tuple[Sym, Sym], along: Sym) -> None:
    """Emit the functions that read a factor: vectors along an axis, and single elements."""
    body = next(
        body for stage in scope.frame.kernel.stages if (body := needed_for(stage.body, value))
    )
    declared = ", ".join(f"si64 {s.name}" for s in symbols)
    for form, lanes in ((name, along), (f"{name}_one", None)):
        with scope.frame.writer.block(f"const auto {form} = [&]({declared}) GY_LAMBDA {{", "};"):
            inside = scope.nested(lanes=lanes)
            run(inside, body)
            inside.line(f"return {inside.operand(value, lanes is not None)};")


def _address(scope: Scope, p: Product, column: Axis, depth: Axis) -> str:
    """Emit the function that returns the address of an element of the right factor; return its
    name, and the stride along depth."""
    load = next(
        s for s in scope.frame.kernel.statements if isinstance(s, Load) and s.name == p.right
    )
    name = scope.frame.names.take(f"{p.right}_address")
    declared = f"si64 {column.symbol.name}, si64 {depth.symbol.name}"
    pointer = address(scope, load)
    scope.line(f"const auto {name} = [&]({declared}) GY_LAMBDA {{ return {pointer}; }};")
    step = load.index - subs(load.index, {depth.symbol: ZERO})
    return f"{name}, {scope.index(subs(step, {depth.symbol: ONE}))}"


def _finish(scope: Scope, name: str, p: Product, row: Axis, column: Axis) -> None:
    """Emit the function that is called with a finished tile, and computes the epilogue."""
    frame, element = scope.frame, f"s{lane_type(p.dtype)}"
    i, j = row.symbol.name, column.symbol.name
    declared = f"const {element} *tile, si64 {i}_from, si64 {i}_to, si64 {j}_from, si64 {j}_to"
    extent, step = static(column.extent), settled(frame.tiled.loops[-2].step)
    whole = extent is not None and extent % step == 0
    span = Span(f"{j}_from", f"{j}_to", step if whole else None, step if whole else 1)
    sums = frame.names.take(f"{p.result}_row")
    frame.arrays[p.result] = Array(sums, p.dtype, column.symbol, f"{j}_from")
    head = f"const auto {name} = [&]({declared}) GY_LAMBDA {{"
    with frame.writer.block(head, "};"), each(scope, i, f"{i}_from", f"{i}_to"):
        scope.line(f"const {element} *const {sums} = tile + ({i} - {i}_from) * {step};")
        vector_loop(scope.nested(), column.symbol, span, 1, lambda at, _: run(at, frame.points))
