"""Multilayer perceptrons, activations, and steps of optimisers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Function, Model, also, floats


def pointwise_models() -> tuple[Model, ...]:
    """Return the models whose heart is elementwise work."""
    flat = floats(24)
    return (
        Model("mlp", "pointwise", _mlp, flat),
        Model("swiglu", "pointwise", lambda: SwiGlu(24, 40), flat),
        Model("activations", "pointwise", lambda: Function(activations), flat),
        Model("promotion", "pointwise", lambda: Function(promotion), also(flat, _counts)),
        Model("film", "pointwise", lambda: Film(12), also(floats(12, 6), floats(12))),
        Model("adamw-step", "pointwise", AdamW, flat, trains=False),
        Model("sgd-momentum-step", "pointwise", Momentum, flat, trains=False),
    )


def _counts(generator: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return (torch.randint(-5, 6, (n, 24), generator=generator),)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


class SwiGlu(nn.Module):
    """Gated linear unit of Llama's feed-forward block."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of `x`."""
        down: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return x + down


def activations(x: Tensor) -> Tensor:
    """Chain the usual activations, all of them smooth or piecewise linear.

    The gradient of the root is bounded: that of `y.abs().sqrt()` multiplies the rounding of `y`,
    whose terms cancel, by any factor.
    """
    y = F.mish(x) + F.softplus(x) - F.elu(x) * torch.tanh(x)
    y = y + F.hardswish(x) + F.leaky_relu(x, 0.1) + F.gelu(x, approximate="tanh")
    root = (y.abs() + 0.25).sqrt()
    return torch.where(x > 0, y, -root) + x.clamp(-1, 1).square() + torch.sigmoid(y)


def promotion(x: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
    """Mix element types as eager promotes them."""
    y = x * counts + counts / 3
    return y, y.float() - 0.5, (counts // 2 * 3 % 5) & 6, counts > x


class Film(nn.Module):
    """Feature-wise modulation: broadcasting over a middle dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return `x` (n, width, length), scaled and shifted by `condition` (n, width)."""
        return torch.addcmul(
            self.shift(condition).unsqueeze(-1), x, 1 + self.scale(condition).unsqueeze(-1)
        ).tanh()


class AdamW(nn.Module):
    """One step of AdamW on a weight held as a buffer; the gradient is an input."""

    weight: Tensor
    first: Tensor
    second: Tensor
    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(24))
        self.register_buffer("first", torch.zeros(24))
        self.register_buffer("second", torch.zeros(24))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, gradients: Tensor) -> Tensor:
        """Update the state in place with the mean of `gradients` (n, 24)."""
        gradient = gradients.mean(0)
        self.step.add_(1)
        step = self.step.to(gradient.dtype)
        self.weight.mul_(1 - 1e-2 * 0.1)
        self.first.lerp_(gradient, 0.1)
        self.second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        scale = (self.second / (1 - 0.99**step)).sqrt() + 1e-3
        self.weight.addcdiv_(self.first / (1 - 0.9**step), scale, value=-1e-2)
        return self.weight.clone()


class Momentum(nn.Module):
    """One step of SGD with Nesterov momentum over a list of weights."""

    a: Tensor
    b: Tensor
    va: Tensor
    vb: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("a", (24,)), ("b", (6, 4)), ("va", (24,)), ("vb", (6, 4))):
            self.register_buffer(name, torch.randn(shape))

    def forward(self, gradients: Tensor) -> Tensor:
        """Update the weights in place; return their norm after clipping the gradient's."""
        total = gradients.sum(0)
        total = total * (1 / (total.norm() + 1e-3)).clamp(max=1.0)
        states = [total, total.view(6, 4).clone()]
        weights, moments = [self.a, self.b], [self.va, self.vb]
        torch._foreach_mul_(moments, 0.9)
        torch._foreach_add_(moments, states)
        torch._foreach_add_(states, moments, alpha=0.9)
        torch._foreach_add_(weights, states, alpha=-0.05)
        return torch.stack(torch._foreach_norm(weights))
