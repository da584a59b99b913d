"""The FX node that is being lowered, and the specs of its results."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import field
from torch.fx import Node

from gyrator_ir.define import define
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import ONE, ZERO, Const, Expr, contiguous_strides
from gyrator_ir.provenance import Origin
from gyrator_ir.types import DType
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH, device_of
from gyrator_lowering.torch_bridge.graphs import fake_of
from gyrator_lowering.torch_bridge.symbols import Symbols

BY_PYTORCH = "PyTorch runs the op; the rest of the graph is compiled"
"""The help of a diagnostic that refuses a node."""


@define
class CurrentNode:
    """The node that is being lowered, as rules see it.

    While a rule runs, `node` is the FX node, and `out`/`outs` are the specs of its results.
    """

    options: LoweringOptions
    symbols: Symbols = field(kw_only=True)
    origins: list[Origin] = field(factory=list, kw_only=True)
    node: Node = field(init=False)
    by_part: bool = field(default=False, init=False)
    """The specs of complex results describe their real or imaginary parts."""
    _origin: tuple[int, ...] = field(default=(), init=False)
    _locate: Callable[[Node], Origin] = field(kw_only=True)

    def begin(self, node: Node) -> None:
        """Set the FX node that the operations emitted next belong to."""
        self.node = node
        self._origin = ()

    @property
    def generates(self) -> bool:
        """Whether the current node, if it is a dense product, is lowered to loops rather than to a
        call."""
        return self.options.extern_kernels == "none" or self.node.name in self.options.generated

    @property
    def origin(self) -> tuple[int, ...]:
        """The row of the current node in the table of origins, added on first use."""
        if not self._origin:
            self._origin = (len(self.origins),)
            self.origins.append(self._locate(self.node))
        return self._origin

    @property
    def out(self) -> Spec:
        """The spec of the current node's only result."""
        return self.spec(self.node.meta["val"])

    @property
    def outs(self) -> tuple[Spec | None, ...]:
        """The spec of each result of the current node; None for an undefined one."""
        return tuple(
            self.spec(v) if isinstance(v, torch.Tensor) else None for v in self.node.meta["val"]
        )

    def wanted(self, mask: Sequence[bool] | None = None) -> tuple[Spec | None, ...]:
        """Return the spec of each result of the current node; None for one that is undefined, that
        nothing reads, or that `mask`, the op's `output_mask`, excludes."""
        used = self.used_results
        return tuple(
            out if k in used and (mask is None or mask[k]) else None
            for k, out in enumerate(self.outs)
        )

    def spec(self, fake: torch.Tensor) -> Spec:
        """Return the dtype, device, shape and strides of a fake tensor.

        Overlapping strides (of a result that eager leaves expanded) become contiguous.
        """
        shape = self.symbols.sizes(fake.shape)
        strides = self.symbols.sizes(fake.stride())
        if _overlaps(shape, strides):
            strides = contiguous_strides(shape)
        return Spec(self.dtype_of(fake), device_of(fake.device), shape, strides)

    def dtype_of(self, fake: torch.Tensor) -> DType:
        """Return the element type of a fake tensor.

        Raises:
            UnsupportedError: GY-LOWER-002, for a dtype or layout that programs do not support.
        """
        dtype = FROM_TORCH.get(fake.dtype)
        if dtype is None or fake.layout is not torch.strided:
            raise self.unsupported(
                "GY-LOWER-002",
                f"a tensor of {fake.layout} and {fake.dtype}, which programs cannot hold",
                help=BY_PYTORCH,
            )
        return dtype.part if self.by_part else dtype

    def unsupported(self, code: str, message: str, help: str = "") -> UnsupportedError:
        """Return an error that names the current node and the user's source line."""
        origin = self._locate(self.node)
        where = (f"%{origin.node} = {origin.target}", origin.location)
        return UnsupportedError.of(
            code, message, provenance=tuple(w for w in where if w), help=help
        )

    @property
    def used_results(self) -> frozenset[int]:
        """Indices of the current node's results that have users."""
        indices: set[int] = set()
        for user in self.node.users:
            if user.target is operator.getitem:
                indices.add(user.args[1])  # type: ignore[arg-type]
            else:
                return frozenset(range(64))
        return frozenset(indices)

    def exact_spec(self, fake: torch.Tensor) -> Spec:
        """Like `spec`, but keep the strides: for tensors that the caller or ATen allocates."""
        return Spec(
            self.dtype_of(fake),
            device_of(fake.device),
            self.symbols.sizes(fake.shape),
            self.symbols.sizes(fake.stride()),
        )

    def views(self, base: Any, position: int, fake: Any) -> Any:
        """Return the view, or list of views, of argument `position` that eager returns as
        `fake`."""
        if isinstance(fake, (list, tuple)):
            return [self.views(base, position, item) for item in fake]
        argument: Any = self.node.args[position]
        base_fake = fake_of(argument)
        return self.view_of(base, base_fake, fake)

    def view_of(
        self, base: TensorValue, base_fake: torch.Tensor, fake: torch.Tensor
    ) -> TensorValue:
        """Return the view of `base` with the layout of `fake`, a view of `base_fake`.

        Raises:
            UnsupportedError: GY-LOWER-006, if the strides of the base differ from eager's.
        """
        sizes = self.symbols.sizes
        strides = sizes(base_fake.stride())
        if strides != base.strides and any(
            size is not ONE and stride is not eager_stride
            for size, stride, eager_stride in zip(base.shape, base.strides, strides, strict=True)
        ):
            raise self.unsupported(
                "GY-LOWER-006",
                "a view of a tensor whose elements overlap in eager mode",
                help="PyTorch runs the op; clone the tensor before the view",
            )
        dtype = self.dtype_of(fake)
        view_offset = self.symbols.size(fake.storage_offset())
        base_offset = self.symbols.size(base_fake.storage_offset())
        if dtype is base.dtype:
            offset = base.offset + (view_offset - base_offset)
        else:
            shift = (base.offset - base_offset) * base.dtype.size
            offset = view_offset + shift // dtype.size
        return TensorValue(
            base.buffer,
            dtype,
            base.device,
            sizes(fake.shape),
            sizes(fake.stride()),
            offset,
            base.stored,
            base.planes,
        )


def _overlaps(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> bool:
    """Return whether two indices surely share an element. Symbolic strides overlap only if zero."""
    dims: list[tuple[int, int]] = []
    is_static = True
    for size, stride in zip(shape, strides, strict=True):
        if size is ONE:
            continue
        if stride is ZERO:
            return True
        if type(size) is Const and type(stride) is Const:
            dims.append((stride.value, size.value))
        else:
            is_static = False
    if not is_static:
        return False
    span = 1
    for step, count in sorted(dims):
        if step < span:
            return all(n > 0 for _, n in dims)
        span = step * (count - 1) + span
    return False
