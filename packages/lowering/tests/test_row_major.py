"""Tensors whose rows are reduced become row-major."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import GraphModule

from gyrator_lowering.fx_passes import RowMajor

aten = torch.ops.aten


def blocks(x: torch.Tensor, position: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Two residual blocks over the pixels of `x`."""
    tokens = F.gelu(x).permute(0, 2, 1) + position
    for _ in range(2):
        tokens = tokens + F.linear(F.layer_norm(tokens, tokens.shape[-1:]), weight)
    return F.layer_norm(tokens, tokens.shape[-1:])


def softmax(x: torch.Tensor, position: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.softmax((x.transpose(1, 2) * 2 + position).relu(), -1) @ weight


def shown(x: torch.Tensor, position: torch.Tensor, weight: torch.Tensor) -> Any:
    """The transposed tensor is a result too."""
    tokens = x.permute(0, 2, 1) + position
    return tokens, F.layer_norm(tokens, tokens.shape[-1:])


def columns(x: torch.Tensor, position: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x.permute(0, 2, 1) + position).sum(1) @ weight


def inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 8, 5), torch.randn(5, 8), torch.randn(8, 8)


def transposed(gm: GraphModule) -> list[str]:
    """The sums whose rows are not contiguous."""
    sums = [n for n in gm.graph.nodes if n.target is aten.add.Tensor]
    return [n.name for n in sums if n.meta["val"].dim() == 3 and n.meta["val"].stride(-1) != 1]


@pytest.mark.parametrize("run", [blocks, softmax])
def test_what_is_reduced_is_row_major(check: Any, run: Any) -> None:
    values = inputs()
    gm = check.trace(run, values)
    assert transposed(gm)
    assert RowMajor().run(gm)
    assert not transposed(gm)
    gm.recompile()
    torch.testing.assert_close(gm(*values), [run(*values)])
    check.gradients(run, *values, externs=("aten.mm.default",))


@pytest.mark.parametrize("run", [shown, columns])
def test_results_and_sums_of_columns_are_unchanged(check: Any, run: Any) -> None:
    gm = check.trace(run, inputs())
    assert transposed(gm)
    assert not RowMajor().run(gm)
    assert transposed(gm)
