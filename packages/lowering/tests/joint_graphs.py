"""Joint graphs of functions and their gradients, before and after passes over them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._functorch import partitioners
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch.fx import GraphModule

from gyrator_ir.passes import PassEdits, Tracer
from gyrator_lowering import LoweringOptions
from gyrator_lowering.decompositions import default_decompositions
from gyrator_lowering.fx_passes import joint_pipeline

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


def prepare(gm: GraphModule, recomputing: bool = True, edits: PassEdits | None = None) -> list[str]:
    """Run the passes over a joint graph; return the names of those that changed it."""
    tracer = Tracer()
    pipeline = joint_pipeline(LoweringOptions(), recomputing=recomputing)
    (edits or PassEdits()).apply(pipeline).run(gm, tracer)
    return [s.name for s in tracer.steps if s.changed]


class Joint:
    """The joint graph of a function before and after the passes, and its partitions."""

    def __init__(
        self,
        run: Callable[..., Any],
        inputs: tuple[torch.Tensor, ...],
        dynamic: bool = False,
        edits: PassEdits | None = None,
    ) -> None:
        self.parts: dict[str, GraphModule] = {}

        def partition(joint: GraphModule, inputs: Any, **facts: Any) -> Any:
            prepare(joint, recomputing=False)
            self.before = deepcopy(joint)
            self.changed = prepare(joint, edits=edits)
            self.after = deepcopy(joint)
            return partitioners.min_cut_rematerialization_partition(joint, inputs, **facts)

        def keep(name: str) -> Callable[..., Any]:
            def compiler(gm: GraphModule, _: Any) -> Any:
                self.parts[name] = gm
                return make_boxed_func(gm.forward)

            return compiler

        call = aot_function(
            run, keep("forward"), keep("backward"), partition_fn=partition, dynamic=dynamic,
            decompositions=default_decompositions(),
            keep_inference_input_mutations=True,
        )  # fmt: skip
        self.results = pytree.tree_leaves(call(*inputs))
        differentiable = [r for r in self.results if r.requires_grad]
        self.tangents = [torch.randn_like(r) for r in differentiable]
        leaves = [x for x in inputs if x.requires_grad]
        self.gradients = torch.autograd.grad(
            differentiable, leaves, self.tangents, allow_unused=True
        )

    def saved(self) -> list[int]:
        """Sizes in bytes of the tensors that the forward pass saves for the backward pass."""
        placeholders = self.parts["backward"].graph.find_nodes(op="placeholder")
        fakes = (n.meta["val"] for n in placeholders if not n.name.startswith("tangents"))
        tensors = [t for t in fakes if isinstance(t, torch.Tensor)]
        return sorted(elements(t) * t.itemsize for t in tensors)


def elements(fake: torch.Tensor) -> int:
    """Count elements, for the traced sizes."""
    count = fake.numel()
    return count if isinstance(count, int) else int(count.node.hint)


def drawn(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_()


def compared(joint: Joint, inputs: tuple[torch.Tensor, ...]) -> None:
    """Run the joint graph before and after the passes, on the inputs and on fresh ones."""
    dtype = inputs[0].dtype
    tolerance = {F32: 2e-5, F64: 1e-12, BF16: 2e-2}[dtype]
    for again in (False, True):
        fresh = [x.detach().clone() for x in inputs]
        if again:
            fresh[0] = torch.randn_like(fresh[0])
        want, got = (
            one([x.clone() for x in fresh], list(joint.tangents))
            for one in (joint.before, joint.after)
        )
        for part in zip(got, want, strict=True):
            for a, b in zip(*part, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
                    assert a.stride() == b.stride() and a.dtype == b.dtype


def classes(rows: int, count: int, ignored: int = -100) -> torch.Tensor:
    labels = torch.randint(0, count, (rows,))
    labels[::5] = ignored
    return labels
