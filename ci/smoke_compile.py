"""Compile a small model with the installed wheels, forward and backward, and compare with eager."""

import sys

import torch
from torch import nn


def main() -> int:
    """Train one step in eager mode and through Gyrator; return 1 if they differ."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x = torch.randn(8, 16)
    expected = model(x)
    expected.square().mean().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()

    compiled = torch.compile(model, backend="gyrator")  # found by its entry point: no import
    actual = compiled(x)
    actual.square().mean().backward()
    gyrator = sys.modules["gyrator"]
    assert "site-packages" in str(gyrator.__file__), f"not the wheel: {gyrator.__file__}"
    torch.testing.assert_close(actual, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    print("compiled a model, forward and backward: same numbers as eager")
    return 0


if __name__ == "__main__":
    sys.exit(main())
