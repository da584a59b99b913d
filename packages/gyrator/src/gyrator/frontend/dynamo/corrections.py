"""Rewrites of calls and annotations that torch's fake kernels get wrong."""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from gyrator.frontend.dynamo.graph import fake_of, name_of, nodes_of
from gyrator_ir.types import HOST

_AXES = {"unique_consecutive": 3, "norm": 2, "linalg_norm": 2, "linalg_vector_norm": 2}
"""The position of `dim` among each function's arguments."""


def normalize_axes(gm: GraphModule) -> None:
    """Make negative axes positive, in place, for functions whose fake kernels misread them, in the
    bodies of higher-order ops too.

    For the axis -1, the fake kernel of `unique_consecutive` returns too many axes, and those of
    norms in torch 2.11 keep an axis of size 1.
    """
    for node in nodes_of(gm):
        index = _AXES.get(name_of(node)) if node.op.startswith("call_") else None
        if index is None:
            continue
        positional = len(node.args) > index
        axes: Any = node.args[index] if positional else node.kwargs.get("dim")
        x = fake_of(node.args[0]) if node.args else None
        if not isinstance(x, torch.Tensor) or axes is None or not x.dim():
            continue
        # Converting a symbolic axis to an integer specialises it by a guard, as the fake kernel
        # does.
        several = isinstance(axes, list | tuple)
        dims = [int(fake_of(d)) % x.dim() for d in (axes if several else (axes,))]
        if positional:
            node.update_arg(index, dims if several else dims[0])
        else:
            node.update_kwarg("dim", dims if several else dims[0])


def name_complex_dtypes(gm: GraphModule) -> None:
    """Name the dtype of evenly spaced numbers, in place, where an end is a complex tensor: the
    fake kernels take the default dtype."""
    for node in nodes_of(gm):
        if name_of(node) not in ("linspace", "logspace") or node.kwargs.get("dtype") is not None:
            continue
        ends = [*node.args[:2], node.kwargs.get("start"), node.kwargs.get("end")]
        fakes = [f for f in map(fake_of, ends) if isinstance(f, torch.Tensor)]
        if "out" not in node.kwargs and any(f.is_complex() for f in fakes):
            default = torch.get_default_dtype()
            node.update_kwarg("dtype", torch.promote_types(default, torch.complex32))


def keep_booleans(gm: GraphModule) -> None:
    """Replace powers of boolean tensors by booleans, in place, by `x | (not exponent)`: eager's are
    booleans, those of the fake kernels integers."""
    for node in nodes_of(gm):
        if name_of(node) not in ("pow", "__pow__") or "out" in node.kwargs:
            continue
        named = {**dict(zip(("input", "exponent"), node.args, strict=False)), **node.kwargs}
        x, exponent = named.get("input"), named.get("exponent")
        fake = fake_of(x)
        if isinstance(fake, torch.Tensor) and fake.dtype is torch.bool and type(exponent) is bool:
            node.op, node.target = "call_function", operator.or_
            node.args, node.kwargs = (x, not exponent), {}


def join_quantisation(gm: GraphModule) -> None:
    """Replace calls that quantise a tensor, and turn it into floats again, by a single call, in
    place: the fake kernels say that the quantised tensor is one of floats. No gradient passes."""
    for body in (m for m in gm.modules() if isinstance(m, GraphModule)):
        calls = body.graph.find_nodes(op="call_function", target=torch.quantize_per_tensor)
        joined = [node for node in calls if _is_dequantised(node)]
        for node in joined:
            _join(node)
        if joined:
            body.recompile()


def _is_dequantised(node: Node) -> bool:
    x, *numbers = _quantising_arguments(node)
    floats = isinstance(fake_of(x), torch.Tensor) and fake_of(x).dtype is torch.float32
    known = not any(isinstance(fake_of(n), torch.Tensor) for n in numbers)
    return floats and known and {name_of(user) for user in node.users} == {"dequantize"}


def _quantising_arguments(node: Node) -> tuple[Any, ...]:
    names = ("input", "scale", "zero_point", "dtype")
    named = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return tuple(named.get(name) for name in names)


def _join(node: Node) -> None:
    from gyrator_lowering.torch_bridge.random_ops import register_ops  # rarely used

    register_ops()
    op = torch.ops.gyrator.quantize_dequantize
    x, *numbers = _quantising_arguments(node)
    for user in list(node.users):
        with node.graph.inserting_before(node):  # a user may come after writes to `x`
            constant = node.graph.call_method("detach", (x,))
            joined = node.graph.call_function(op, (constant, *numbers))
        constant.meta = {**node.meta, "example_value": fake_of(x)}
        joined.meta = dict(user.meta)  # `eager_strides` corrects the strides
        user.replace_all_uses_with(joined)
        node.graph.erase_node(user)
    node.graph.erase_node(node)


_DROPOUTS = (torch.dropout, torch.nn.functional.dropout)


def share_memory(gm: GraphModule) -> None:
    """Let results share memory with arguments, in place, where eager's do and those of the fake
    kernels are copies: of `dropout` that drops nothing; outside of the host, where
    `channel_shuffle` is made of other ops, of one that moves nothing.

    So it is in the bodies of checkpoints, which become part of the graph. Those of other
    higher-order ops stay as they are: some must not return their arguments.
    """
    for body in _checkpointed(gm):
        _share_memory(body)


def _checkpointed(gm: GraphModule) -> Iterator[GraphModule]:
    """Yield a graph and the bodies of its checkpoints."""
    yield gm
    op = torch.ops.higher_order.tag_activation_checkpoint
    for node in gm.graph.find_nodes(op="call_function", target=op):
        name = getattr(node.args[0], "target", None)
        body = getattr(gm, name, None) if isinstance(name, str) else None
        if isinstance(body, GraphModule):
            yield from _checkpointed(body)


def _share_memory(gm: GraphModule) -> None:
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    copied = [node for node in calls if _drops_nothing(node) or _moves_nothing(node)]
    for node in copied:
        same: Any = node.args[0]
        if node.target is torch.channel_shuffle:
            with gm.graph.inserting_before(node):
                dense = gm.graph.call_method("contiguous", (same,))
                same = gm.graph.call_method("view_as", (dense, same))
            dense.meta, same.meta = dict(node.meta), dict(node.meta)
        node.replace_all_uses_with(same)
        gm.graph.erase_node(node)
    if copied:
        gm.recompile()


def _drops_nothing(node: Node) -> bool:
    if node.target not in _DROPOUTS or not node.args:
        return False
    p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    name = "train" if node.target is torch.dropout else "training"
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get(name, True)
    return training is False or (isinstance(p, int | float) and p == 0)


def _moves_nothing(node: Node) -> bool:
    if node.target is not torch.channel_shuffle or not node.args:
        return False
    x = fake_of(node.args[0])
    groups: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("groups")
    if not isinstance(x, torch.Tensor) or x.device.type == HOST or not isinstance(groups, int):
        return False
    # Comparing a symbolic size would add a guard.
    return groups == 1 or (isinstance(x.shape[1], int) and groups == x.shape[1])


def correct_attention_sums(joint: GraphModule) -> None:
    """Annotate the saved row sums of `f64` attention on the CPU as `f64`, in place.

    The fake kernel of torch 2.11 returns them as `f32`, which the backward kernel rejects.
    """
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    for node in joint.graph.find_nodes(op="call_function", target=op):
        result, sums, *rest = node.meta["val"]
        if result.dtype is sums.dtype or result.dtype is not torch.float64:
            continue
        with sums.fake_mode:
            exact = torch.empty_like(sums, dtype=result.dtype)
        node.meta["val"] = (result, exact, *rest)
        for user in node.users:
            if user.target is operator.getitem and user.args[1] == 1:
                user.meta["val"] = exact
