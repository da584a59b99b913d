"""Recording allocations, views and their ends."""

import torch
from attrs import define

from gyrator_runtime import host
from gyrator_runtime.native.program import Const, Reg, Value
from gyrator_runtime.record.recording import Recording
from gyrator_runtime.record.values import AnySize, Handle, plan_size, size_tuple


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
        pinned: bool = False,
    ) -> Handle:
        """Return a new strided tensor, uninitialised."""
        function, extra = host.allocator(host.DTYPES[dtype], device, pinned)
        layout: tuple[Value, ...] = (size_tuple(shape), size_tuple(strides))
        return self._call(function, (*layout, *map(Const, extra)))

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
        layout = (shape, strides, host.DTYPES[dtype])
        return Handle(pool.register, plan_size(offset), layout, pooled=True)

    def workspace(self, nbytes: AnySize, device: str, zeroed: bool) -> Handle:
        """Return scratch bytes for kernels."""
        scratch = self.pool(nbytes, device)
        if zeroed:
            self._call(torch.Tensor.zero_, (Reg(scratch.register),), result=False)
        return scratch

    def reuse(
        self,
        source: Handle,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        dtype: str,
    ) -> Handle:
        """Return a tensor over the storage of `source`, which is dropped."""
        layout = (shape, strides, host.DTYPES[dtype])
        return Handle(source.register, source.offset, layout, source.pooled)

    def view(
        self,
        source: Handle,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        offset: AnySize,
        dtype: str,
    ) -> Handle:
        """Return a strided view of a tensor, `offset` counted from its first element."""
        layout = (size_tuple(shape), size_tuple(strides), plan_size(offset))
        return self._call(host.view, (self._reg(source), *layout, Const(host.DTYPES[dtype])))
