"""The profiles of the targets that come with Gyrator."""

from gyrator_conformance.profiles import Profile

CUDA = Profile(group="cpu:gloo,cuda:nccl")
"""The profile of NVIDIA GPUs, whose builds of PyTorch include NCCL."""
