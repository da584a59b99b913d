"""Launches of user-written Triton kernels: PyTorch's `triton_kernel_wrapper_...` ops.

The functional op lists the arguments that the kernel writes. The kernel is launched on copies of
these, or in place if their old contents have no other readers. If PyTorch cannot determine what a
kernel writes, it lists all tensors. If a kernel uses something that PyTorch does not analyse
(`text.KernelText.has_unknown_writes`), we assume the same: all other tensors count as written in
place, as in eager mode.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from attrs import field
from torch.fx import Node

from gyrator_ir.define import define
from gyrator_ir.expr import ONE, Const
from gyrator_ir.loop.nodes import Arg, ListArg, Literal, UserKernel, UserTritonKernel
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.higher_order.functionalized import WrappedOps
from gyrator_lowering.rules.extern import argument
from gyrator_lowering.torch_bridge.graphs import fake_of
from gyrator_lowering.user_kernels.text import KernelText, kernel_text

NAMES = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
"""PyTorch's higher-order ops for launches."""
_PLAIN = (bool, int, float, str, type(None))


def is_launch(target: object) -> bool:
    """Return whether the target of an FX node is one of those ops."""
    higher = isinstance(target, torch._ops.HigherOrderOperator)
    return higher and getattr(target, "__name__", "") in NAMES


def launch_bytes(node: Node) -> bytes:
    """Return the kernel and the constants that a node refers to by number, as bytes to hash.

    The tables of these numbers are local to a process.

    Raises:
        UnsupportedError: GY-LOWER-012, for a kernel that cannot be expressed as text.
    """
    text, constants = _kernel_and_constants(node)
    return f"{text.source}\n{sorted(constants.items())!r}".encode()


def _kernel_and_constants(node: Node) -> tuple[KernelText, dict[str, Any]]:
    """Return the kernel's text, and the constant arguments of the launch."""
    table = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap").kernel_side_table
    constants = table.get_constant_args(node.kwargs["constant_args_idx"])
    plain = {k: v for k, v in constants.items() if isinstance(v, _PLAIN)}
    others = {k: v for k, v in constants.items() if k not in plain}
    return kernel_text(table.get_kernel(node.kwargs["kernel_idx"]), others), plain


@define
class Launches:
    """Lowers the kernel launches of one graph."""

    b: LoopBuilder
    wrapped: WrappedOps
    kernels: dict[str, UserKernel] = field(factory=dict)

    def call(self, node: Node, kwargs: Mapping[str, Any]) -> Any:
        """Launch a kernel; return a dict of the tensors it wrote, or None for the mutating op.

        Raises:
            UnsupportedError: GY-LOWER-012, for a kernel that cannot be expressed as text;
                GY-LOWER-013, for a descriptor that is not Triton's `TensorDescriptor`, or whose
                block size is not constant.
        """
        text, constants = _kernel_and_constants(node)
        fakes: Any = node.kwargs["kwargs"]
        copied = frozenset(kwargs.get("tensors_to_clone", ()))
        functional = "tensors_to_clone" in kwargs
        arguments = {
            k: self._argument(node, k, v, fakes[k], copied) for k, v in kwargs["kwargs"].items()
        }
        tensors = {k: v for k, v in arguments.items() if isinstance(v, TensorValue)}
        writes_all = text.has_unknown_writes or not functional
        written = [v.buffer for k, v in tensors.items() if writes_all or k in copied]
        kernel = UserKernel(text.key, text.source, text.parameters)
        self.kernels[text.key] = kernel
        b = self.b
        b.operations.append(
            UserTritonKernel(
                b.op_name(),
                text.key,
                tuple(b.symbols.sizes(grid) for grid in kwargs["grid"]),
                tuple((k, argument(b, v)) for k, v in arguments.items()),
                tuple((k, Literal(v)) for k, v in constants.items()),
                tuple(dict.fromkeys(written)),
                self._descriptors(kwargs["tma_descriptor_metadata"]),
                b.origin,
            )
        )
        return {k: tensors[k] for k in tensors if k in copied} if functional else None

    def _argument(
        self, node: Node, name: str, value: Any, fake: Any, copied: frozenset[str]
    ) -> Any:
        """Return an argument with eager's strides, which may have been passed to the kernel."""
        if not isinstance(value, TensorValue):
            return value
        eager_tensor: torch.Tensor = fake_of(fake)
        spec = self.b.exact_spec(eager_tensor)
        is_same_layout = all(
            stride is eager_stride or size is ONE
            for size, stride, eager_stride in zip(
                value.shape, value.strides, spec.strides, strict=True
            )
        )
        if name in copied:
            free = is_same_layout and self.wrapped.is_free(node, value, name)
            return value if free else self.b.copy(value, spec)
        return value if is_same_layout else self.b.copy(value, spec)

    def _descriptors(self, metadata: Mapping[str, Any]) -> tuple[tuple[str, Arg], ...]:
        descriptors: list[tuple[str, Arg]] = []
        for name, (kind, rest) in metadata.items():
            block = self.b.symbols.sizes(rest[0]) if kind == "stable" else ()
            if not block or not all(isinstance(n, Const) for n in block):
                raise self.b.unsupported(
                    "GY-LOWER-013",
                    f"the Triton kernel takes a descriptor {name!r} of an unsupported kind",
                    help="use `TensorDescriptor.from_tensor` with a block of constant size; the "
                    "graph runs in eager mode",
                )
            sizes = tuple(Literal(n.value) for n in block if isinstance(n, Const))
            descriptors.append((name, ListArg(sizes)))
        return tuple(descriptors)
