"""Every tile pass is registered by its name, and has text tests in a folder of this name."""

import pkgutil
from importlib import import_module
from pathlib import Path

from gyrator_codegen import passes
from gyrator_codegen.passes.registry import all_passes

FOLDERS = Path(__file__).parent / "filetests"


def defined():
    """Return the passes that the modules of the package define, by name."""
    classes = {}
    for info in pkgutil.walk_packages(passes.__path__, f"{passes.__name__}."):
        members = vars(import_module(info.name)).values()
        own = [m for m in members if isinstance(m, type) and m.__module__ == info.name]
        classes |= {c.name: c for c in own if isinstance(getattr(c, "name", None), str)}
    return classes


def test_every_pass_is_registered():
    assert all_passes() == defined()


def test_every_pass_has_text_tests():
    assert [name for name in defined() if not list((FOLDERS / name).glob("*.gy"))] == []
