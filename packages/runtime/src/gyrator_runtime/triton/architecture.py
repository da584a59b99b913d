"""Compatibility of machine code and devices, by NVIDIA's architecture names."""

import re
from typing import Any

AND_LATER = "+"
"""Suffix of an architecture's name that includes all later ones: for PTX, which the driver compiles
on loading."""
FIRST_SPECIFIC = 90
"""First compute capability for which Triton compiles architecture-specific code (`sm_90a`)."""


def compute_capability(properties: Any) -> str:
    """Return the architecture's name from PyTorch's properties of a device."""
    return f"sm_{properties.major}{properties.minor}"


def fit(arch: str, device_arch: str) -> tuple[int, int] | None:
    """Return a rank of how well machine code for an architecture fits a device; None if it does not
    run there.

    Before architecture-specific code, a device also runs code of earlier architectures of its
    generation.
    """
    code = re.fullmatch(rf"sm_(\d+)([{AND_LATER}]?)", arch)
    device = re.fullmatch(r"sm_(\d+)", device_arch)
    if code is None or device is None:
        return (1, 0) if arch == device_arch else None
    least, own = int(code[1]), int(device[1])
    if code[2]:
        return (0, least) if least <= own else None
    if own >= FIRST_SPECIFIC or least // 10 != own // 10:
        return (1, least) if least == own else None
    return (1, least) if least <= own else None
