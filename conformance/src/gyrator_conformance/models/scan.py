"""Recurrences."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator_conformance.models.model import Model, floats


def scan_models() -> tuple[Model, ...]:
    """Return the models whose heart is a recurrence along a dimension."""
    steps = floats(5, 8)
    return (
        Model("mamba", "scan", Mamba, steps),
        Model("lstm", "scan", Lstm, steps),
        Model("gru", "scan", Gru, steps),
        Model("cumulative", "scan", Cumulative, steps),
    )


class Mamba(nn.Module):
    """A selective state space: the state decays by what the input says."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rate = nn.Linear(8, 16), nn.Linear(8, 8)
        self.pair = nn.Linear(8, 8)
        self.conv = nn.Conv1d(8, 8, 3, groups=8)
        self.decay = nn.Parameter(torch.rand(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return a sequence of the shape of `x` (n, length, 8)."""
        value, gate = self.enter(x).chunk(2, -1)
        value = F.silu(self.conv(F.pad(value.transpose(1, 2), (2, 0)))).transpose(1, 2)
        step = F.softplus(self.rate(value))
        write, read = self.pair(value).chunk(2, -1)
        keep = torch.exp(-step.unsqueeze(-1) * self.decay)
        added = (step * value).unsqueeze(-1) * write.unsqueeze(2)
        state = torch.zeros_like(added[:, 0])
        outputs = []
        for k in range(x.shape[1]):
            state = keep[:, k] * state + added[:, k]
            outputs.append((state * read[:, k].unsqueeze(1)).sum(-1))
        return torch.stack(outputs, 1) * F.silu(gate)


class Lstm(nn.Module):
    """A cell of long short-term memory, unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden and cell states for `x` (n, length, 8)."""
        hidden = x.new_zeros(x.shape[0], 6)
        cell = torch.zeros_like(hidden)
        for step in x.unbind(1):
            hidden, cell = self.cell(step, (hidden, cell))
        return hidden, cell


class Gru(nn.Module):
    """Two layers of gated recurrent units, unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GRUCell(8, 6), nn.GRUCell(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return the second layer's states (n, length, 6)."""
        low = x.new_zeros(x.shape[0], 6)
        high, outputs = torch.zeros_like(low), []
        for step in x.unbind(1):
            low = self.first(step, low)
            high = self.second(low, high)
            outputs.append(high)
        return torch.stack(outputs, 1)


class Cumulative(nn.Module):
    """Running sums, products, maxima and log-sums along a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return four sequences of the shape of `x`."""
        y = self.linear(x)
        return (
            *(y.cumsum(1), torch.sigmoid(y).cumprod(2)),
            *(y.cummax(1).values, torch.logcumsumexp(y.float(), 1)),
        )
