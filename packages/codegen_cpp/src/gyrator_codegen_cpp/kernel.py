"""One kernel as two C++ functions: one for a range of its points, one that hands out the ranges."""

from collections.abc import Callable, Iterable, Sequence

from attrs import evolve, frozen

from gyrator_codegen import choose_vector_axis, extent_guess
from gyrator_codegen_cpp import strip
from gyrator_codegen_cpp.ahead import NOTHING, plan
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.code import Code, Frame
from gyrator_codegen_cpp.fill import clears
from gyrator_codegen_cpp.inner import inner_stage, invariant, work
from gyrator_codegen_cpp.loops import Span, static, vector_loop
from gyrator_codegen_cpp.owners import owners
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.scalars import RESERVED, STORAGE
from gyrator_codegen_cpp.tile import Tiling, tiling
from gyrator_codegen_cpp.tile import write as write_tile
from gyrator_ir.expr import ONE, Const, Expr, FloorDiv, Mod, ShapeFacts, Sym, ceildiv
from gyrator_ir.kernel.nodes import Kernel, Level
from gyrator_ir.loop.body import Axis, Bind
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Heuristics

_STRETCH = 2048  # elements along the lanes' axis that one unit of parallel work takes
_STRETCHES = "stretch"  # numbers the stretches of the lanes' axis
_AUTO_LANES = 8  # lanes to order loops for where the compiler vectorises by itself


@frozen
class Domain:
    """What threads share out: `rows`, the axes but the lanes' own, and stretches of that one."""

    rows: tuple[Axis, ...]
    along: Axis | None
    stretch: int
    strips: bool = False
    """Stretches are folded as strips."""
    tiles: Tiling | None = None
    owned: int | None = None
    """Only the first so many digits of a unit's number are shared out: they own the addresses that
    the kernel folds into. None to share out all, and to fold atomically."""
    outermost: bool = False
    """The stretch is the first digit of a unit's number, not the last."""

    @property
    def digits(self) -> tuple[tuple[str, Expr], ...]:
        """What a unit's number is made of: names with the number of their values."""
        found = [(a.symbol.name, a.extent) for a in self.rows]
        if self.along is not None:
            count = ceildiv(self.along.extent, self.stretch)
            found.insert(0 if self.outermost else len(found), (_STRETCHES, count))
        return tuple(found)

    @property
    def pieces(self) -> Expr:
        """Number of pieces that threads share out."""
        return _product(e for _, e in self.digits[: self.owned])

    @property
    def units(self) -> Expr:
        """Number of units of work in a piece."""
        return ONE if self.owned is None else _product(e for _, e in self.digits[self.owned :])


def emit_kernel(
    kernel: Kernel,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    isa: Isa,
    heuristics: Heuristics,
) -> KernelSource:
    """Write one kernel."""
    return _written(kernel, facts, origins, isa, heuristics, _entry)


def emit_member(
    kernel: Kernel,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    isa: Isa,
    heuristics: Heuristics,
) -> KernelSource:
    """Write one kernel of a group: `<symbol>_part`, and `<symbol>_share`, which gives its work."""
    return _written(kernel, facts, origins, isa, heuristics, _share)


def _written(
    kernel: Kernel,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    isa: Isa,
    heuristics: Heuristics,
    end: Callable[[Frame, str, Domain, bool, Heuristics], None],
) -> KernelSource:
    axis = choose_vector_axis(kernel, isa.lanes if isa.lanes > 1 else _AUTO_LANES)
    symbols = {a.symbol.name for a in kernel.axes + kernel.inner} | {s.name for s in kernel.sizes}
    symbols |= {s.symbol.name for g in kernel.stages for s in g.body if isinstance(s, Bind)}
    divides = _divides(kernel, facts)
    frame = Frame(kernel, isa, axis, divides, RESERVED | symbols)
    symbol = f"gy_k_{kernel.name}"
    _comments(frame, kernel, origins)
    domain = _domain(kernel, frame, heuristics)
    serial = _serial(kernel, domain, heuristics)
    if frame.atomic and not serial:
        domain = _owned(domain, owners(kernel, divides.inside), heuristics.cores, frame.width)
    if serial or domain.owned is not None:
        frame.atomic = frozenset()
    _part(frame, symbol, domain)
    end(frame, symbol, domain, serial, heuristics)
    return KernelSource(
        kernel.name,
        symbol,
        frame.writer.text,
        checks=tuple(frame.checks),
        source_map=frame.writer.source_map,
    )


def _divides(kernel: Kernel, facts: ShapeFacts) -> "Divides":
    ranges = {a.symbol: a.extent for a in kernel.axes + kernel.inner}
    for stage in kernel.stages:
        ranges |= {s.symbol: s.size for s in stage.body if isinstance(s, Bind)}
    return Divides(facts, ranges)


class Divides:
    """Says where C's quotient and remainder agree with floor's, remembering loop ranges."""

    def __init__(self, facts: ShapeFacts, extents: dict[Sym, Expr]) -> None:
        self._facts = facts
        self._extents = extents
        self._inside: ShapeFacts | None = None

    @property
    def inside(self) -> ShapeFacts:
        """What is known inside of the loops."""
        if self._inside is None:
            self._inside = self._facts.with_ranges(self._extents)
        return self._inside

    def __call__(self, node: FloorDiv | Mod) -> bool:
        """Return whether the numerator is surely >= 0 and the divisor > 0."""
        return self.inside.nonnegative_division(node)


def _product(factors: Iterable[Expr]) -> Expr:
    total: Expr = ONE
    for factor in factors:
        total = total * factor
    return total


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


def _domain(kernel: Kernel, frame: Frame, heuristics: Heuristics) -> Domain:
    axis = frame.axis
    if axis is None or axis.inner:
        return Domain(kernel.axes, None, 1)
    along = next(a for a in kernel.axes if a.symbol is axis.symbol)
    rows = tuple(a for a in kernel.axes if a.symbol is not axis.symbol)
    count = 1
    for a in rows:
        count *= static(a.extent) or 1
    extent = static(along.extent)
    if strip.suits(kernel):
        stretch = strip.width(kernel, along, count, frame.width, heuristics.cores)
        return Domain(rows, along, stretch, strips=True)
    tiles = tiling(kernel, along, frame.width)
    if tiles is not None:
        rows = tuple(a for a in rows if a.symbol is not tiles.across.symbol)
        rows += (Axis(tiles.counter, ceildiv(tiles.across.extent, tiles.rows)),)
        return Domain(rows, along, _STRETCH, tiles=tiles)
    stretch = _STRETCH
    for a in kernel.inner:
        stretch //= max(extent_guess(a.extent), 1)
    lanes = max(frame.width, _AUTO_LANES)
    stretch = max(stretch // lanes * lanes, lanes)
    if rows and extent is not None and (count >= 8 * heuristics.cores or extent <= stretch):
        return Domain(rows, along, max(extent, 1))
    return Domain(rows, along, stretch)


def _owned(domain: Domain, owning: Sequence[Axis], cores: int, lanes: int) -> Domain:
    """Return the domain whose pieces never fold into the same address, where such pieces are enough
    for all threads; else the domain as it is."""
    symbols = {a.symbol for a in owning}
    first = tuple(a for a in domain.rows if a.symbol in symbols)
    rows = first + tuple(a for a in domain.rows if a.symbol not in symbols)
    count = 1
    for a in first:
        count *= extent_guess(a.extent)
    if count >= cores:
        return evolve(domain, rows=rows, owned=len(first))
    along = domain.along
    if along is None or along.symbol not in symbols or domain.strips or domain.tiles:
        return domain
    wanted = -(-cores // max(count, 1))
    lanes = max(lanes, _AUTO_LANES)
    stretch = max(extent_guess(along.extent) // wanted // lanes * lanes, lanes)
    if count * extent_guess(along.extent) < cores * stretch:
        return domain
    stretch = min(stretch, domain.stretch) if domain.rows else stretch
    return evolve(domain, rows=rows, stretch=stretch, owned=len(first) + 1, outermost=True)


def _part(frame: Frame, symbol: str, domain: Domain) -> None:
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
        code = Code(frame, None)
        _locals(frame, code)
        if not domain.rows and domain.along is not None and not domain.strips:
            _stretch(code, domain, "begin", "end")
        else:
            _rows(code, domain)
        w.line("return 0;")


def _sizes(frame: Frame) -> None:
    for number, size in enumerate(frame.kernel.sizes):
        frame.writer.line(f"const si64 {size.name} = sizes[{number}];")


def _locals(frame: Frame, code: Code) -> None:
    """Declare the row scratch of a point: on the stack if its size is known and small."""
    lanes = 1 if frame.axis is None or frame.axis.inner else frame.width
    for local in frame.kernel.locals:
        name = frame.pointers[local.name] = frame.names.take(local.name)
        element = STORAGE[local.dtype]
        if lanes > 1:
            frame.local_rows.add(local.name)
        extent = static(local.extent)
        if extent is not None and extent * lanes * local.dtype.size <= 65536:
            code.line(f"alignas(64) {element} {name}[{max(extent, 1) * lanes}];")
            continue
        size = f"(si64)sizeof({element}) * {lanes} * ({code.index(local.extent)})"
        code.line(f"const gy_scratch {name}_memory({size});")
        code.line(f"{element} *const {name} = ({element} *){name}_memory.aligned();")


def _rows(code: Code, domain: Domain) -> None:
    """Write the loop over units of work, with the axes' symbols counted along."""
    digits: list[tuple[str, str]] = []
    stretches = None
    for name, count in domain.digits:
        if name == _STRETCHES:
            if isinstance(count, Const) and count.value <= 1:
                continue
            stretches = name
        digits.append((name, code.index(count)))
    if not digits:
        with code.block("for (si64 p = begin; p < end; p++) {"):
            _unit(code.nested(), domain, stretches)
        return
    if len(digits) == 1:
        name = digits[0][0]
        with code.block(f"for (si64 {name} = begin; {name} < end; {name}++) {{"):
            _unit(code.nested(), domain, stretches)
        return
    code.line("si64 p = begin;")
    for name, extent in reversed(digits[1:]):
        code.line(f"si64 {name} = p % ({extent});")
        code.line(f"p /= {extent if extent.isalnum() else f'({extent})'};")
    code.line(f"si64 {digits[0][0]} = p;")
    with code.block("for (p = begin; p < end; p++) {"):
        _unit(code.nested(), domain, stretches)
        step = f"{digits[0][0]}++;"
        for name, extent in digits[1:]:
            step = f"if (++{name} == {extent}) {{ {name} = 0; {step} }}"
        code.line(step)


def _unit(code: Code, domain: Domain, stretches: str | None) -> None:
    if domain.along is None:
        _stages(code)
    elif stretches is None:
        _stretch(code, domain, "0", "1")
    else:
        _stretch(code, domain, stretches, f"({stretches} + 1)")


def _stretch(code: Code, domain: Domain, first: str, last: str) -> None:
    """Write the work on a stretch of the lanes' axis."""
    along = domain.along
    assert along is not None
    extent = static(along.extent)
    body = [s for stage in code.frame.kernel.stages for s in stage.body]
    if first == "0" and extent is not None and extent <= domain.stretch:
        span = Span("0", str(extent), extent, extent or 1)
    else:
        name = along.symbol.name
        low, high = f"{name}_low", f"{name}_high"
        code.line(f"const si64 {low} = {first} * {domain.stretch};")
        high_text = f"gy_least({last} * {domain.stretch}, {code.index(along.extent)})"
        code.line(f"const si64 {high} = {high_text};")
        span = Span(low, high, None, 1 if extent is None else _even(extent, domain.stretch))
    if domain.strips:
        strip.Strip(code, along, span, domain.stretch).write()
        return
    if domain.tiles is not None:
        write_tile(code, along, span, domain.tiles)
        return
    if all(stage.level is Level.OUTER for stage in code.frame.kernel.stages):
        fixed, body = invariant(code, body, [along.symbol], loads=True)
        run(code, fixed)
        body = [s for s in body if not clears(code, s, along.symbol, span)]
        inside = code.hoist(body, [along.symbol])
        if not body:
            return
        vector_loop(inside, along.symbol, span, 1, lambda at, copy: run(at, body))
        return
    inner = [a.symbol for a in code.frame.kernel.inner]
    inside = code.hoist(body, [along.symbol, *inner])
    vector_loop(inside, along.symbol, span, 1, lambda at, copy: _stages(at))


def _even(extent: int, stretch: int) -> int:
    low = extent & -extent
    return min(low, stretch & -stretch)


def _stages(code: Code) -> None:
    kernel, axis = code.frame.kernel, code.frame.axis
    requests = (NOTHING,) * len(kernel.stages)
    if axis is not None and axis.inner and code.frame.width > 1:
        requests = plan(kernel, axis.symbol)
    for stage, ahead in zip(kernel.stages, requests, strict=True):
        if stage.level is Level.OUTER:
            run(code, stage.body)
        else:
            inner_stage(code, stage.body, ahead)


def _grain(kernel: Kernel, heuristics: Heuristics) -> int:
    """Return the number of elements below which threads cost more than they save."""
    return max(1, heuristics.parallel_grain // _price(kernel))


def _price(kernel: Kernel) -> int:
    """Return about how much work an element is."""
    return max(1, sum(work(stage.body) for stage in kernel.stages) // 8)


def _serial(kernel: Kernel, domain: Domain, heuristics: Heuristics) -> bool:
    """Say whether one thread surely does all."""
    known = static(_product(a.extent for a in kernel.axes + kernel.inner))
    pieces = static(domain.pieces)
    serial = heuristics.cores <= 1 or (pieces is not None and pieces <= 1)
    return serial or (known is not None and known < _grain(kernel, heuristics))


def _entry(frame: Frame, symbol: str, domain: Domain, serial: bool, heuristics: Heuristics) -> None:
    """Write the function that other code calls: it hands out units to threads where that pays."""
    kernel, code = frame.kernel, Code(frame, None)
    size = _product(a.extent for a in kernel.axes + kernel.inner)
    grain = _grain(kernel, heuristics)
    head = f'extern "C" si64 {symbol}(void *const *buffers, const si64 *sizes) {{'
    with code.block(head):
        _sizes(frame)
        part = f"{symbol}_part(buffers, sizes, "
        if serial:
            code.line(f"return {part}0, {code.index(domain.pieces * domain.units)}, false);")
            return
        code.line(f"const si64 pieces = {code.index(domain.pieces)};")
        code.line(f"const si64 units = {code.index(domain.units)};")
        if static(size) is None:
            code.line(f"if ({code.index(size)} < {grain}) return {part}0, pieces * units, false);")
        code.line("si64 failed = 0;")
        code.line("#pragma omp parallel")
        with code.block("{"):
            code.line("const si64 team = omp_get_num_threads(), member = omp_get_thread_num();")
            low, high = "pieces * member / team", "pieces * (member + 1) / team"
            code.line(f"const si64 low = {low} * units, high = {high} * units;")
            code.line(f"const si64 code = {part}low, high, team > 1);")
            code.line("if (code) __atomic_store_n(&failed, code, __ATOMIC_RELAXED);")
        code.line("return failed;")


def _share(frame: Frame, symbol: str, domain: Domain, serial: bool, heuristics: Heuristics) -> None:
    """Write the function that says how many pieces there are to share out, and how much work."""
    kernel, code = frame.kernel, Code(frame, None)
    size = _product(a.extent for a in kernel.axes + kernel.inner) * _price(kernel)
    pieces, units = domain.pieces, domain.units
    if serial:
        pieces, units = ONE, pieces * units
    with code.block(f"static gy_share {symbol}_share(const si64 *sizes) {{"):
        code.line("(void)sizes;")
        _sizes(frame)
        parts = ", ".join(code.index(e) for e in (pieces, units, size))
        code.line(f"return {{{parts}}};")
