"""Recurrent networks, where torch's decompositions are not what eager mode computes.

If anything is differentiated, torch traces an LSTM step by step, or, for an input that needs no
gradient, as oneDNN's op in its inference form, and the backward pass then lacks values that this
form does not save. Here a long one becomes calls of oneDNN, a layer each, where eager mode calls
it; under autocast one of any length does, as that op alone is in autocast's list.

Between layers, torch's decompositions leave dropout out, and in torch 2.11 the last states of an
LSTM have an axis too many.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch.fx import GraphModule

from gyrator.frontend.dynamo.graph import name_of, nodes_of
from gyrator_ir.types import HOST
from gyrator_lowering.torch_bridge.random_ops import register_ops
from gyrator_lowering.torch_bridge.recurrent import LSTM, four

_STEPS = 32
"""Steps from which on calls are used: kernels of fewer steps were measured to be faster."""
_NETWORKS = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_SELECT, _LAYERS = "select_one_layer_lstm_function", "_rnn_helper"
_STEPWISE = "one_layer_lstm"


@contextmanager
def networks(gm: GraphModule, inputs: Sequence[Any]) -> Iterator[None]:
    """Make torch trace the recurrent networks of a Dynamo graph with dropout between layers, and
    LSTMs, if they are differentiated, as calls of oneDNN with gradients, or step by step; other
    graphs are not affected."""
    names = _NETWORKS.intersection(map(name_of, nodes_of(gm)))
    if not names:
        yield
        return
    ours: dict[str, Any] = {
        _LAYERS: partial(_with_dropout, getattr(decompositions, _LAYERS)),
        _STEPWISE: partial(_step_by_step, getattr(decompositions, _STEPWISE)),
    }
    grads = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )
    if grads and "lstm" in names:
        register_ops()
        ours[_SELECT] = _layer
    originals = {name: getattr(decompositions, name) for name in ours}
    try:
        for name, function in ours.items():
            setattr(decompositions, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(decompositions, name, function)


def _with_dropout(
    layers: Callable[..., Any],
    x: Tensor,
    hidden: Any,
    params: Any,
    has_biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer: Callable[..., Any],
) -> Any:
    """Trace the layers of a network, of which all but the first read their input through a
    dropout."""
    before: Any = None
    dropped: Any = None

    def dropping(x: Tensor, *args: Any, **options: Any) -> Any:
        nonlocal before, dropped
        if x is not before:  # both directions read the same
            dropped = x if before is None else torch.dropout(x, dropout, train=True)
            before = x
        return layer(dropped, *args, **options)

    run = dropping if train and dropout else layer
    return layers(x, hidden, params, has_biases, count, 0.0, train, bidirectional, batch_first, run)


def _step_by_step(
    layer: Callable[..., Any], x: Tensor, states: Sequence[Tensor], *args: Any, **options: Any
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Trace a layer of an LSTM in one direction, whose last states have the axes of the first."""
    y, last = layer(x, states, *args, **options)
    pairs = zip(last, states, strict=True)
    return y, tuple(t.squeeze(0) if t.dim() > s.dim() else t for t, s in pairs)


def _layer(x: Tensor, states: Sequence[Tensor], params: Sequence[Sequence[Tensor]]) -> Any:
    """Return the function that computes a layer in one direction."""
    tensors = [x, *states, *chain.from_iterable(params)]
    called = (
        torch._C._get_mkldnn_enabled()
        and all(t.device.type == HOST for t in tensors)
        and states[0].shape[2] == states[1].shape[2]
        and x.numel() > 0
    )
    if called and torch.is_autocast_enabled(HOST) and _is_cast(x):
        return partial(_called, torch.get_autocast_dtype(HOST))
    floats = all(t.dtype is torch.float32 for t in tensors)
    if called and floats and x.shape[0] >= _STEPS:
        return partial(_called, torch.float32)
    return decompositions.one_layer_lstm


def _is_cast(x: Tensor) -> bool:
    """Return whether eager mode calls oneDNN, and thereby casts, for an input under autocast."""
    return x.dtype is torch.float32 or (
        x.dtype is torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _called(
    dtype: torch.dtype,
    x: Tensor,
    states: tuple[Tensor, Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    apply: Any = _Layer.apply
    x, h, c, *weights = (t.to(dtype) for t in (x, *states, *params))
    y, h, c = apply(x.contiguous(), h.contiguous(), c.contiguous(), reverse, *weights)
    return y, (h, c)


class _Layer(torch.autograd.Function):
    """A layer of an LSTM in one direction, by oneDNN."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, reverse: bool, *params: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the results of all steps and the last states."""
        y, hy, cy, workspace = torch.ops.gyrator.lstm_layer.default(x, params, h, c, reverse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, h, c, y, hy, cy, workspace, *params)
        ctx.reverse = reverse
        return y, hy, cy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments."""
        x, h, c, y, hy, cy, workspace, *params = ctx.saved_tensors
        # The gradients of both biases share memory.
        dx, dw, dv, db, _, dh, dc = torch.ops.aten.mkldnn_rnn_layer_backward.default(
            x, *four(params), h, c, y, hy, cy, *grads, ctx.reverse, LSTM, h.shape[1], 1,
            len(params) > 2, True, False, [], False, workspace,
        )  # fmt: skip
        return dx, dh, dc, None, *(dw, dv, db, db)[: len(params)]
