"""Layers whose work is shared out over the processes of a group: here, one process."""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn

from gyrator_conformance.models.model import Model, floats

HOST_GROUP = "gloo"
"""What carries messages from the host's memory."""


def collective_models() -> tuple[Model, ...]:
    """Return the models that talk to other processes.

    Empty where this torch has no process groups.
    """
    if not dist.is_available():
        return ()
    return (
        Model("tensor-parallel-mlp", "collective", TensorParallelMLP, floats(4, 6)),
        Model("synced-batch-norm", "collective", SyncedNorm, floats(6, 5), trains=False),
        Model("expert-exchange", "collective", ExpertExchange, floats(8)),
    )


def start_group(backend: str) -> None:
    """Make a group of this process alone, in the place of any that it has.

    `backend` is what `torch.distributed.init_process_group` takes, such as `gloo`.
    """
    torch_dist: Any = dist  # which does not tell type checkers of its stores
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(backend, store=torch_dist.HashStore(), rank=0, world_size=1)


def group_name() -> Any:
    """Return the name of the process's group; without one, make one for the host's memory."""
    if not dist.is_initialized():
        start_group(HOST_GROUP)
    assert dist.group.WORLD is not None
    return dist.group.WORLD.group_name


class TensorParallelMLP(nn.Module):
    """Megatron's feed-forward with sequence parallelism: gather, two layers, reduce and scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.group = group_name()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x` (n, 4, 6), whose first dimension is shared out."""
        whole = collectives.all_gather_tensor_autograd(x, 0, self.group)
        part = self.down(torch.nn.functional.gelu(self.up(whole)))
        shared: Tensor = collectives.reduce_scatter_tensor_autograd(part, "sum", 0, self.group)
        return x + shared


class SyncedNorm(nn.Module):
    """Batch norm whose statistics are those of all processes, and are kept in buffers."""

    mean: Tensor
    square: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.group = group_name()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("square", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised features of the shape of `x` (n, 6, 5)."""
        mean, square = x.mean((0, 1)), x.square().mean((0, 1))
        # Both are on their way before either is waited for.
        mean = collectives.all_reduce(mean, "avg", self.group)
        square = collectives.all_reduce(square, "max", self.group)
        self.mean.lerp_(mean, 0.1)
        self.square.lerp_(square, 0.1)
        return (x - mean) * torch.rsqrt(square - mean * mean + 1e-3)


class ExpertExchange(nn.Module):
    """Experts on several processes: tokens travel there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.group = group_name()
        self.gate, self.expert = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x` (n, 8)."""
        exchanged = collectives.all_to_all_single_autograd(x, None, None, self.group)
        worked = torch.relu(self.expert(exchanged))
        back: Tensor = collectives.all_to_all_single_autograd(worked, None, None, self.group)
        return torch.sigmoid(self.gate(x)) * back
