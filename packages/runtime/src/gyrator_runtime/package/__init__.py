"""Packages of compiled models: single files written by `gyrator.aot.compile` and run from here.

- `archive`, `weights`: the file format, and its memory-mapped tensors.
- `manifest`: the description of a package.
- `loader`: loads a file as a `Model`; `model`, `calls`: the loaded model and its calls.
"""

from gyrator_runtime.package.errors import PackageError
from gyrator_runtime.package.loader import inspect, load
from gyrator_runtime.package.manifest import PackageManifest
from gyrator_runtime.package.model import Model

__all__ = ["Model", "PackageError", "PackageManifest", "inspect", "load"]
