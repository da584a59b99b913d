"""What the environment says, read once when a session opens."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from gyrator_runtime.cache import DEFAULT_LIMIT, default_root
from gyrator_runtime.warn import warn

__all__ = ["Config", "read_config"]

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@frozen
class Config:
    """Machine-wide settings that are not a model's business."""

    cache_root: Path
    """`GYRATOR_CACHE_DIR`, else `$XDG_CACHE_HOME/gyrator`, else `~/.cache/gyrator`."""
    cache_bytes: int
    """`GYRATOR_CACHE_BYTES`: the cache is pruned to this size, default 4 GiB."""
    isa: str
    """`GYRATOR_ISA`: `avx512`, `avx2`, `neon` or `plain`, default what the processor has."""
    targets: frozenset[str] = frozenset()
    """`GYRATOR_TARGETS`: names of targets, separated by commas, that go before others for their
    device types."""


def read_config(environ: Mapping[str, str] = os.environ) -> Config:
    """Read the configuration from environment variables."""
    names = environ.get("GYRATOR_TARGETS", "").split(",")
    return Config(
        cache_root=default_root(environ),
        cache_bytes=_cache_bytes(environ.get("GYRATOR_CACHE_BYTES", "")),
        isa=environ.get("GYRATOR_ISA", "").strip(),
        targets=frozenset(filter(None, map(str.strip, names))),
    )


def parse_bytes(text: str) -> int:
    """Return a size: `1000`, `4GiB` and `4g` (powers of 1024), `4GB` (of 1000), `1.5 TiB`.

    ValueError for anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip().lower(), re.ASCII)
    if found is None or (found[3] == "ib" and not found[2]):
        raise ValueError(f"{text!r} is no size")
    base = 1000 if found[3] == "b" else 1024
    return int(float(found[1]) * base ** _UNITS[found[2]])


def _cache_bytes(text: str) -> int:
    try:
        return parse_bytes(text) if text.strip() else DEFAULT_LIMIT
    except (ValueError, OverflowError):
        said = f"GYRATOR_CACHE_BYTES={text!r} is no size; {DEFAULT_LIMIT >> 30} GiB are kept"
        warn("GY-CACHE-011", said, "give a number of bytes, or one with a unit such as 4GiB")
        return DEFAULT_LIMIT
