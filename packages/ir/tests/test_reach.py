"""How much of a buffer a kernel may access."""

import pytest

from gyrator_ir.expr import Const
from gyrator_ir.kernel.parse import read_kernel
from gyrator_ir.kernel.reach import accessed_extent
from gyrator_ir.text.lines import parse_lines


@pytest.mark.parametrize(
    ("address", "elements"),
    [("i0 + 2", 6), ("3 - i0", 4), ("12 - 4*i0 + 2*i1", 17), ("5", 6)],
)
def test_a_buffer_of_unknown_size_has_what_is_accessed(address, elements):
    """Also where an axis is read backwards."""
    text = f"""\
kernel k on cpu (i0 < 4, i1 < 3)
    parameter x: f32[u0] strides [1] on cpu
    parameter y: f32[4, 3] strides [3, 1] on cpu
    outer
      v = load x[{address}]
      store y[3*i0 + i1], v
"""
    kernel = read_kernel(*parse_lines(text))
    x, y = kernel.parameters
    assert accessed_extent(kernel, x) is Const(elements)
    assert accessed_extent(kernel, y) is Const(12)
