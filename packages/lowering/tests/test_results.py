"""Which results of a graph are tensors of their own."""

import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_function, make_boxed_func

from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.types import DType
from gyrator_lowering import LoweringOptions, lower

PLAIN = Target(
    device="cpu",
    arch="plain",
    kernel_backend="interpreter",
    capabilities=Capabilities(dtypes=frozenset({DType.F32})),
)


def test_saved_tensors_and_gradients_have_no_twins() -> None:
    twins: list[list[int]] = []

    def keep(gm: torch.fx.GraphModule, _: object) -> object:
        outputs = lower(gm, LoweringOptions(), {"cpu": PLAIN}).outputs
        twins.append([o.twin for o in outputs if isinstance(o, TensorRef)])
        return make_boxed_func(gm.forward)

    def function(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        base = x + 1
        return base, base.view(-1), w * base.view(-1) + v + u.view(-1)

    leaves = [torch.randn(6, requires_grad=True) for _ in range(3)]
    results = aot_function(function, fw_compiler=keep, bw_compiler=keep)(torch.randn(6), *leaves)
    results[2].backward(torch.randn(6))
    assert twins == [[0, 1, 0, 0], [0, 0, 0]]  # the fourth result is saved
