"""The toy's language, without the device."""

import ctypes

import numpy as np
import pytest
from gyrator_toy.language import LACKING, ToyBackend
from gyrator_toy.machine import Machine

from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.parse import parse
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.types import DType
from gyrator_testing.interp.kernel import run_kernel

TEXT = """kernel.schedule 1 @rows
  in n: size s0
  in x: f32[s0, 6] strides [6, 1] on toy
  buffer y: f32[s0] strides [1] on toy
  kernel k0 on toy (i0 < s0) inner (r0 < 6) sizes (s0)
    parameter x: f32[s0, 6] strides [6, 1] on toy
    parameter y: f32[s0] strides [1] on toy
    inner
      a = load x[6*i0 + (r0 + 2) % 6]
      b: f32 = {op} a
      s: f32 = reduce.{fold} b
    outer
      store y[i0], s
  life y 0 to 1
  return y
"""
TARGET = Target(
    device="toy",
    arch="one",
    kernel_backend="toy",
    capabilities=Capabilities(dtypes=frozenset(DType)),
)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize(("op", "fold"), [("tanh", "sum"), ("neg", "max"), ("abs", "min")])
def test_programs_mean_what_the_reference_says(rows, op, fold):
    (kernel,) = parse(TEXT.format(op=op, fold=fold)).kernels
    (unit,) = ToyBackend().emit((kernel,), ShapeFacts(), (), TARGET)
    x = np.random.default_rng(rows).standard_normal(rows * 6).astype(np.float32)
    want, found = (np.full(rows, np.nan, np.float32) for _ in range(2))
    run_kernel(kernel, {"x": x, "y": want}, {"s0": rows})
    buffers = (ctypes.c_void_p * 2)(x.ctypes.data, found.ctypes.data)
    assert Machine(buffers, (ctypes.c_int64 * 1)(rows)).run(unit.text) == 0
    np.testing.assert_allclose(found, want, rtol=3e-7)


def test_what_the_language_lacks_is_refused_by_name():
    assert "erf" in LACKING
    (kernel,) = parse(TEXT.format(op="erf", fold="sum")).kernels
    refusal = ToyBackend().refuses(kernel, TARGET)
    assert refusal is not None and refusal.code == "GY-TOY-001" and "erf" in refusal.message
    (kernel,) = parse(TEXT.format(op="exp", fold="sum")).kernels
    assert ToyBackend().refuses(kernel, TARGET) is None
