"""The profiles of the targets that come with Gyrator."""

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
"""The profile of GPUs on which PyTorch runs recurrent cells as one kernel."""

CUDA = evolve(FUSED_CELLS, group="cpu:gloo,cuda:nccl")
"""The profile of NVIDIA GPUs, whose builds of PyTorch include NCCL."""
