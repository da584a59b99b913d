"""Apple GPUs: kernels in Metal, compiled by PyTorch."""

import platform

import torch

from gyrator.config import Config
from gyrator.engine.lazy import ShippedKernels
from gyrator.targets import API, TargetDefinition
from gyrator_ir.modes import ATOMIC_MODES, StoreMode
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.types import DType
from gyrator_runtime.metal import MetalDevice, MetalLoader, load_kernels

_INTEGERS = (DType.I32, DType.I16, DType.I8, DType.U32, DType.U16, DType.U8)
_FLOATS = (DType.F32, DType.F16, DType.BF16)
_WIDE = (DType.I64, DType.U64)
_DTYPES = frozenset((*_FLOATS, *_INTEGERS, *_WIDE, DType.BOOL))
_ATOMICS = frozenset(
    {(d, mode) for d in (*_FLOATS, *_INTEGERS) for mode in ATOMIC_MODES}
    | {(d, StoreMode.ADD) for d in _WIDE}
)
_DEVICE = "mps"
_CORES = 16
"""An assumed number of cores, which PyTorch does not report; it affects only performance."""

KERNELS = ShippedKernels("metal", "gyrator_codegen_metal.stage", "MetalBackend")


def metal_target(device: str, arch: str, wrappers: tuple[str, ...]) -> Target:
    """Return a target with Metal kernels for the tensors of a device type."""
    return Target(
        device=device,
        arch=arch,
        kernel_backend=KERNELS.name,
        wrapper_backends=wrappers,
        capabilities=Capabilities(
            dtypes=_DTYPES,
            atomics=_ATOMICS,
            ops_lacking=frozenset({"erfc", "erfinv", "lgamma", "digamma"}),
            ordered_reductions=True,
            sort_extent=1024,
            unchecked_division=True,
        ),
        heuristics=Heuristics(
            cores=_CORES,
            parallel_grain=1 << 16,
            split_reduction_points=64,
            split_reduction_extent=1 << 15,
            split_scan_extent=1 << 15,
            adjacent_points=32,
            scratch_bytes=1 << 14,
            unit_statements=400,
        ),
    )


def probe(config: Config) -> Target | None:
    """Describe this machine's GPU; None if it has none from Apple."""
    if not torch.backends.mps.is_available() or platform.machine() != "arm64":
        return None
    return metal_target(_DEVICE, "apple", ("python", "fx"))


METAL = TargetDefinition(
    name="metal",
    api=API,
    probe=probe,
    kernels=KERNELS,
    device=lambda target: MetalDevice(_DEVICE),
    loader=lambda target, context: MetalLoader(),
    load=load_kernels,
)
