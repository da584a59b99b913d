"""Registration with torch on its import, without importing it."""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_TORCH = "torch"


def register_with_torch() -> None:
    """Register Gyrator's cache entries with torch, immediately or at the end of its import.

    `torch.compiler.load_cache_artifacts` requires registration, and a process may call it before it
    compiles anything.
    """
    if _TORCH in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    from gyrator.store.travel import register

    register()


class _Finder(MetaPathFinder):
    """Finds torch through the other finders, and removes itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _TORCH:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    """Loads torch with its own loader, then registers."""

    def __init__(self, own: Loader) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.own
        self.own.exec_module(module)
        _register()
