"""Fail if one of the modules named on the command line can be imported here."""

import importlib
import sys


def main(names: list[str]) -> int:
    """Return 1 if any of `names` can be imported, else 0."""
    present = []
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        else:
            present.append(name)
    print(f"importable, and must not be: {present}" if present else f"absent: {', '.join(names)}")
    return int(bool(present))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
