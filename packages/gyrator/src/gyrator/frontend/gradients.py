"""Gradients whose values are not those in memory: conjugated, negated and zero tensors."""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from gyrator.graphs.compiled import Boxed, boxed
from gyrator_runtime.host.outside import copy_with_strides


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether the tensor's values differ from its memory: it is conjugated, negated or a zero
    tensor."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def is_batched(value: Any) -> bool:
    """Whether a tensor is wrapped by `vmap` or another function transform."""
    if not isinstance(value, torch.Tensor):
        return False
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(value) or functorch.is_functorch_wrapped_tensor(value)


def compiles_autograd() -> bool:
    """Whether compiled autograd will run the backward passes of functions called here."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    enabled = module is not None and module.compiled_autograd_enabled
    return bool(enabled or torch._dynamo.config.compiled_autograd)


def with_flags(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return an equal tensor, with the same strides, and with the conjugate and negative bits of
    `like`."""
    plain = tensor.resolve_conj().resolve_neg()
    if tensor._is_zerotensor():
        plain = plain.clone()
    if like.is_neg():
        plain = plain.neg()
    if like.is_conj():
        plain = plain.conj_physical()
    if plain.stride() != tensor.stride() and 0 not in tensor.stride():
        plain = copy_with_strides(plain, tensor.stride())
    plain = torch._neg_view(plain) if like.is_neg() else plain
    return plain.conj() if like.is_conj() else plain


def resolving(run: Boxed, graph: torch.fx.GraphModule) -> Boxed:
    """Convert the tangents of a backward program to the conjugate and negative bits that it was
    compiled for."""
    tangents = [
        (index, node.meta["val"])
        for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))
        if "tangents" in str(node.target) and isinstance(node.meta.get("val"), torch.Tensor)
    ]

    @boxed
    def call(args: list[Any]) -> Sequence[Any]:
        for index, val in tangents:
            tangent = args[index]  # None for the token that keeps ops with effects in order
            if tangent is not None and (is_lazy(tangent) or is_lazy(val)):
                args[index] = with_flags(tangent, val)
        return run(args)

    return call


def within_bases(run: Boxed, graph: torch.fx.GraphModule) -> Boxed:
    """Cut the bases that AOTAutograd makes of inputs that share memory to what was traced: a fake
    storage ends where the inputs end, a real one may be longer."""
    from torch._functorch._aot_autograd.descriptors import SyntheticBaseAOTInput

    sizes = {
        index: node.meta["val"].shape[0]
        for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))
        if isinstance(node.meta.get("desc"), SyntheticBaseAOTInput)
    }
    if not sizes:
        return run

    @boxed
    def call(args: list[Any]) -> Sequence[Any]:
        for index, size in sizes.items():
            if isinstance(size, int):
                args[index] = args[index][:size]
        return run(args)

    return call
