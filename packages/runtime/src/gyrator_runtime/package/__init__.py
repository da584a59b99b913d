"""Packages of compiled models: one file each, written by `gyrator.aot.compile`, run from here.

- `archive`, `weights`: the file, and the tensors in it that are mapped into memory.
- `manifest`: what a package says of itself.
- `loader`: a file to a `Model`; `model`, `calls`: what a caller has of it.
"""

from gyrator_runtime.package.errors import PackageError
from gyrator_runtime.package.loader import inspect, load
from gyrator_runtime.package.manifest import PackageManifest
from gyrator_runtime.package.model import Model

__all__ = ["Model", "PackageError", "PackageManifest", "inspect", "load"]
