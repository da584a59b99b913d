"""Sizes and strides that PyTorch's tracer computes from those of a graph's inputs."""

import operator


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
