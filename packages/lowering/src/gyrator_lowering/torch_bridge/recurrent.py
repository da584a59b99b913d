"""`gyrator::lstm_layer`: a layer of an LSTM in one direction by oneDNN, with what the gradients,
`aten::mkldnn_rnn_layer_backward`, need.

ATen's op keeps that only where autograd is enabled, which it is not while programs run, and its
fake kernel says that it keeps nothing.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.utils._python_dispatch import _disable_current_modes

from gyrator_ir.types import HOST

SCHEMA = (
    "lstm_layer(Tensor input, Tensor[] weights, Tensor h, Tensor c, bool reverse) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
LSTM = 2
"""The mode of an LSTM among those of ATen's op."""


def four(weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the four weights that ATen's op is called with; it reads no biases where a layer has
    none."""
    return (*weights, *weights)[:4]


def lstm_layer(
    x: Tensor, weights: Sequence[Tensor], h: Tensor, c: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the results of all steps, the last states, and the workspace of the gradients.

    Args:
        x: the input, of shape (steps, batch, features), contiguous.
        weights: those of the input and of the state, and perhaps their biases.
        h: the first hidden state, of shape (batch, hidden size), contiguous.
        c: the first cell state.
        reverse: whether the last step comes first.
    """
    below: Any = torch._C._AutoDispatchBelowAutograd
    with below(), torch.enable_grad():
        results: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.aten.mkldnn_rnn_layer.default(
            x, *four(weights), h, c, reverse, [], LSTM, h.shape[1], 1, len(weights) > 2,
            False, False, True,
        )  # fmt: skip
    return results


def fake_lstm_layer(
    x: Tensor, weights: Sequence[Tensor], h: Tensor, c: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return fake results of `lstm_layer`."""
    steps, batch, features = x.shape
    sizes: list[Any] = [steps, batch, features, h.shape[1]]
    symbols = [n for n in sizes if not is_concrete_int(n)]
    size: Any
    if symbols:
        # Dynamo's setting for results of unknown sizes is about what users see of them.
        size = symbols[0].node.shape_env.create_unbacked_symint()
        check: Any = torch._check
        check(size >= 0)
    else:
        size = _workspace(*map(int, sizes), len(weights), x.dtype)
    y = x.new_empty(steps, batch, h.shape[1])
    return y, torch.empty_like(h), torch.empty_like(c), x.new_empty(size, dtype=torch.uint8)


@functools.lru_cache(maxsize=64)
def _workspace(
    steps: int, batch: int, features: int, hidden: int, weights: int, dtype: torch.dtype
) -> int:
    """Return the bytes of a workspace. Only oneDNN knows them, from running a layer."""
    with _disable_current_modes(), torch.inference_mode(False):
        make = functools.partial(torch.zeros, dtype=dtype, device=HOST)
        sizes = ((4 * hidden, features), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,))
        parameters = [make(shape) for shape in sizes[:weights]]
        state = make((batch, hidden))
        x = make((steps, batch, features))
        return lstm_layer(x, parameters, state, state, False)[3].numel()
