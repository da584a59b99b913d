"""Fake kernels of ATen's operations that PyTorch has none for, so that programs with them trace."""

import functools
from typing import Any

import torch
from torch import Tensor

_GATES = 3
_SAVED = 5
"""Values for each element of the hidden state that the backward pass of a cell needs."""


@functools.cache
def register_fake_kernels() -> Any:
    """Register the kernels that are missing, and return their library, which the cache keeps alive.

    `nn.GRUCell` calls `_thnn_fused_gru_cell` on GPUs.
    """
    make: Any = torch.library.Library
    library = make("aten", "IMPL", "Meta")
    for kernel in (_thnn_fused_gru_cell, _thnn_fused_gru_cell_backward):
        name = kernel.__name__
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, kernel)
    return library


def _thnn_fused_gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the next hidden state, of shape (rows, n), and what is saved, of (rows, 5 * n)."""
    rows, n = hx.shape
    if not input_gates.shape == hidden_gates.shape == (rows, _GATES * n):
        raise RuntimeError(f"the gates must have the shape ({rows}, {_GATES * n})")
    return hx.new_empty(rows, n), hx.new_empty(rows, _SAVED * n)


def _thnn_fused_gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of both gates, of the hidden state, and of both biases."""
    rows, n = grad_hy.shape
    gates = [workspace.new_empty(rows, _GATES * n) for _ in range(2)]
    biases = [workspace.new_empty(_GATES * n) if has_bias else None for _ in range(2)]
    return gates[0], gates[1], grad_hy.new_empty(rows, n), biases[0], biases[1]
