"""Random numbers that are drawn four at a time against the reference interpreter."""

import numpy as np
import pytest
from triton_harness import NUMPY, Library

from gyrator_ir.tile.parse import parse
from gyrator_testing.interp.kernel import run_kernel

POINTS = """
  tile
    kernel {name} on cuda:0 (i0 < {n})
      parameter s: i64[2] strides [1] on cuda:0
      parameter y: f32[{n}] strides [1] on cuda:0
      outer
        a = load s[1]
        c: i64 = index i0 + {start}
        u: f32 = {op} a, c
        store y[i0], u
    grid (i0)
"""
ROWS = """
  tile
    kernel {name} on cuda:0 (i0 < 3) inner (r0 < {n})
      parameter s: i64[2] strides [1] on cuda:0
      parameter y: f32[3, {n}] strides [{n}, 1] on cuda:0
      parameter z: f32[3] strides [1] on cuda:0
      inner
        a = load s[1]
        c: i64 = index {n}*i0 + r0 + {start}
        u: f32 = {op} a, c
        store y[{n}*i0 + r0], u
        t: f32 = reduce.max u
      outer
        store z[i0], t
    grid (i0)
    loop (r0)
    reduce t accumulate
"""
CASES = {
    f"{op}_{kind}_{n}_{start}": text.format(
        name=f"{op}_{kind}_{n}_{start}", n=n, op=op, start=start
    )
    for op in ("rand", "randn")
    for kind, text, sizes in (("points", POINTS, (3, 70)), ("rows", ROWS, (6, 12, 8200)))
    for n in sizes
    for start in (0, 4, 6)
    if n < 1000 or (op, start) == ("rand", 4)  # a loop, which takes the interpreter long
}
TOGETHER = {name for name in CASES if name.endswith(("_0", "_4")) and "rows_6" not in name}
"""Those whose rows begin at multiples of four."""


@pytest.fixture(scope="module")
def library(interpreter, text_folder):
    program = parse("tile.program 1 @p\n" + "".join(CASES.values()))
    kernels = [t.kernel for t in program.kernels]
    result = Library(kernels, interpreter, text_folder, unit_statements=60)
    assert not result.refused
    return result


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_their_counters(library, name):
    kernel = library.kernels[name]
    arrays = {
        b.name: np.array([5, -123456789012345]) if b.name == "s"
        else np.zeros(np.prod([e.value for e in b.shape]), NUMPY[b.dtype])
        for b in kernel.parameters
    }  # fmt: skip
    want = {k: v.copy() for k, v in arrays.items()}

    run_kernel(kernel, want, {})
    library(name, arrays)

    assert bool(library.tiled[name].fours) is (name in TOGETHER)
    for b in ("y", "z"):
        if b in arrays:
            np.testing.assert_allclose(arrays[b], want[b], rtol=0, atol=2e-6)
