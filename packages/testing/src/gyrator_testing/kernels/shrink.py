"""Shrink a failing kernel: fewer stores, statements and axes, shorter ranges."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from attrs import evolve

from gyrator_ir.body.nodes import Axis, Let, Load, Store
from gyrator_ir.body.rewrite import live, rewritten, used
from gyrator_ir.diagnostics import VerifyError
from gyrator_ir.expr import Expr, ShapeFacts, Sym, expr, product_of, subs, to_python
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level, Stage
from gyrator_ir.kernel.verify import verify_kernel
from gyrator_testing.kernels.write import kernel as written

_ATTEMPTS = 1500
_POINTS = 1 << 18


def shrunk(
    kernel: Kernel, sizes: Mapping[Sym, int], fails: Callable[[Kernel], bool]
) -> tuple[Kernel, int]:
    """Return the smallest kernel found on which `fails` is true, and how many were tried.

    Args:
        kernel: a kernel for which `fails` is true.
        sizes: constants that may replace its size symbols.
        fails: return whether a well-formed kernel still shows the fault.
    """
    tried = 0
    again = True
    while again:
        again = False
        for smaller in _smaller(kernel, sizes):
            if tried == _ATTEMPTS:
                return kernel, tried
            candidate = _whole(smaller)
            if candidate is None or candidate == kernel:
                continue
            tried += 1
            if fails(candidate):
                kernel, again = candidate, True
                break
    return kernel, tried


def _whole(kernel: Kernel) -> Kernel | None:
    """Return a kernel without unused parts; None if it is not well-formed."""
    stages: list[Stage] = []
    needed: set[str] = set()
    for stage in reversed(kernel.stages):
        body = live(stage.body, needed)
        needed |= {name for s in body for name in used(s)}
        if body:
            stages.insert(0, evolve(stage, body=body))
    inner = kernel.inner if any(s.level is Level.INNER for s in stages) else ()
    named = {s.buffer for g in stages for s in g.body if isinstance(s, Load | Store)}
    locals_ = [t for t in kernel.locals if t.name in named]
    types = {p.name: p.dtype for p in kernel.parameters}
    try:
        candidate = written(
            kernel.name,
            [(a.symbol, a.extent) for a in kernel.axes],
            [(a.symbol, a.extent) for a in inner],
            stages,
            types,
            {p.name: p.shape[0] for p in kernel.parameters},
            locals_,
            kernel.device,
        )
        return verify_kernel(_fitted(candidate)) if stages else None
    except (VerifyError, KeyError, ValueError, TypeError):
        return None


def _fitted(kernel: Kernel) -> Kernel:
    """Return a kernel whose buffers are just as long as its addresses require, where this is
    known."""
    spans: dict[str, int] = {}
    unknown: set[str] = {t.name for t in kernel.locals}
    for stage in kernel.stages:
        axes = (*kernel.axes, *(kernel.inner if stage.level is Level.INNER else ()))
        for s in stage.body:
            if isinstance(s, Load | Store):
                last = _last(s.index, axes)
                if last is None:
                    unknown.add(s.buffer)
                else:
                    spans[s.buffer] = max(spans.get(s.buffer, 1), last + 1)
    parameters = (
        evolve(p, shape=(expr(spans[p.name]),)) if p.name not in unknown else p
        for p in kernel.parameters
    )
    return evolve(kernel, parameters=tuple(parameters))


def _last(index: Expr, axes: tuple[Axis, ...]) -> int | None:
    """Return the largest address, or None if it depends on sizes or on loaded values."""
    extents = {a.symbol: a.extent for a in axes}
    if any(e.free_symbols for e in extents.values()) or index.free_symbols - extents.keys():
        return None
    lengths = [int(str(e)) for e in extents.values()]
    if int(np.prod(lengths)) > _POINTS:
        return None
    grid = np.meshgrid(*(np.arange(n) for n in lengths), indexing="ij")
    names = dict(zip((s.name for s in extents), grid, strict=True))
    addresses = np.asarray(eval(to_python(index), {"min": np.minimum, "max": np.maximum, **names}))
    return int(addresses.max()) if addresses.size else 0


# What may be left out ---------------------------------------------------------------------------


def _smaller(kernel: Kernel, sizes: Mapping[Sym, int]) -> Iterator[Kernel]:
    """Yield kernels with one simplification each, the most effective first."""
    yield from _fewer_stores(kernel)
    yield from _fewer_symbols(kernel, sizes)
    yield from _shorter_axes(kernel)
    yield from _fewer_statements(kernel)
    yield from _plainer_addresses(kernel)


def _fewer_stores(kernel: Kernel) -> Iterator[Kernel]:
    for n in range(len(kernel.stages)):
        yield evolve(kernel, stages=kernel.stages[:n] + kernel.stages[n + 1 :])
    yield from _each(kernel, lambda s: None if isinstance(s, Store) else s)


def _fewer_symbols(kernel: Kernel, sizes: Mapping[Sym, int]) -> Iterator[Kernel]:
    for symbol in kernel.sizes:
        yield _replaced(kernel, {symbol: expr(sizes[symbol])})


def _shorter_axes(kernel: Kernel) -> Iterator[Kernel]:
    for axis in (*kernel.axes, *kernel.inner):
        if axis.extent.free_symbols:
            continue
        n = int(str(axis.extent))
        if n == 1:
            yield _without(kernel, axis)
        for fewer in dict.fromkeys((1, 2, 3, n // 2, n - 1)):
            if 0 < fewer < n:
                yield _resized(kernel, axis, fewer)


def _fewer_statements(kernel: Kernel) -> Iterator[Kernel]:
    """Yield kernels in which an operand replaces a computed value, or a mask is removed."""
    for stage, place in _places(kernel):
        s = kernel.stages[stage].body[place]
        if isinstance(s, Let):
            for value in dict.fromkeys(s.args):
                yield _renamed(_put(kernel, stage, place, None), {s.name: value})
        if isinstance(s, Load | Store) and s.mask is not None:
            yield _put(kernel, stage, place, evolve(s, mask=None))


def _plainer_addresses(kernel: Kernel) -> Iterator[Kernel]:
    for stage, place in _places(kernel):
        s = kernel.stages[stage].body[place]
        if not isinstance(s, Load | Store) or s.buffer in {t.name for t in kernel.locals}:
            continue
        inner = kernel.stages[stage].level is Level.INNER
        axes = (*kernel.axes, *(kernel.inner if inner else ()))
        rows: Expr = expr(0)
        for axis in axes:
            rows = rows * axis.extent + axis.symbol
        plain = [rows] if isinstance(s, Store) else [expr(0), *(expr(a.symbol) for a in axes), rows]
        for index in plain:
            if len(to_python(index)) < len(to_python(s.index)):
                yield _put(kernel, stage, place, evolve(s, index=index))


# How ----------------------------------------------------------------------------------------------


def _places(kernel: Kernel) -> Iterator[tuple[int, int]]:
    for n, stage in enumerate(kernel.stages):
        yield from ((n, k) for k in range(len(stage.body)))


def _put(kernel: Kernel, stage: int, place: int, new: KernelStatement | None) -> Kernel:
    """Return the kernel with a statement replaced or removed."""
    body = kernel.stages[stage].body
    statements = (*body[:place], *(() if new is None else (new,)), *body[place + 1 :])
    stages = list(kernel.stages)
    stages[stage] = evolve(stages[stage], body=statements)
    return evolve(kernel, stages=tuple(stages))


def _each(
    kernel: Kernel, change: Callable[[KernelStatement], KernelStatement | None]
) -> Iterator[Kernel]:
    """Yield the kernel with one statement changed, for each that changes."""
    for stage, place in _places(kernel):
        old = kernel.stages[stage].body[place]
        new = change(old)
        if new is not old:
            yield _put(kernel, stage, place, new)


def _renamed(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    stages = tuple(
        evolve(stage, body=tuple(rewritten(s, names) for s in stage.body))
        for stage in kernel.stages
    )
    return evolve(kernel, stages=stages)


def _replaced(kernel: Kernel, values: Mapping[Sym, Expr]) -> Kernel:
    """Return the kernel with symbols replaced everywhere."""

    def change(e: Expr) -> Expr:
        new = subs(e, values)
        assert isinstance(new, Expr)
        return new

    def axes(of: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(evolve(a, extent=change(a.extent)) for a in of)

    stages = tuple(
        evolve(stage, body=tuple(rewritten(s, change=change) for s in stage.body))
        for stage in kernel.stages
    )
    return evolve(
        kernel,
        axes=axes(kernel.axes),
        inner=axes(kernel.inner),
        stages=stages,
        locals=tuple(evolve(t, extent=change(t.extent)) for t in kernel.locals),
        parameters=tuple(evolve(p, shape=(change(p.shape[0]),)) for p in kernel.parameters),
    )


def _without(kernel: Kernel, axis: Axis) -> Kernel:
    """Return the kernel without an axis of length 1."""
    less = evolve(
        kernel,
        axes=tuple(a for a in kernel.axes if a is not axis),
        inner=tuple(a for a in kernel.inner if a is not axis),
    )
    return _replaced(less, {axis.symbol: expr(0)})


def _resized(kernel: Kernel, axis: Axis, extent: int) -> Kernel:
    """Return the kernel with a shorter axis; per-point scratch shrinks with its inner axes."""

    def axes(of: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(evolve(a, extent=expr(extent)) if a is axis else a for a in of)

    inner = axes(kernel.inner)
    row = product_of(a.extent for a in inner)
    return evolve(
        kernel,
        axes=axes(kernel.axes),
        inner=inner,
        locals=tuple(evolve(t, extent=row) for t in kernel.locals),
    )


def facts_of(sizes: Mapping[Sym, int]) -> ShapeFacts:
    """Return facts that fix size symbols to these values."""
    facts = ShapeFacts()
    for symbol, n in sizes.items():
        facts = facts.with_range(symbol, n, n).with_hint(symbol, n)
    return facts
