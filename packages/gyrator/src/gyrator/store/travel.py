"""Gyrator's entries in `torch.compiler.save_cache_artifacts()` and `load_cache_artifacts()`."""

from functools import cache

from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

from gyrator_runtime.cache import Cache, CacheKey, Entry

_KIND = "gyrator"
_PORTABLE = frozenset({"graphs", "pieces", "programs", "runner"})
"""The kinds of entries that a warm start reads."""


class GyratorCacheArtifact(CacheArtifact):
    """A cache entry among torch's cache artifacts."""

    def populate_cache(self) -> None:
        """Store it in the cache folder of the environment."""
        # Imported only by processes that load artifacts.
        from gyrator.config import read_config
        from gyrator_runtime.transfer import unpack

        config = read_config()
        unpack(Cache(config.cache_root, config.cache_bytes), self.content)

    @staticmethod
    def type() -> str:
        """Return torch's name for these artifacts."""
        return _KIND


@cache
def register() -> None:
    """Register the artifact type with torch, which is required before loading any."""
    CacheArtifactFactory.register(GyratorCacheArtifact)


def record(key: CacheKey, entry: Entry) -> None:
    """Include an entry that was read or written in the artifacts saved next."""
    if key.kind in _PORTABLE:
        from gyrator_runtime.transfer import packed

        register()
        CacheArtifactManager.record_artifact(_KIND, key.hex, packed(key, entry))
