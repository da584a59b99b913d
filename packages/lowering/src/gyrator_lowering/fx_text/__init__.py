"""A text format of FX graphs: `show` prints a graph, `parse` reads it on fake tensors.

    fx.graph 1 @main
      fact s0 in [2, 4096]
      in n: size s0
      in x: f32[s0, 8] on cpu
      y: f32[8, s0] strides [1, 8] on cpu = aten.t.default (x) from "model.py:7 in forward" "x.t()"
      z = aten.sum.dim_IntList (y, [1]) {dtype=<dtype float64>}
      return z

A tensor without strides is contiguous, and one without an offset starts at its storage's first
element. If a node has no type, PyTorch computes it on fake tensors.
"""

from gyrator_lowering.fx_text.parse import parse
from gyrator_lowering.fx_text.print import KIND, show

__all__ = ["KIND", "parse", "show"]
