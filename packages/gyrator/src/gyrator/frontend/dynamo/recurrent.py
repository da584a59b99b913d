"""Training of LSTMs on the CPU.

If anything is differentiated, torch traces an LSTM step by step, or, for an input that needs no
gradient, as oneDNN's op in its inference form, and the backward pass then lacks values that this
form does not save. Here a long one becomes calls of oneDNN, a layer each, where eager mode calls
it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
_SELECT = "select_one_layer_lstm_function"
_BY_TORCH = getattr(decompositions, _SELECT)


@contextmanager
def differentiable(gm: GraphModule, inputs: Sequence[Any]) -> Iterator[None]:
    """Make torch trace the LSTMs of a Dynamo graph, if they are differentiated, as calls of oneDNN
    with gradients, or step by step; other graphs are not affected."""
    grads = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )
    if not grads or all(name_of(n) != "lstm" for n in nodes_of(gm)):
        yield
        return
    register_ops()
    setattr(decompositions, _SELECT, _layer)
    try:
        yield
    finally:
        setattr(decompositions, _SELECT, _BY_TORCH)


def _layer(x: Tensor, states: Sequence[Tensor], params: Sequence[Sequence[Tensor]]) -> Any:
    """Return the function that computes a layer in one direction."""
    tensors = [x, *states, *chain.from_iterable(params)]
    called = (
        torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled(HOST)
        and all(t.device.type == HOST and t.dtype is torch.float32 for t in tensors)
        and states[0].shape[2] == states[1].shape[2]
        and x.shape[1] > 0
        and x.shape[0] >= _STEPS
    )
    return _called if called else decompositions.one_layer_lstm


def _called(
    x: Tensor,
    states: tuple[Tensor, Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    h, c = (s.contiguous() for s in states)
    apply: Any = _Layer.apply
    y, h, c = apply(x.contiguous(), h, c, reverse, *params)
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
