"""FX graphs as text: `show` writes what `parse` makes a graph on fake tensors of again.

    fx.graph 1 @main
      fact s0 in [2, 4096]
      in n: size s0
      in x: f32[s0, 8] on cpu
      y: f32[8, s0] strides [1, 8] on cpu = aten.t.default (x) from "model.py:7 in forward" "x.t()"
      z = aten.sum.dim_IntList (y, [1]) {dtype=<dtype float64>}
      return z

A tensor without strides is contiguous, one without an offset begins where its storage does. Where a
node says no type, PyTorch computes it on fake tensors.
"""

from gyrator_lowering.fx_text.parse import parse
from gyrator_lowering.fx_text.print import KIND, show

__all__ = ["KIND", "parse", "show"]
