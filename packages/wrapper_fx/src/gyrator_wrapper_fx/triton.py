"""Users' Triton kernels as calls of PyTorch's higher-order op for them."""

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch

from gyrator_ir.host import nodes as h
from gyrator_ir.host.print import show_instruction
from gyrator_ir.loop.nodes import UserKernel
from gyrator_ir.user_kernel import defined_last
from gyrator_wrapper_fx.errors import fx_error
from gyrator_wrapper_fx.scope import Scope


def triton_launch(scope: Scope, i: h.TritonLaunch) -> None:
    """Append the launch of a user's kernel.

    Raises FxWrapperError: GY-FX-002 without Triton, GY-FX-003 if the number of grids differs from
    the number of configurations, or if PyTorch's op cannot distinguish these.
    """
    where = show_instruction(i)[0]
    kernel = scope.context.user_kernel(i.kernel)
    values = {name: scope.value(v) for name, v in i.args}
    constants = {name: scope.value(v) for name, v in i.constants}
    tma = {
        name: _metadata(scope, scope.descriptors[v.name])
        for name, v in i.args
        if isinstance(v, h.Ref) and v.name in scope.descriptors
    }
    node = higher_order_call(
        scope.graph, kernel, tuple(scope.size.all(g) for g in i.grid), values, constants, tma, where
    )
    scope.noted(node, {})


def higher_order_call(
    graph: torch.fx.Graph,
    kernel: UserKernel,
    grids: tuple[tuple[Any, ...], ...],
    values: dict[str, Any],
    constants: dict[str, Any],
    tma: dict[str, Any],
    where: str,
) -> torch.fx.Node:
    """Append `triton_kernel_wrapper_mutation(...)`, and add the kernel to torch's kernel table.

    The indices of that table are only valid in this process.
    """
    if find_spec("triton") is None:
        raise fx_error(
            2, f"the kernel {kernel.key!r} needs Triton", where, "install the package `triton`"
        )
    wrap = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")
    table = wrap.kernel_side_table
    function = jit_function(kernel)
    count = len(getattr(function, "configs", (None,)))
    if len(grids) != count:
        raise fx_error(3, f"{len(grids)} grids for the {count} configurations of a kernel", where)
    if count > 1 and not _distinguishable(function.configs):
        raise fx_error(3, "configurations that differ in more than plain values", where)
    fixed = {k: v for k, v in constants.items() if not isinstance(v, torch.fx.Node)}
    running = {k: v for k, v in constants.items() if k not in fixed}
    return graph.call_function(
        wrap.triton_kernel_wrapper_mutation,
        kwargs={
            "kernel_idx": table.add_kernel(function),
            "constant_args_idx": table.add_constant_args({**fixed, **dict(kernel.settings)}),
            "grid": list(grids),
            "tma_descriptor_metadata": tma,
            "kwargs": {**values, **running},
        },
    )


def jit_function(kernel: UserKernel) -> Any:
    """Return the last Triton function that a kernel's text defines."""
    triton = importlib.import_module("triton")
    language = importlib.import_module("triton.language")
    function = defined_last(kernel.source, {"triton": triton, "tl": language})
    return function if hasattr(function, "arg_names") else triton.jit(function)


def _distinguishable(configurations: Sequence[Any]) -> bool:
    """Return whether PyTorch's op, which compares values as text, can choose among the grids."""
    values = [v for c in configurations for v in c.kwargs.values()]
    return all(v is None or isinstance(v, (bool, int, float, str)) for v in values)


def _metadata(scope: Scope, i: h.TmaDescriptor) -> tuple[Any, ...]:
    block = list(scope.size.all(i.block))
    if i.stable:
        return ("stable", (block,))
    shape = list(scope.size.all(i.shape))
    return ("experimental", (shape, block, scope.size(i.element_bytes)))
