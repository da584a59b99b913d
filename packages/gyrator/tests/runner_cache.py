"""Caches that hold the native runner and nothing else, because its compilation takes a second."""

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from gyrator_runtime.cache import Cache
from gyrator_runtime.native import build_native_runner
from gyrator_runtime.toolchain import find_toolchain


def with_runner(root: Path) -> Path:
    """Return the folder of a cache; where it does not exist, make it and put the runner there."""
    if not root.exists():
        shutil.copytree(_built().name, root)
    return root


@cache
def _built() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    # Tests may have set CXX to a program that fails.
    build_native_runner(Cache(Path(folder.name)), find_toolchain({**os.environ, "CXX": ""}))
    return folder
