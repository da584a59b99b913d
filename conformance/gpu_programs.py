"""Whole programs, compiled and run on the device: `compute-sanitizer` watches their kernels.

    compute-sanitizer --tool memcheck --launch-timeout 100 python conformance/gpu_programs.py

They are cases of `gpu_cases`, each in its first type; results are compared with eager's.
"""

import sys

from gpu import DTYPES, check_case
from gpu_cases import CASES

PROGRAMS = (
    "activations",
    "broadcast",
    "integers",
    "reductions",
    "norms",
    "views",
    "pads and pools",
    "embedding",
    "scatters",
    "unaligned",
    "dynamic sizes",
)
"""Cases whose kernels are of every kind."""


def main() -> int:
    """Run the programs; return how many were wrong."""
    bad = 0
    for case in CASES:
        if case.name in PROGRAMS:
            row = check_case(case, DTYPES[case.dtypes[0]])
            bad += "wrong" in row
            print(case.name, row["kernels"], row.get("wrong", "done"), flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
