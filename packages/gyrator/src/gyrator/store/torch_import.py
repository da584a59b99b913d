"""Making ourselves known to torch whenever it is imported, without importing it."""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_TORCH = "torch"


def register_with_torch() -> None:
    """Register our cache entries with torch, at once or at the end of its import.

    `torch.compiler.load_cache_artifacts` knows only what was registered before, and a process may
    call it before it compiles anything.
    """
    if _TORCH in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    from gyrator.store.travel import register

    register()


class _Finder(MetaPathFinder):
    """Finds torch as the other finders do, and leaves."""

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
    """Loads torch as its own loader does, then registers."""

    def __init__(self, own: Loader) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.own
        self.own.exec_module(module)
        _register()
