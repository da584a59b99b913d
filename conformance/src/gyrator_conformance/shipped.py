"""What the targets that come with Gyrator cannot do, as their entry points name it."""

from attrs import evolve

from gyrator_conformance.cells import Excuse, Reason
from gyrator_conformance.profiles import Profile

FUSED_CELLS = Profile(
    excuses=(
        Excuse(
            Reason.TRACING,
            "the fused cell that PyTorch takes there (aten._thnn_fused_gru_cell) does not run with"
            " fake tensors, so that Dynamo refuses the model",
            models=frozenset({"gru"}),
            shapes=frozenset({"dynamic"}),
        ),
    )
)
"""GPUs on which PyTorch runs recurrent cells as one kernel."""

CUDA = evolve(FUSED_CELLS, group="cpu:gloo,cuda:nccl")
"""NVIDIA's GPUs, whose builds of PyTorch have NCCL."""
