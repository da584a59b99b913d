"""Launches of Triton kernels that the user wrote: PyTorch's `triton_kernel_wrapper_...` ops.

The functional one says which arguments the kernel writes: it is launched on copies of them, or in
place where nobody reads the old values. Where PyTorch cannot tell what a kernel writes it names
all tensors; where a kernel uses what PyTorch does not look at (`kernel_text.KernelText.doubtful`),
so do we: then the others are written in place, as in eager mode.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from attrs import define, field
from torch.fx import Node

from gyrator_ir.expr import ONE, Const
from gyrator_ir.loop.nodes import Arg, ListArg, Literal, UserKernel, UserTritonKernel
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.functionalized import Wrapped
from gyrator_lowering.rules.extern import argument
from gyrator_lowering.user_kernels.text import KernelText, kernel_text

NAMES = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
"""PyTorch's higher-order ops for a launch."""
_PLAIN = (bool, int, float, str, type(None))


def is_launch(target: object) -> bool:
    """Whether the target of an FX node is one of those ops."""
    higher = isinstance(target, torch._ops.HigherOrderOperator)
    return higher and getattr(target, "__name__", "") in NAMES


def launch_bytes(node: Node) -> bytes:
    """Return what the numbers stand for by which a node names its kernel and constants.

    The tables that have them belong to one process.

    Raises:
        UnsupportedError: GY-LOWER-012, for a kernel that cannot be written down.
    """
    text, constants = _looked_up(node)
    return f"{text.source}\n{sorted(constants.items())!r}".encode()


def _looked_up(node: Node) -> tuple[KernelText, dict[str, Any]]:
    """Return the kernel's text, and the constants that are arguments of the launch."""
    table = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap").kernel_side_table
    constants = table.get_constant_args(node.kwargs["constant_args_idx"])
    plain = {k: v for k, v in constants.items() if isinstance(v, _PLAIN)}
    others = {k: v for k, v in constants.items() if k not in plain}
    return kernel_text(table.get_kernel(node.kwargs["kernel_idx"]), others), plain


@define
class Launches:
    """Lowers the launches of one graph."""

    b: LoopBuilder
    wrapped: Wrapped
    kernels: dict[str, UserKernel] = field(factory=dict)

    def call(self, node: Node, kwargs: Mapping[str, Any]) -> Any:
        """Launch a kernel; return a dict of what it wrote, or None for the op that mutates.

        Raises:
            UnsupportedError: GY-LOWER-012, for a kernel that cannot be written down; GY-LOWER-013,
                for a descriptor that is not Triton's `TensorDescriptor` or not of constant size.
        """
        text, constants = _looked_up(node)
        fakes: Any = node.kwargs["kwargs"]
        copied = frozenset(kwargs.get("tensors_to_clone", ()))
        functional = "tensors_to_clone" in kwargs
        given = {k: self._given(node, k, v, fakes[k], copied) for k, v in kwargs["kwargs"].items()}
        tensors = {k: v for k, v in given.items() if isinstance(v, TensorValue)}
        every = text.doubtful or not functional
        written = [v.buffer for k, v in tensors.items() if every or k in copied]
        kernel = UserKernel(text.key, text.source, text.parameters)
        self.kernels[text.key] = kernel
        b = self.b
        b.operations.append(
            UserTritonKernel(
                b.op_name(),
                text.key,
                tuple(b.symbols.sizes(grid) for grid in kwargs["grid"]),
                tuple((k, argument(b, v)) for k, v in given.items()),
                tuple((k, Literal(v)) for k, v in constants.items()),
                tuple(dict.fromkeys(written)),
                self._descriptors(kwargs["tma_descriptor_metadata"]),
                b.origin,
            )
        )
        return {k: tensors[k] for k in tensors if k in copied} if functional else None

    def _given(self, node: Node, name: str, value: Any, fake: Any, copied: frozenset[str]) -> Any:
        """Return an argument with eager's strides, which the kernel may have been told."""
        if not isinstance(value, TensorValue):
            return value
        form: torch.Tensor = fake.meta["val"] if isinstance(fake, Node) else fake
        spec = self.b.exact_spec(form)
        alike = all(
            mine is theirs or size is ONE
            for size, mine, theirs in zip(value.shape, value.strides, spec.strides, strict=True)
        )
        if name in copied:
            free = alike and self.wrapped.is_free(node, value, name)
            return value if free else self.b.copy(value, spec)
        return value if alike else self.b.copy(value, spec)

    def _descriptors(self, metadata: Mapping[str, Any]) -> tuple[tuple[str, Arg], ...]:
        found: list[tuple[str, Arg]] = []
        for name, (kind, rest) in metadata.items():
            block = self.b.symbols.sizes(rest[0]) if kind == "stable" else ()
            if not block or not all(isinstance(n, Const) for n in block):
                raise self.b.unsupported(
                    "GY-LOWER-013",
                    f"the Triton kernel takes a descriptor {name!r} of a form that programs do "
                    "not make",
                    help="use `TensorDescriptor.from_tensor` with a block of constant size; the "
                    "graph runs in eager mode",
                )
            sizes = tuple(Literal(n.value) for n in block if isinstance(n, Const))
            found.append((name, ListArg(sizes)))
        return tuple(found)
