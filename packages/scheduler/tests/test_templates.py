"""Templates that no library's call can stand in for."""

import pytest

from gyrator_ir.diagnostics import RefusedError
from gyrator_ir.loop.parse import parse
from gyrator_scheduler.templates import with_fallbacks

TEXT = """loop.program 1 @p
  origin 0 %attend flex_attention
  in q: f32[1, 1, 5, 4] strides [20, 20, 4, 1] on cpu
  in n: i32[1, 1, 1] strides [1, 1, 1] on cpu
  in at: i32[1, 1, 1, 1] strides [1, 1, 1, 1] on cpu
  buffer y: f32[1, 1, 5, 4] strides [20, 20, 4, 1] on cpu
  template op0 flex_attention (q, q, q, n, at) -> (y) with {scale=0.5, row_block=64, column_block=64, lists=1} @0
    formula score (score) -> score
    formula mask () -> a
      a: bool = const true
  return y
"""  # noqa: E501


def test_a_refused_template_without_a_call_names_its_node() -> None:
    with pytest.raises(RefusedError, match="GY-SCHED-023") as caught:
        with_fallbacks(parse(TEXT), lambda kernel: "it is too long")
    assert caught.value.nodes["attend"].message == "flex_attention: it is too long"
