"""What the C++ template of flexible attention holds; what it computes is tested in conformance."""

import pytest
from harness import target

from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.parse import read_launchable
from gyrator_ir.text.lines import parse_lines

TEXT = """kernel t on cpu template flex_attention (q, q, q, n, at) -> (y) with {{scale=0.5, row_block=64, column_block=64, full=false}}
  parameter q: {dtype}[1, 1, 5, {length}] strides [5*{length}, 5*{length}, {length}, 1] on cpu
  parameter n: i32[1, 1, 1] strides [1, 1, 1] on cpu
  parameter at: i32[1, 1, 1, 1] strides [1, 1, 1, 1] on cpu
  parameter y: {dtype}[1, 1, 5, {length}] strides [5*{length}, 5*{length}, {length}, 1] on cpu
  formula score (score) -> score
  formula mask () -> a
    a: bool = const true
"""  # noqa: E501


@pytest.mark.parametrize(("dtype", "length", "supported"), [("f32", 4, True), ("f64", 4, False),
                                                       ("f32", 600, False)])  # fmt: skip
def test_types_and_lengths(dtype: str, length: int, supported: bool) -> None:
    (kernel,) = map(read_launchable, parse_lines(TEXT.format(dtype=dtype, length=length)))
    why = CppBackend().refuses_template(kernel, target("avx2"))
    assert (why is None) == supported
    if supported:
        (unit,) = CppBackend().emit([kernel], ShapeFacts(), (), target("avx2"))
        assert "_some_all(" not in unit.text  # nothing is left of formulas that change nothing
    else:
        assert why is not None and why.code == "GY-CPP-024"
