"""Products of any sizes by a generated kernel, to be timed beside those of libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gyrator.engine.context import CompilerContext
from gyrator_ir.diagnostics import GyratorError
from gyrator_lowering.torch_bridge.random_ops import register_ops

PanelProduct = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
"""Writes `gyrator::panel_mm` of two tensors to the third, as kernels of programs write to memory
that was planned."""
_ROWS, _DEPTH, _PANELS = 126, 512, (80, 96)
"""The sizes for which the kernel is tiled. They differ, so that they are different symbols: of the
panels, the first number that is not that of rows."""
OWN_ROWS = 256
"""Up to this number of rows, the kernel is tiled for those of its product: tiles for others would
compute up to a tenth more. Many rows fill the tallest tiles."""


def tiled_rows(rows: int) -> int:
    """Return the rows for which the kernel of a product is tiled."""
    return rows if rows <= OWN_ROWS else _ROWS


def panel_product(
    context: CompilerContext, device: str, width: int, rows: int
) -> PanelProduct | None:
    """Return a product of matrices of any sizes with panels of this many columns, by a kernel that
    is tiled for a number of rows, and compiled once per machine; None if it cannot be compiled."""
    compiler = context.trial(extern_kernels="library")
    try:
        call = compiler.compile(_graph(device, width, rows), "inference").call
    except GyratorError:
        return None
    return lambda x, panels, out: call([x, panels, out])


def _graph(device: str, width: int, rows: int) -> GraphModule:
    register_ops()
    count = next(n for n in _PANELS if n != rows)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    changes, stays = DimDynamic.DYNAMIC, DimDynamic.STATIC
    graph = Graph()
    nodes: list[Node] = []
    for name, sizes, dims in (
        ("x", (rows, _DEPTH), (changes, changes)),
        ("panels", (count, _DEPTH, width), (changes, changes, stays)),
        ("out", (rows, count * width), (changes, changes)),
    ):
        node = graph.placeholder(name)
        symbolic: Any = StatelessSymbolicContext(dynamic_sizes=[*dims])
        real = torch.empty(sizes, device=device)
        node.meta["val"] = mode.from_tensor(real, symbolic_context=symbolic)
        nodes.append(node)
    x, panels, out = nodes
    product, copy = torch.ops.gyrator.panel_mm.default, torch.ops.aten.copy_.default
    result = _call(graph, mode, product, x, panels)
    _call(graph, mode, copy, out, result)
    graph.output(())
    return GraphModule(torch.nn.Module(), graph)


def _call(graph: Graph, mode: FakeTensorMode, op: Any, *args: Node) -> Node:
    node = graph.call_function(op, args)
    with mode:
        node.meta["val"] = op(*(a.meta["val"] for a in args))
    return node
