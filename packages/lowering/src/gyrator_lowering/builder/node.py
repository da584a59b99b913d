"""The FX node that is being lowered, and what its results must look like."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from attrs import define, field
from torch.fx import Node

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import ONE, ZERO, Const, Expr
from gyrator_ir.provenance import Origin
from gyrator_ir.types import DType
from gyrator_lowering.builder.values import Spec, TensorValue, contiguous_strides
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH, device_of
from gyrator_lowering.torch_bridge.symbols import Symbols

BY_PYTORCH = "PyTorch runs the op; what surrounds it is compiled"
"""What becomes of a node that is refused."""


@define
class CurrentNode:
    """What rules ask of the node that they lower.

    While a rule runs, `node` is the FX node that it lowers and `out`/`outs` say what its results
    must look like.
    """

    options: LoweringOptions
    symbols: Symbols = field(kw_only=True)
    origins: list[Origin] = field(factory=list, kw_only=True)
    node: Node = field(init=False)
    by_part: bool = field(default=False, init=False)
    """Results of the current node look like their real, or imaginary, parts."""
    _origin: tuple[int, ...] = field(default=(), init=False)
    _locate: Callable[[Node], Origin] = field(kw_only=True)

    def begin(self, node: Node) -> None:
        """Set the FX node that the operations to come belong to."""
        self.node = node
        self._origin = ()

    @property
    def generates(self) -> bool:
        """Whether the current node, if it is a dense product, becomes loops, and no call."""
        return self.options.extern_kernels == "none" or self.node.name in self.options.generated

    @property
    def origin(self) -> tuple[int, ...]:
        """The row of the current node in the table of origins, made on first use."""
        if not self._origin:
            self._origin = (len(self.origins),)
            self.origins.append(self._locate(self.node))
        return self._origin

    @property
    def out(self) -> Spec:
        """What the only result of the current node must look like."""
        return self.spec(self.node.meta["val"])

    @property
    def outs(self) -> tuple[Spec | None, ...]:
        """What each result of the current node must look like; None for an undefined one."""
        return tuple(
            self.spec(v) if isinstance(v, torch.Tensor) else None for v in self.node.meta["val"]
        )

    def spec(self, fake: torch.Tensor) -> Spec:
        """Return dtype, device, shape and strides of a fake tensor.

        Overlapping strides (a result that eager leaves expanded) become contiguous.
        """
        shape = self.symbols.sizes(fake.shape)
        strides = self.symbols.sizes(fake.stride())
        if _overlaps(shape, strides):
            strides = contiguous_strides(shape)
        return Spec(self.dtype_of(fake), device_of(fake.device), shape, strides)

    def dtype_of(self, fake: torch.Tensor) -> DType:
        """Return the element type of a fake tensor.

        Raises:
            UnsupportedError: GY-LOWER-002, for a type or a layout that programs do not hold.
        """
        found = FROM_TORCH.get(fake.dtype)
        if found is None or fake.layout is not torch.strided:
            raise self.unsupported(
                "GY-LOWER-002",
                f"a tensor of {fake.layout} and {fake.dtype}, which programs cannot hold",
                help=BY_PYTORCH,
            )
        return found.part if self.by_part else found

    def unsupported(self, code: str, message: str, help: str = "") -> UnsupportedError:
        """Return an error that names the current node and the user's line."""
        origin = self._locate(self.node)
        where = (f"%{origin.node} = {origin.target}", origin.location)
        return UnsupportedError.of(
            code, message, provenance=tuple(w for w in where if w), help=help
        )

    @property
    def used_results(self) -> frozenset[int]:
        """Places of the results of the current node that the graph reads."""
        places: set[int] = set()
        for user in self.node.users:
            if user.target is operator.getitem:
                places.add(user.args[1])  # type: ignore[arg-type]
            else:
                return frozenset(range(64))
        return frozenset(places)

    def exact_spec(self, fake: torch.Tensor) -> Spec:
        """Like `spec`, with the strides as they are: for what the caller or ATen allocates."""
        return Spec(
            self.dtype_of(fake),
            device_of(fake.device),
            self.symbols.sizes(fake.shape),
            self.symbols.sizes(fake.stride()),
        )

    def views(self, base: Any, place: int, fake: Any) -> Any:
        """Return the view, or list of views, of argument `place` that eager's result `fake` is."""
        if isinstance(fake, (list, tuple)):
            return [self.views(base, place, item) for item in fake]
        given: Any = self.node.args[place]
        return self.view_of(base, given.meta["val"] if isinstance(given, Node) else given, fake)

    def view_of(
        self, base: TensorValue, base_fake: torch.Tensor, fake: torch.Tensor
    ) -> TensorValue:
        """Return the view of `base` that has the form of `fake`, a view of `base_fake`.

        Raises:
            UnsupportedError: GY-LOWER-006, where the base is laid out differently from eager's.
        """
        sizes = self.symbols.sizes
        if sizes(base_fake.stride()) != base.strides and any(
            size is not ONE and mine is not theirs
            for size, mine, theirs in zip(
                base.shape, base.strides, sizes(base_fake.stride()), strict=True
            )
        ):
            raise self.unsupported(
                "GY-LOWER-006",
                "a view of a tensor whose elements overlap in eager mode",
                help="PyTorch runs the op; clone the tensor before the view",
            )
        dtype = self.dtype_of(fake)
        mine = self.symbols.size(fake.storage_offset())
        theirs = self.symbols.size(base_fake.storage_offset())
        if dtype is base.dtype:
            offset = base.offset + (mine - theirs)
        else:
            moved = (base.offset - theirs) * base.dtype.size
            offset = mine + moved // dtype.size
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
    """Whether two points surely share an element. Symbolic strides are judged by zeros alone."""
    dims: list[tuple[int, int]] = []
    known = True
    for size, stride in zip(shape, strides, strict=True):
        if size is ONE:
            continue
        if stride is ZERO:
            return True
        if type(size) is Const and type(stride) is Const:
            dims.append((stride.value, size.value))
        else:
            known = False
    if not known:
        return False
    span = 1
    for step, count in sorted(dims):
        if step < span:
            return all(n > 0 for _, n in dims)
        span = step * (count - 1) + span
    return False
