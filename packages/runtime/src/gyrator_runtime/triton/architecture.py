"""Which machine code runs on which device: NVIDIA's names of architectures."""

import re
from typing import Any

AND_LATER = "+"
"""The end of an architecture's name that stands for it and all later ones: for PTX, which the
driver compiles when it is loaded."""
FIRST_SPECIFIC = 90
"""From this compute capability on, Triton compiles for an architecture alone (`sm_90a`)."""


def compute_capability(properties: Any) -> str:
    """Return the architecture's name, by torch's properties of a device."""
    return f"sm_{properties.major}{properties.minor}"


def fit(arch: str, here: str) -> tuple[int, int] | None:
    """Return how well machine code for an architecture fits a device, to be compared; None where it
    does not run there.

    Before the architectures that are compiled for alone, a device runs the code of those of its
    generation that came before it.
    """
    code = re.fullmatch(rf"sm_(\d+)([{AND_LATER}]?)", arch)
    device = re.fullmatch(r"sm_(\d+)", here)
    if code is None or device is None:
        return (1, 0) if arch == here else None
    least, own = int(code[1]), int(device[1])
    if code[2]:
        return (0, least) if least <= own else None
    if own >= FIRST_SPECIFIC or least // 10 != own // 10:
        return (1, least) if least == own else None
    return (1, least) if least <= own else None
