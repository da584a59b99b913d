"""Construction of kernels: names, canonical symbols, parameters."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial

from attrs import evolve

from gyrator_ir.body.nodes import Axis, Bind, Load, Store
from gyrator_ir.body.rewrite import defined, expressions, renamed, rewritten
from gyrator_ir.expr import Expr, Sym, SymKind, subs
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Local, Numerics, Stage
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.provenance import Origin
from gyrator_ir.types import Device
from gyrator_scheduler.fusion.staging import Assembled
from gyrator_scheduler.merging import addresses, merge, with_expressions

MAX_NAME = 60


def kernel_of(
    name: str,
    device: Device,
    assembled: Assembled,
    buffers: Mapping[str, Buffer],
    origins: tuple[int, ...],
    numerics: Numerics,
) -> Kernel:
    """Return the kernel for an assembled cluster, with merged and renamed axes and its
    parameters."""
    points, inner, stages, locals_ = _merged(assembled)
    axes: dict[Sym, Expr] = {a.symbol: Sym(f"i{n}") for n, a in enumerate(points)}
    axes |= {a.symbol: Sym(f"r{n}") for n, a in enumerate(inner)}
    new_stages = tuple(
        Stage(stage.level, tuple(renamed(s, {}, axes) for s in stage.body)) for stage in stages
    )
    new_points = tuple(Axis(Sym(f"i{n}"), a.extent) for n, a in enumerate(points))
    new_inner = tuple(Axis(Sym(f"r{n}"), a.extent) for n, a in enumerate(inner))
    body = [s for stage in new_stages for s in stage.body]
    return Kernel(
        name=name,
        device=device,
        axes=new_points,
        inner=new_inner,
        stages=new_stages,
        locals=locals_,
        parameters=parameters_of(body, {x.name for x in locals_}, buffers),
        sizes=sizes_of(body, (*new_points, *new_inner), locals_),
        numerics=numerics,
        origins=origins,
    )


def _merged(
    assembled: Assembled,
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Stage, ...], tuple[Local, ...]]:
    """Merge parallel axes with each other and inner axes with each other, if all addresses allow
    it."""
    if len(assembled.points) < 2 and len(assembled.inner) < 2:
        return assembled.points, assembled.inner, assembled.stages, assembled.locals
    new = addresses(s for stage in assembled.stages for s in stage.body)
    points = merge(assembled.points, new)
    inner = merge(assembled.inner, new)
    stages = tuple(
        Stage(s.level, with_expressions(s.body, new.__getitem__)) for s in assembled.stages
    )
    return points, inner, stages, assembled.locals


def parameters_of(
    body: Sequence[KernelStatement], locals_: set[str], buffers: Mapping[str, Buffer]
) -> tuple[Buffer, ...]:
    """Return the loaded buffers in order of first use, then those that are only stored to."""
    names = dict.fromkeys(s.buffer for s in body if isinstance(s, Load))
    names |= dict.fromkeys(s.buffer for s in body if isinstance(s, Store) and s.buffer not in names)
    return tuple(buffers[n].parts for n in names if n not in locals_)


def sizes_of(
    body: Iterable[KernelStatement], axes: Iterable[Axis], locals_: Iterable[Local]
) -> tuple[Sym, ...]:
    """Return the size symbols that a kernel uses, sorted by name."""
    symbols: set[Sym] = set()
    for s in body:
        for e in expressions(s):
            symbols |= e.free_symbols
    for a in axes:
        symbols |= a.extent.free_symbols
    for x in locals_:
        symbols |= x.extent.free_symbols
    sizes = [s for s in symbols if s.kind in (SymKind.SIZE, SymKind.UNBACKED)]
    return tuple(sorted(sizes, key=lambda s: s.name))


def short_name(origins: Iterable[int], table: Sequence[Origin]) -> str:
    """Return a descriptive name such as `add_gelu`, from the targets of the origins."""
    words: list[str] = []
    for row in origins:
        if row >= len(table):
            continue
        word = _word(table[row].target)
        if word and word not in words:
            words.append(word)
    return "_".join(words)


@lru_cache(1 << 10)
def _word(target: str) -> str:
    """Return the name of an op as an identifier. Cached: the result depends on the name only."""
    parts = target.split(".")
    word = parts[1] if len(parts) > 1 else parts[0]
    return "".join(ch if ch.isalnum() and ch.isascii() else "_" for ch in word).strip("_")


def numbered(number: int, words: str) -> str:
    """Return `k<number>_<words>`, at most 60 characters long."""
    name = f"k{number}_{words}" if words else f"k{number}"
    return name[:MAX_NAME].rstrip("_")


def canonical(kernel: Kernel) -> tuple[Kernel, tuple[str, ...], tuple[Sym, ...]]:
    """Return the kernel with parameters named `p0`, `p1`, ..., values `v0`, `v1`, ... and loaded
    indices `t0`, `t1`, ..., and the buffer names and sizes that a launch passes."""
    buffers = {b.name: f"p{n}" for n, b in enumerate(kernel.parameters)}
    rows = {x.name: f"l{n}" for n, x in enumerate(kernel.locals)}
    renaming = {**buffers, **rows}
    names: dict[str, str] = {}
    symbols: dict[Sym, Expr] = {}
    stages: list[Stage] = []
    for stage in kernel.stages:
        body: list[KernelStatement] = []
        for s in stage.body:
            for n in defined(s):
                names[n] = f"v{len(names)}"
            if isinstance(s, Bind):
                symbols[s.symbol] = Sym(f"t{len(symbols)}")
            change = partial(subs, mapping=symbols) if symbols else None
            body.append(rewritten(s, names, change, renaming, symbols))
        stages.append(Stage(stage.level, tuple(body)))
    new = evolve(
        kernel,
        name="k",
        stages=tuple(stages),
        locals=tuple(evolve(x, name=rows[x.name]) for x in kernel.locals),
        parameters=tuple(evolve(b, name=buffers[b.name]) for b in kernel.parameters),
        refusals=(),
        origins=(),
    )
    return new, tuple(b.name for b in kernel.parameters), kernel.sizes
