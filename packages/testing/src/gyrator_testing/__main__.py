"""`python -m gyrator_testing kernels --target acme`: searches for miscompiled kernels.

Targets are resolved by the package `gyrator`, which this package does not depend on.
"""

import importlib
import sys
from types import MappingProxyType

COMMANDS = MappingProxyType({"kernels": "gyrator.cli.kernels"})
"""The modules of the commands, by name."""


def main(arguments: list[str]) -> int:
    """Run a command; return 0, 1 for a finding, 2 for bad input."""
    name, *rest = arguments or [""]
    if name not in COMMANDS:
        sys.stderr.write(f"usage: python -m gyrator_testing {{{','.join(COMMANDS)}}} ...\n")
        return 2
    try:
        module = importlib.import_module(COMMANDS[name])
    except ModuleNotFoundError as error:
        sys.stderr.write(f"needs {error.name}: pip install 'gyrator[verify]'\n")
        return 2
    status: int = module.main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
