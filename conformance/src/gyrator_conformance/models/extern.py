"""Operations that stay calls: transforms, solvers, and operators of a user's own."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from gyrator_conformance.models.model import Model, floats, images

LIBRARY = "gyrator_conformance"


def extern_models() -> tuple[Model, ...]:
    """Return the models whose heart is a library's call."""
    wide = (torch.float32,)
    return (
        Model("fourier-mixer", "extern", FourierMixer, floats(8, 6), dtypes=wide),
        Model("spectral-conv", "extern", SpectralConv, images(3, 8), dtypes=wide),
        Model("least-squares", "extern", LeastSquares, floats(6, 4), dtypes=wide),
        Model("custom-op", "extern", CustomOp, floats(10)),
    )


class FourierMixer(nn.Module):
    """FNet: the real part of a two-dimensional transform."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x` (n, 8, 6)."""
        x = self.norm(x + torch.fft.fft2(x).real)
        mixed: Tensor = self.linear(x)
        return x + torch.relu(mixed)


class SpectralConv(nn.Module):
    """A Fourier neural operator's layer: products of complex weights at low frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.real = nn.Parameter(torch.randn(3, 4, 3))
        self.imaginary = nn.Parameter(torch.randn(3, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return images of the shape of `x` (n, 3, 8, 8)."""
        spectrum = torch.fft.rfft2(x)[:, :, :4, :3]
        mixed = spectrum * torch.complex(self.real, self.imaginary)
        return torch.fft.irfft2(mixed, s=(8, 8))


class LeastSquares(nn.Module):
    """Ridge regression in closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Parameter(torch.randn(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Return weights (n, 4, 2) that map `x` (n, 6, 4) to the target."""
        gram = x.mT @ x + torch.eye(4, device=x.device, dtype=x.dtype)
        return torch.linalg.solve(gram, x.mT @ self.target)


@functools.cache
def register_ops() -> Any:
    """Define the suite's own operator with the dispatcher, once a process."""
    library = torch.library.Library(LIBRARY, "FRAGMENT")
    library.define("smooth_abs(Tensor x, float bend) -> Tensor")
    library.impl("smooth_abs", _smooth_abs, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"{LIBRARY}::smooth_abs", lambda x, bend: torch.empty_like(x), lib=library
    )
    torch.library.register_autograd(
        f"{LIBRARY}::smooth_abs", _backward, setup_context=_save, lib=library
    )
    return library


def _smooth_abs(x: Tensor, bend: float) -> Tensor:
    return (x * x + bend * bend).sqrt()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    x, y = ctx.saved_tensors
    return gradient * x / y, None


class CustomOp(nn.Module):
    """An operator that a user registered, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        register_ops()
        self.first, self.second = nn.Linear(10, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, 6)."""
        bent = torch.ops.gyrator_conformance.smooth_abs(self.first(x), 0.5)
        out: Tensor = self.second(bent * 2)
        return out
