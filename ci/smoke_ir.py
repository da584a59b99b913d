"""Import every module of the installed `gyrator_ir`, and check that torch does not come along."""

import importlib
import pkgutil
import sys

import gyrator_ir


def main() -> int:
    """Import all; return 1 if torch or triton is among the loaded modules."""
    assert "site-packages" in str(gyrator_ir.__file__), f"not the wheel: {gyrator_ir.__file__}"
    names = [m.name for m in pkgutil.walk_packages(gyrator_ir.__path__, "gyrator_ir.")]
    for name in names:
        importlib.import_module(name)
    loaded = {"torch", "triton"} & sys.modules.keys()
    print(f"gyrator_ir: {len(names)} modules imported; heavy modules loaded: {sorted(loaded)}")
    return int(bool(loaded))


if __name__ == "__main__":
    sys.exit(main())
