"""One kernel as two C++ functions: one for a range of its units, one that hands out the ranges."""

from collections.abc import Callable, Sequence

from gyrator_codegen import static, steps
from gyrator_codegen_cpp.accesses import hoist
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.dtypes import RESERVED, STORAGE
from gyrator_codegen_cpp.loops import Span, stretch, vector_loop
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.scope import Frame, Scope
from gyrator_codegen_cpp.stages import columns, inner_stage, points, transposed
from gyrator_ir.body.nodes import Bind
from gyrator_ir.expr import Const, Expr, product_of
from gyrator_ir.kernel.nodes import Kernel, Level
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Loop, TiledKernel

_STRETCHES = "stretch"  # numbers the stretches of the vectors' axis

End = Callable[[Frame, str], None]


def emit_kernel(tiled: TiledKernel, origins: Sequence[Origin], isa: Isa) -> KernelSource:
    """Write one kernel."""
    return _written(tiled, origins, isa, _entry)


def emit_member(tiled: TiledKernel, cost: int, origins: Sequence[Origin], isa: Isa) -> KernelSource:
    """Write one kernel of a group: `<symbol>_part`, and `<symbol>_share`, which gives its work,
    `cost` for each element."""

    def share(frame: Frame, symbol: str) -> None:
        _share(frame, symbol, cost)

    return _written(tiled, origins, isa, share)


def emit_inner(tiled: TiledKernel, isa: Isa) -> KernelSource:
    """Write one kernel that a thread of another runs: `<symbol>_all` does all of it."""
    return _written(tiled, (), isa, _all)


def _written(tiled: TiledKernel, origins: Sequence[Origin], isa: Isa, end: End) -> KernelSource:
    kernel = tiled.kernel
    symbols = {a.symbol.name for a in kernel.axes + kernel.inner} | {s.name for s in kernel.sizes}
    symbols |= {s.symbol.name for g in kernel.stages for s in g.body if isinstance(s, Bind)}
    frame = Frame(tiled, isa, RESERVED | symbols)
    symbol = f"gy_k_{kernel.name}"
    _comments(frame, kernel, origins)
    _part(frame, symbol)
    end(frame, symbol)
    return KernelSource(
        kernel.name,
        symbol,
        frame.writer.text,
        checks=tuple(frame.checks),
        source_map=frame.writer.source_map,
    )


def _comments(frame: Frame, kernel: Kernel, origins: Sequence[Origin]) -> None:
    seen: set[str] = set()
    for row in kernel.origins:
        if not 0 <= row < len(origins):
            continue
        origin = origins[row]
        text = f"{origin.node} = {origin.target}"
        if origin.location or origin.code:
            text += f"  {origin.location}: {origin.code.strip()}"
        text = " ".join(text.replace("\\", "/").split())
        if text not in seen:
            seen.add(text)
            frame.writer.origin(row)
            frame.writer.line(f"// {text}")


def _part(frame: Frame, symbol: str) -> None:
    """Write the function that does units `begin` to `end`."""
    kernel, w = frame.kernel, frame.writer
    head = (
        f"static __attribute__((noinline)) si64 {symbol}_part(void *const *buffers, "
        "const si64 *sizes, si64 begin, si64 end, sbool shared) {"
    )
    with w.block(head):
        w.line("(void)buffers, (void)sizes, (void)shared;")
        for number, buffer in enumerate(kernel.parameters):
            name = frame.pointers[buffer.name] = frame.names.take(buffer.name)
            element = STORAGE[buffer.dtype]
            w.line(f"{element} *const {name} = ({element} *)buffers[{number}];")
        _sizes(frame)
        w.line("if (begin >= end) return 0;")
        scope = Scope(frame, None)
        _locals(frame, scope)
        loops = frame.nest
        if loops is not None and loops.across and not loops.columns and len(loops.grid) == 1:
            _stretch(scope, "begin", "end")
        else:
            _units(scope)
        w.line("return 0;")


def _sizes(frame: Frame) -> None:
    for number, size in enumerate(frame.kernel.sizes):
        frame.writer.line(f"const si64 {size.name} = sizes[{number}];")


def _locals(frame: Frame, scope: Scope) -> None:
    """Declare the row scratch of a point."""
    lanes = frame.width if frame.nest is not None and frame.nest.across else 1
    for local in frame.kernel.locals:
        name = frame.pointers[local.name] = frame.names.take(local.name)
        element = STORAGE[local.dtype]
        if lanes > 1:
            frame.local_rows.add(local.name)
        if local.name in frame.tiled.stack:
            extent = static(local.extent) or 1
            scope.line(f"alignas(64) {element} {name}[{extent * lanes}];")
            continue
        scope.scratch(name, element, f"{lanes} * ({scope.index(local.extent)})")


def _units(scope: Scope) -> None:
    """Write the loop over units of work, with the axes' symbols counted along."""
    frame = scope.frame
    digits: list[tuple[str, str]] = []
    stretches = None
    for loop in () if frame.nest is None else frame.nest.grid:
        name, count = _digit(frame, loop), steps(frame.kernel, loop)
        if name == _STRETCHES:
            if isinstance(count, Const) and count.value <= 1:
                continue
            stretches = name
        digits.append((name, scope.index(count)))
    if len(digits) < 2:
        name = digits[0][0] if digits else "p"
        with scope.block(f"for (si64 {name} = begin; {name} < end; {name}++) {{"):
            _unit(scope.nested(), stretches)
        return
    scope.line("si64 p = begin;")
    for name, extent in reversed(digits[1:]):
        scope.line(f"si64 {name} = p % ({extent});")
        scope.line(f"p /= {extent if extent.isalnum() else f'({extent})'};")
    scope.line(f"si64 {digits[0][0]} = p;")
    with scope.block("for (p = begin; p < end; p++) {"):
        _unit(scope.nested(), stretches)
        step = f"{digits[0][0]}++;"
        for name, extent in digits[1:]:
            step = f"if (++{name} == {extent}) {{ {name} = 0; {step} }}"
        scope.line(step)


def _digit(frame: Frame, loop: Loop) -> str:
    """Return what counts the steps of a grid loop."""
    loops, symbol = frame.nest, loop.axes[0]
    if loops is not None and loops.across and symbol is loops.symbol:
        return _STRETCHES
    return symbol.name if loop.step == 1 else f"{symbol.name}_tile"


def _unit(scope: Scope, stretches: str | None) -> None:
    if scope.frame.nest is None or not scope.frame.nest.across:
        _stages(scope)
    elif stretches is None:
        _stretch(scope, "0", "1")
    else:
        _stretch(scope, stretches, f"({stretches} + 1)")


def _stretch(scope: Scope, first: str, last: str) -> None:
    """Write the work on a stretch of the vectors' axis."""
    frame, loops = scope.frame, scope.frame.nest
    assert loops is not None
    along, step = loops.axis, loops.stretch
    extent = static(along.extent)
    if first == "0" and extent is not None and extent <= step:
        span = Span("0", str(extent), extent, extent or 1)
    else:
        span = stretch(scope, along, first, last, step)
    body = [s for stage in frame.kernel.stages for s in stage.body]
    if loops.columns:
        columns(scope, span)
    elif frame.tiled.transposed:
        transposed(scope, span)
    elif all(stage.level is Level.OUTER for stage in frame.kernel.stages):
        points(scope, body, span)
    else:
        outer = (stage for stage in frame.kernel.stages if stage.level is Level.OUTER)
        inside = hoist(scope, [s for stage in outer for s in stage.body])
        vector_loop(inside, along.symbol, span, 1, lambda at, copy: _stages(at))


def _stages(scope: Scope) -> None:
    for number, stage in enumerate(scope.frame.kernel.stages):
        if stage.level is Level.OUTER:
            run(scope, stage.body)
        else:
            inner_stage(scope, number, stage.body)


def _pieces(frame: Frame) -> tuple[Expr, Expr]:
    """Return how many pieces threads share out, and how many units of work a piece is."""
    grid = () if frame.nest is None else frame.nest.grid
    counts = [steps(frame.kernel, loop) for loop in grid]
    shared = 0 if frame.tiled.threads is None else frame.tiled.threads.loops
    return product_of(counts[:shared]), product_of(counts[shared:])


def _entry(frame: Frame, symbol: str) -> None:
    """Write the function that other code calls: it hands out units to threads where that pays."""
    scope, threads = Scope(frame, None), frame.tiled.threads
    pieces, units = _pieces(frame)
    head = f'extern "C" si64 {symbol}(void *const *buffers, const si64 *sizes) {{'
    with scope.block(head):
        _sizes(frame)
        part = f"{symbol}_part(buffers, sizes, "
        if threads is None or threads.loops == 0:
            scope.line(f"return {part}0, {scope.index(units)}, false);")
            return
        scope.line(f"const si64 pieces = {scope.index(pieces)};")
        scope.line(f"const si64 units = {scope.index(units)};")
        size = extent_of(frame.kernel.axes + frame.kernel.inner)
        if static(size) is None:
            few = f"{scope.index(size)} < {threads.grain}"
            scope.line(f"if ({few}) return {part}0, pieces * units, false);")
        scope.line("si64 failed = 0;")
        scope.line("#pragma omp parallel")
        with scope.block("{"):
            scope.line("const si64 team = omp_get_num_threads(), member = omp_get_thread_num();")
            low, high = "pieces * member / team", "pieces * (member + 1) / team"
            scope.line(f"const si64 low = {low} * units, high = {high} * units;")
            scope.line(f"const si64 code = {part}low, high, team > 1);")
            scope.line("if (code) __atomic_store_n(&failed, code, __ATOMIC_RELAXED);")
        scope.line("return failed;")


def _all(frame: Frame, symbol: str) -> None:
    """Write the function that does all units, on the thread that calls it."""
    scope = Scope(frame, None)
    pieces, units = _pieces(frame)
    head = f"static si64 {symbol}_all(void *const *buffers, const si64 *sizes) {{"
    with scope.block(head):
        _sizes(frame)
        scope.line(
            f"return {symbol}_part(buffers, sizes, 0, {scope.index(pieces * units)}, false);"
        )


def _share(frame: Frame, symbol: str, cost: int) -> None:
    """Write the function that says how many pieces there are to share out, and how much work."""
    scope = Scope(frame, None)
    pieces, units = _pieces(frame)
    size = extent_of(frame.kernel.axes + frame.kernel.inner)
    with scope.block(f"static gy_share {symbol}_share(const si64 *sizes) {{"):
        scope.line("(void)sizes;")
        _sizes(frame)
        parts = ", ".join(scope.index(e) for e in (pieces, units, size * cost))
        scope.line(f"return {{{parts}}};")
