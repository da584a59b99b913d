"""Gyrator's entries in `torch.compiler.save_cache_artifacts()` and `load_cache_artifacts()`."""

from functools import cache

from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

from gyrator_runtime.cache import Cache, CacheKey, Entry

_KIND = "gyrator"
_TRAVELLING = frozenset({"graphs", "pieces", "programs", "runner"})
"""Kinds of entries that a warm start reads."""


class GyratorCacheArtifact(CacheArtifact):
    """An entry of the cache, as torch carries it."""

    def populate_cache(self) -> None:
        """Put it into the cache folder that the environment names."""
        # A process that takes nothing in, or only runs packages, needs neither.
        from gyrator.config import read_config
        from gyrator_runtime.transfer import unpack

        config = read_config()
        unpack(Cache(config.cache_root, config.cache_bytes), self.content)

    @staticmethod
    def type() -> str:
        """Return the name that torch knows such entries by."""
        return _KIND


@cache
def register() -> None:
    """Make the entries known to torch, which has to know them before it loads any."""
    CacheArtifactFactory.register(GyratorCacheArtifact)


def record(key: CacheKey, entry: Entry) -> None:
    """Let an entry that was read or written be part of what is saved next."""
    if key.kind in _TRAVELLING:
        from gyrator_runtime.transfer import packed

        register()
        CacheArtifactManager.record_artifact(_KIND, key.hex, packed(key, entry))
