"""`gyrator cache`: show, prune, export and import the cache."""

import argparse

from gyrator.cli.output import emit, say, size
from gyrator.config import parse_bytes, read_config
from gyrator_runtime.cache import Cache, usage


def run(args: argparse.Namespace) -> int:
    """Export, import or prune the cache, or show its folder and size."""
    if args.action is not None and args.prune is not None:
        args.parser.error(f"--prune and {args.action} are separate commands")
    config = read_config()
    cache = Cache(config.cache_root, config.cache_bytes)
    if args.action is not None:
        return _transfer(args, cache)
    if args.prune is not None:
        try:
            cache.prune(parse_bytes(args.prune))
        except ValueError:
            args.parser.error(
                f"argument --prune: {args.prune!r} is not a size such as 500MB or 2GiB"
            )
    files, total = usage(cache.root)
    folder = str(cache.root)
    about = {"folder": folder, "bytes": total, "files": files, "limit": config.cache_bytes}
    message = f"{folder}: {size(total)} in {files} files, of {size(config.cache_bytes)}"
    emit(args, about, lambda console: say(console, message))
    return 0


def _transfer(args: argparse.Namespace, cache: Cache) -> int:
    if args.file is None:
        args.parser.error(f"{args.action} needs a file name")
    from gyrator_runtime.transfer import export_cache, import_cache  # imports torch

    count = (export_cache if args.action == "export" else import_cache)(cache, args.file)
    written = args.file.stat().st_size
    about = {"file": str(args.file), "bytes": written, "entries": count}
    emit(args, about, lambda console: say(console, f"{count} entries, {size(written)}"))
    return 0
