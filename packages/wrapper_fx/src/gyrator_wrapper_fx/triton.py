"""Users' Triton kernels as calls of PyTorch's higher-order op for them."""

import ast
import importlib
import linecache
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

import torch
from attrs import evolve

from gyrator_ir.host import nodes as h
from gyrator_ir.host.print import show_instruction
from gyrator_ir.loop.nodes import UserKernel
from gyrator_wrapper_fx.errors import fx_error
from gyrator_wrapper_fx.scope import Scope


def triton_launch(scope: Scope, i: h.TritonLaunch) -> None:
    """Append the launch of a user's kernel.

    FxWrapperError: GY-FX-002 without Triton, GY-FX-003 for grids of several configurations, of
    which the IR has no list.
    """
    if i.stream is not None:
        inner = h.WithStream(i.stream, (evolve(i, stream=None),))
        scope.context.write(scope, (inner,))
        return
    where = show_instruction(i)[0]
    if len(i.grid) != 1:
        raise fx_error(3, f"{len(i.grid)} grids for the one configuration of a kernel", where)
    kernel = scope.context.user_kernel(i.kernel)
    (grid,) = i.grid
    values = {name: scope.value(v) for name, v in i.args}
    constants = {name: scope.value(v) for name, v in i.constants}
    tma = {
        name: _metadata(scope, scope.descriptors[v.name])
        for name, v in i.args
        if isinstance(v, h.Ref) and v.name in scope.descriptors
    }
    node = higher_order_call(
        scope.graph, kernel, scope.size.all(grid), values, constants, tma, where
    )
    scope.noted(node, {})


def higher_order_call(
    graph: torch.fx.Graph,
    kernel: UserKernel,
    grid: tuple[Any, ...],
    values: dict[str, Any],
    constants: dict[str, Any],
    tma: dict[str, Any],
    where: str = "",
    name: str | None = None,
) -> torch.fx.Node:
    """Append `triton_kernel_wrapper_mutation(...)`, the kernel put into torch's table of kernels.

    The numbers in that table hold in this process only; `meta["triton"]` has what gives them.
    """
    if find_spec("triton") is None:
        raise fx_error(
            2, f"the kernel {kernel.key!r} needs Triton", where, "install the package `triton`"
        )
    wrap = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")
    table = wrap.kernel_side_table
    fixed = {k: v for k, v in constants.items() if not isinstance(v, torch.fx.Node)}
    running = {k: v for k, v in constants.items() if k not in fixed}
    node = graph.create_node(
        "call_function",
        wrap.triton_kernel_wrapper_mutation,
        name=name,
        kwargs={
            "kernel_idx": table.add_kernel(jit_function(kernel)),
            "constant_args_idx": table.add_constant_args({**fixed, **dict(kernel.settings)}),
            "grid": [grid],
            "tma_descriptor_metadata": tma,
            "kwargs": {**values, **running},
        },
    )
    node.meta["triton"] = (kernel, tuple(fixed.items()))
    return node


def jit_function(kernel: UserKernel) -> Any:
    """Return the Triton function that a kernel's text defines last.

    Its lines are put where `inspect` finds them: Triton reads the text of its functions.
    """
    triton = importlib.import_module("triton")
    language = importlib.import_module("triton.language")
    digest = sha256(kernel.source.encode()).hexdigest()[:16]
    filename = f"<gyrator user kernel {digest}>"
    lines = kernel.source.splitlines(keepends=True)
    linecache.cache[filename] = (len(kernel.source), None, lines, filename)
    module = f"gyrator_user_kernel_{digest}"
    namespace: dict[str, Any] = {"triton": triton, "tl": language, "__name__": module}
    exec(compile(kernel.source, filename, "exec"), namespace)
    names = [s.name for s in ast.parse(kernel.source).body if isinstance(s, ast.FunctionDef)]
    found = namespace[names[-1]]
    return found if hasattr(found, "arg_names") else triton.jit(found)


def _metadata(scope: Scope, i: h.TmaDescriptor) -> tuple[Any, ...]:
    block = list(scope.size.all(i.block))
    if i.stable:
        return ("stable", (block,))
    shape = list(scope.size.all(i.shape))
    return ("experimental", (shape, block, scope.size(i.element_bytes)))
