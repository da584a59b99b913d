"""Kernels that load from different constant offsets, such as those of the layers of a model, each
of which reads its own seeds."""

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve

from gyrator_ir.body.nodes import Load
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Const, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_scheduler.fusion.kernels import canonical, sizes_of
from gyrator_scheduler.naming import fresh

Offsets = tuple[Const, ...]


@frozen
class OpenKernel:
    """A kernel whose constant offsets are sizes, with their values in one launch."""

    kernel: Kernel
    values: Mapping[Sym, Const]

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """The sizes that the launch passes."""
        return tuple(self.values.get(s, s) for s in self.kernel.sizes)


def open_kernels(kernels: Sequence[Kernel]) -> dict[str, OpenKernel]:
    """Return, by name, the kernels that become equal when the constant offsets of their loads are
    sizes: a compiler then builds one of them.

    Only loads from buffers that the kernel does not write are considered: what may be read before
    or after it is written can depend on the offset.
    """
    used_names = {s.name for k in kernels for s in k.sizes}
    names: list[str] = []
    alike: dict[Kernel, dict[str, tuple[Offsets, OpenKernel]]] = {}
    for kernel in kernels:
        offsets = _offsets(kernel)
        if not offsets:
            continue
        while len(names) < len(offsets):
            names.append(fresh(f"s_offset{len(names)}", used_names))
        values = dict(zip(map(Sym, names), offsets, strict=False))
        opened = _opened(kernel, values)
        same = alike.setdefault(canonical(opened)[0], {})
        same[kernel.name] = (offsets, OpenKernel(opened, values))
    return {
        name: opened
        for same in alike.values()
        if len({offsets for offsets, _ in same.values()}) > 1
        for name, (_, opened) in same.items()
    }


def with_offsets(facts: ShapeFacts, opened: Iterable[OpenKernel]) -> ShapeFacts:
    """Return the facts, with the ranges of the offsets and an example of each."""
    values: dict[Sym, list[int]] = {}
    for o in opened:
        for symbol, value in o.values.items():
            values.setdefault(symbol, []).append(value.value)
    for symbol, numbers in values.items():
        facts = facts.with_range(symbol, min(numbers), max(numbers)).with_hint(symbol, numbers[0])
    return facts


def _movable(kernel: Kernel) -> set[str]:
    """Return the parameters that a kernel only loads from and that have more than one element."""
    written = set(kernel.writes)
    several = (b.name for b in kernel.parameters if any(size is not ONE for size in b.shape))
    return {name for name in several if name not in written}


def _offsets(kernel: Kernel) -> Offsets:
    """Return the constant indices of a kernel's loads, in order of first use."""
    movable = _movable(kernel)
    loads = (s for stage in kernel.stages for s in stage.body if isinstance(s, Load))
    indices = (s.index for s in loads if s.buffer in movable)
    return tuple(dict.fromkeys(index for index in indices if isinstance(index, Const)))


def _opened(kernel: Kernel, values: Mapping[Sym, Const]) -> Kernel:
    """Return the kernel with symbols in place of its constant offsets."""
    symbols: dict[Expr, Expr] = {value: symbol for symbol, value in values.items()}
    movable = _movable(kernel)

    def new(s: KernelStatement) -> KernelStatement:
        if not isinstance(s, Load) or s.buffer not in movable:
            return s
        return evolve(s, index=symbols.get(s.index, s.index))

    stages = tuple(evolve(g, body=tuple(map(new, g.body))) for g in kernel.stages)
    body = [s for g in stages for s in g.body]
    sizes = sizes_of(body, (*kernel.axes, *kernel.inner), kernel.locals)
    return evolve(kernel, stages=stages, sizes=sizes)
