"""The op that computes a layer of an LSTM for training."""

from typing import Any

import pytest
import torch
from torch import nn

from gyrator_lowering.torch_bridge.random_ops import register_ops


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_layer_of_an_lstm_and_its_fake_kernel(bias: bool, reverse: bool) -> None:
    """`torch.library.opcheck` compares sizes and strides, those of the workspace among them."""
    register_ops()
    op: Any = torch.ops.gyrator.lstm_layer.default
    model = nn.LSTM(7, 13, bias=bias)
    weights = [p.detach() for p in model.parameters()]
    x, h, c = torch.randn(5, 3, 7), torch.randn(1, 3, 13), torch.randn(1, 3, 13)
    args = (x, weights, h[0], c[0], reverse)
    with torch.no_grad():
        expected, _ = model(x.flip(0) if reverse else x, (h, c))
        result, *_, workspace = op(*args)
    torch.testing.assert_close(result, expected.flip(0) if reverse else expected)
    assert workspace.numel()
    torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))
