"""What a model of the suite is."""

from collections.abc import Callable, Mapping

import torch
from attrs import field, frozen
from torch import Generator, Tensor, nn

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Element types of cells."""

Inputs = Callable[[Generator, int], tuple[Tensor, ...]]
"""`inputs(generator, n)`: fresh random arguments, the first dimension of each being `n` or not."""


@frozen
class Model:
    """A small model with random weights, and how to feed it."""

    name: str
    family: str
    """One of the families of operations: what the model is here for."""
    build: Callable[[], nn.Module]
    inputs: Inputs
    size: int = 4
    """The size that static cells run at."""
    sizes: tuple[int, ...] = (3, 5, 8)
    """The sizes that dynamic cells run at, all by one compiled program."""
    trains: bool = True
    """Whether there is something to differentiate."""
    dtypes: tuple[torch.dtype, ...] = FLOATS
    """Element types in which eager execution on the CPU has all of its operations."""
    options: Mapping[str, bool] = field(factory=dict)
    """Options of the compiler that the comparison needs."""


class Function(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> object:
        """Call the function."""
        return self.function(*args)


def images(channels: int, side: int) -> Inputs:
    """Return inputs `float[n, channels, side, side]`."""
    return floats(channels, side, side)


def floats(*shape: int) -> Inputs:
    """Return inputs `float[n, *shape]`, standard normal."""
    return lambda g, n: (torch.randn(n, *shape, generator=g),)


def tokens(vocabulary: int, length: int) -> Inputs:
    """Return inputs `int64[n, length]` below `vocabulary`."""
    return lambda g, n: (torch.randint(0, vocabulary, (n, length), generator=g),)


def also(*makers: Inputs) -> Inputs:
    """Return the inputs of several makers, one after the other."""
    return lambda g, n: tuple(t for make in makers for t in make(g, n))
