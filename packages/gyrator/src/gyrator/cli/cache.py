"""`gyrator cache`: its place and size, and its entries as one file."""

import argparse

from gyrator.cli.output import emit, say, size
from gyrator.config import parse_bytes, read_config
from gyrator_runtime.cache import Cache


def run(args: argparse.Namespace) -> int:
    """Export, import or shrink the cache, or say where it is and how large."""
    config = read_config()
    cache = Cache(config.cache_root, config.cache_bytes)
    if args.action is not None:
        return _transfer(args, cache)
    if args.prune is not None:
        try:
            cache.prune(parse_bytes(args.prune))
        except ValueError:
            args.parser.error(f"argument --prune: {args.prune!r} is no size: 500MB, 2GiB")
    files = [p for p in config.cache_root.rglob("*") if p.is_file()]
    held = sum(p.stat().st_size for p in files)
    about = {"folder": str(config.cache_root), "bytes": held, "files": len(files)}
    about["limit"] = config.cache_bytes
    said = f"{config.cache_root}: {size(held)} in {len(files)} files, of {size(config.cache_bytes)}"
    emit(args, about, lambda console: say(console, said))
    return 0


def _transfer(args: argparse.Namespace, cache: Cache) -> int:
    if args.file is None:
        args.parser.error(f"{args.action} needs the name of a file")
    from gyrator_runtime.transfer import export_cache, import_cache  # with torch

    count = (export_cache if args.action == "export" else import_cache)(cache, args.file)
    held = args.file.stat().st_size
    about = {"file": str(args.file), "bytes": held, "entries": count}
    emit(args, about, lambda console: say(console, f"{count} entries, {size(held)}"))
    return 0
