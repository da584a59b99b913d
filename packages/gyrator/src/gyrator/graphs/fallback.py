"""Eager execution of a graph that could not be compiled."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

from gyrator.graphs.compiled import Boxed, boxed
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.warn import warn


def eager_graph(gm: torch.fx.GraphModule) -> Boxed:
    """Return a callable that runs each node with ATen."""
    # PyTorch traces the branches of a choice that writes to its operands with gradients enabled,
    # where it refuses to write to leaves.
    writes = any(n.target is auto_functionalized_v2 for n in gm.graph.nodes)

    @boxed
    def run(args: list[Any]) -> Sequence[Any]:
        inputs = tuple(a.detach() if writes and isinstance(a, torch.Tensor) else a for a in args)
        args.clear()
        results: Sequence[Any] = gm.forward(*inputs)
        return results

    return run


def warn_fallback(error: Exception, phase: str, hint: str = "") -> None:
    """Warn, once per message, that a graph runs eagerly and why; `hint` says how to reproduce
    it."""
    if isinstance(error, GyratorError):
        why = error.diagnostic.message
        code = error.diagnostic.code
        help = error.diagnostic.help
    else:
        why = f"{type(error).__name__}: {error}"
        code = "GY-COMPILE-001"
        help = (
            "this is a bug in Gyrator: please report it; options={'strict': True} raises it with "
            "its traceback"
        )
    if hint:
        help = f"{help}; {hint}" if help else hint
    warn(code, f"a graph ({phase}) runs eagerly: {why}", help)
