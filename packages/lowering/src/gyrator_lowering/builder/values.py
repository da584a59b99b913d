"""The values that rules receive and return: strided views of buffers, and specs of results."""

from collections.abc import Sequence

from attrs import evolve

from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Expr
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.types import Device, DType

__all__ = ["Spec", "TensorValue"]


@frozen
class Spec:
    """The form of a result: eager's dtype, device, sizes and strides (in elements)."""

    dtype: DType
    device: Device
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]


@frozen
class TensorValue:
    """A strided view of a buffer. Sizes, strides and offset count elements of `dtype`.

    `stored` is the dtype in which bodies address the buffer; if the two differ, the view
    reinterprets the bits.
    """

    buffer: str
    dtype: DType
    device: Device
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    stored: DType
    planes: tuple[str, str] | None = None
    """The two buffers of the real and imaginary parts, if kernels computed this complex tensor;
    each has the tensor's layout. `buffer` is allocated only if other operations read it."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def ref(self) -> TensorRef:
        """The view as an argument of a call or a result of a program."""
        return TensorRef(self.buffer, self.dtype, self.shape, self.strides, self.offset)

    @property
    def in_memory(self) -> "TensorValue":
        """The same view without planes, as after a call has written to `buffer`."""
        return self if self.planes is None else evolve(self, planes=None)

    def part(self, which: int) -> "TensorValue":
        """Return the real (0) or the imaginary (1) part of a complex tensor."""
        dtype = self.dtype.part
        if self.planes is not None:
            return evolve(self, buffer=self.planes[which], dtype=dtype, stored=dtype, planes=None)
        strides = tuple(s * 2 for s in self.strides)
        return evolve(self, dtype=dtype, strides=strides, offset=self.offset * 2 + which)

    def permuted(self, dims: tuple[int, ...]) -> "TensorValue":
        """Return the view whose dimension `k` is dimension `dims[k]` of this one."""
        return evolve(
            self,
            shape=tuple(self.shape[d] for d in dims),
            strides=tuple(self.strides[d] for d in dims),
        )


@frozen
class Opaque:
    """A value that programs do not support: nodes that read it are refused."""

    def __getitem__(self, index: int) -> "Opaque":
        return self


OPAQUE = Opaque()


def broadcast_shape(tensors: Sequence[TensorValue]) -> tuple[Expr, ...]:
    """Return the shape to which tensors broadcast, as eager has checked."""
    rank = max(t.ndim for t in tensors)
    shape: list[Expr] = [ONE] * rank
    for t in tensors:
        for k, size in enumerate(t.shape, rank - t.ndim):
            if size is not ONE:
                shape[k] = size
    return tuple(shape)
