"""What the environment says, read once when a session opens."""

import os
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from gyrator_runtime.cache import default_root


@frozen
class Config:
    """Machine-wide settings that are not a model's business."""

    cache_root: Path
    """`GYRATOR_CACHE_DIR`, else `$XDG_CACHE_HOME/gyrator`, else `~/.cache/gyrator`."""
    cache_bytes: int
    """`GYRATOR_CACHE_BYTES`: the cache is pruned to this size, default 4 GiB."""
    isa: str
    """`GYRATOR_ISA`: `avx512`, `avx2` or `plain`, default what the processor has."""
    targets: frozenset[str] = frozenset()
    """`GYRATOR_TARGETS`: names of targets, separated by commas, that go before others for their
    device types."""


def read_config(environ: Mapping[str, str] = os.environ) -> Config:
    """Read the configuration from environment variables."""
    return Config(
        cache_root=default_root(environ),
        cache_bytes=int(environ.get("GYRATOR_CACHE_BYTES", 4 << 30)),
        isa=environ.get("GYRATOR_ISA", ""),
        targets=frozenset(filter(None, environ.get("GYRATOR_TARGETS", "").split(","))),
    )
