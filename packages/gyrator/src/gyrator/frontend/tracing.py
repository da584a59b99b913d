"""What PyTorch's tracer lacks: fake kernels of some operations, powers of sizes, and convolutions
that do not restrict the batch size."""

import functools
import operator
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
_CONVOLUTIONS = (
    aten.convolution.default,
    aten._convolution.default,
    aten.convolution_backward.default,
)
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


def trace_powers() -> None:
    """Let PyTorch's tracer compute powers of sizes.

    Views of a graph's inputs need strides that no value of the graph has, as that of a new first
    axis. The tracer builds them by a table of functions, which has none for powers: the stride s**2
    of a view of a square matrix ended the trace.
    """
    from torch.fx.experimental import proxy_tensor
    from torch.utils._sympy.interp import handlers

    functions = getattr(proxy_tensor, "_sympy_handlers", None)  # which not every release has
    if functions is not None:
        for kind, name in handlers().items():
            if name == "pow_by_natural":
                functions().setdefault(kind, operator.pow)


@contextmanager
def unguarded_convolutions(mode: FakeTensorMode) -> Iterator[None]:
    """Call the fake kernels of convolutions without recording guards for the duration of the block.

    They compare the batch size with bounds of ATen's libraries, to predict the memory format of the
    result. Programs check and correct the strides of results, so they are valid for all sizes.

    The mode itself is changed, because other dispatch modes are disabled while the branches of a
    `torch.cond` and the bodies of loops are traced.
    """
    environment, dispatch = mode.shape_env, mode.dispatch
    if environment is None:
        yield
        return

    def unguarded(func: Any, *args: Any) -> Any:
        with environment.suppress_guards() if func in _CONVOLUTIONS else nullcontext():
            return dispatch(func, *args)

    mode.dispatch = unguarded  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del mode.dispatch
