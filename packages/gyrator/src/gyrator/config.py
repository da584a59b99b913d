"""Configuration from environment variables, read once when a session opens."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gyrator_ir.define import frozen
from gyrator_runtime.cache import DEFAULT_LIMIT, default_root
from gyrator_runtime.warn import warn

__all__ = ["Config", "read_config"]

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@frozen
class Config:
    """Machine-wide settings that do not depend on a model."""

    cache_root: Path
    """`GYRATOR_CACHE_DIR`, else `$XDG_CACHE_HOME/gyrator`, else `~/.cache/gyrator`."""
    cache_bytes: int
    """`GYRATOR_CACHE_BYTES`: the size to which the cache is pruned, 4 GiB by default."""
    isa: str
    """`GYRATOR_ISA`: `avx512`, `avx2`, `neon` or `plain`, by default the widest that the processor
    supports."""
    targets: frozenset[str] = frozenset()
    """`GYRATOR_TARGETS`: comma-separated names of targets to prefer for their device types."""


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
    """Parse a size in bytes: `1000`, `4GiB` and `4g` (powers of 1024), `4GB` (of 1000), `1.5 TiB`.

    Raises ValueError for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip().lower(), re.ASCII)
    if match is None or (match[3] == "ib" and not match[2]):
        raise ValueError(f"{text!r} is not a size in bytes")
    base = 1000 if match[3] == "b" else 1024
    return int(float(match[1]) * base ** _UNITS[match[2]])


def _cache_bytes(text: str) -> int:
    try:
        return parse_bytes(text) if text.strip() else DEFAULT_LIMIT
    except (ValueError, OverflowError):
        default = f"the limit is {DEFAULT_LIMIT >> 30} GiB"
        message = f"GYRATOR_CACHE_BYTES={text!r} is not a size; {default}"
        warn("GY-CACHE-011", message, "use a number of bytes, optionally with a unit such as 4GiB")
        return DEFAULT_LIMIT
