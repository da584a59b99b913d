"""Texts of kernels with stages and of templates."""

from typing import Any

import pytest
from attrs import evolve

from gyrator.engine.emission import units_of
from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.host.parse import parse
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target

TEXT = """\
host.program 1 @p
  parameter x tensor
  kernel k0 on cuda:0 (i0 < 64)
    parameter p0: f32[64] strides [1] on cuda:0
    parameter p1: f32[64] strides [1] on cuda:0
    outer
      a = load p0[i0]
      b: f32 = neg a
      store p1[i0], b
  kernel t0 on cuda:0 template attention (p0, p0, p0) -> (p1) with {scale=0.5, causal=true}
    parameter p0: f32[1, 2, 4, 8] strides [64, 32, 8, 1] on cuda:0
    parameter p1: f32[1, 2, 4, 8] strides [64, 32, 8, 1] on cuda:0
  do
    y = allocate f32[64] strides [1] on cuda:0
    launch k0 (x, y)
    return y
"""


def test_kernels_and_templates_are_written_for_their_device() -> None:
    host, target = parse(TEXT), NVIDIA_GPU.target("sm_90", 132)
    assert [k.kernel for u in units_of(host, TritonBackend(), target) for k in u.kernels] == [
        "k0",
        "t0",
    ]
    assert not units_of(host, TritonBackend(), evolve(target, device="xpu"))


def test_a_language_without_templates_says_so() -> None:
    class Plain:
        name = "plain"
        content_hash = ""

        def refuses(self, kernel: Kernel, target: Target) -> None:
            return None

        def emit(self, *inputs: Any) -> tuple[TranslationUnit, ...]:
            return ()

    with pytest.raises(TypeError, match="plain has no templates and no groups, and sm_90 enables"):
        units_of(parse(TEXT), Plain(), NVIDIA_GPU.target("sm_90", 132))
