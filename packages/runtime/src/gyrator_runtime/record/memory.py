"""Recording allocations, views and their ends."""

from attrs import define, evolve

from gyrator_runtime import host
from gyrator_runtime.native.program import Const, Move, Value
from gyrator_runtime.record.recording import Recording
from gyrator_runtime.record.values import (
    AnySize,
    Handle,
    layout_of,
    moved,
    plan_size,
    size_tuple,
)


@define
class MemoryInstructions(Recording):
    """Tensors of a program: made, placed, viewed, dropped."""

    def constant(self, key: str) -> Handle:
        """Return a tensor that the program carries."""
        return self._call(host.identity, (Const(self.rt.constants[key]),))

    def allocate(
        self,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        dtype: str,
        device: str,
    ) -> Handle:
        """Return a new strided tensor, uninitialised."""
        function, extra = host.allocator(host.DTYPES[dtype], device)
        layout: tuple[Value, ...] = (size_tuple(shape), size_tuple(strides))
        made = self._call(function, (*layout, *map(Const, extra)))
        own = layout_of(shape, strides, host.DTYPES[dtype], 0)
        return Handle(made.register, own=own, device=device)

    def pool(self, nbytes: AnySize, device: str) -> Handle:
        """Return memory that tensors are placed in."""
        return self.allocate((nbytes,), (1,), "u8", device)

    def from_pool(
        self,
        pool: Handle,
        offset: AnySize,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        dtype: str,
    ) -> Handle:
        """Return a tensor at a byte offset of a pool."""
        layout = layout_of(shape, strides, host.DTYPES[dtype], plan_size(offset))
        return Handle(pool.register, layout, pool.own, pool.device, pooled=True)

    def reuse(
        self,
        source: Handle,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        dtype: str,
    ) -> Handle:
        """Return a tensor over the storage of `source`, which is dropped."""
        layout = layout_of(shape, strides, host.DTYPES[dtype], source.offset)
        return evolve(source, layout=None if layout == source.own else layout)

    def view(
        self,
        source: Handle,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        offset: AnySize,
        dtype: str,
    ) -> Handle:
        """Return a strided view of a tensor, `offset` counted from its first element."""
        kind = host.DTYPES[dtype]
        layout = layout_of(shape, strides, kind, moved(source.offset, offset, kind))
        register = self._register()  # of its own, for the source may be dropped before
        self.instructions.append(Move(register, source.register))
        return evolve(source, register=register, layout=layout, pooled=False)
