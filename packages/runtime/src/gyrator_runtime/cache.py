"""A content-addressed store on disk that any number of processes can share.

    root/                      0700, owned by the user
      entries/<kind>/<k2>/<key>/   one folder per entry: its files and manifest.json
      locks/<key>.lock             one file lock per key, present while the entry is being built
      tmp/<pid>-<space>-<random>/  entries being written; renamed into place when complete

Entries are immutable, contain no absolute paths, and are named by the SHA-256 of their inputs. A
folder appears in `entries` by a single `rename`, so a killed writer leaves files only under `tmp`,
from where `prune` removes them. Every load checks sizes and hashes against the manifest; an entry
that differs is removed and counts as a miss. The same applies to an entry that contains anything
but regular files that the user owns and no one else can write, so that planted code is not run.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import secrets
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic, GyratorError
from gyrator_runtime.warn import warn

__all__ = ["Cache", "CacheError", "CacheKey", "Entry", "default_root", "make_key"]

MANIFEST = "manifest.json"
SCHEMA = 2
DEFAULT_LIMIT = 4 << 30
"""Maximum total size of the entries in bytes; above it, the least recently used are removed."""

_STALE_SECONDS = 3600.0
_PRUNE_EVERY = 64 << 20
_LOCK_POLL = 0.02
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# A pipe in place of a file must not block a reader, and links must not be followed.
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CacheError(GyratorError):
    """Neither the cache folder nor a temporary one can be written."""


def default_root(env: Mapping[str, str]) -> Path:
    """Return $GYRATOR_CACHE_DIR, else $XDG_CACHE_HOME/gyrator, else ~/.cache/gyrator."""
    if explicit := env.get("GYRATOR_CACHE_DIR"):
        return Path(os.path.expanduser(explicit))
    if xdg := env.get("XDG_CACHE_HOME"):
        return Path(xdg) / "gyrator"
    return Path(env.get("HOME") or os.path.expanduser("~")) / ".cache" / "gyrator"


@frozen
class CacheKey:
    """The name of an entry: its kind, its hash, and the digests of its input fields."""

    kind: str
    hex: str
    fields: Mapping[str, str]


def make_key(kind: str, fields: Mapping[str, bytes]) -> CacheKey:
    """Return the key of an entry built from `fields`. The order of the fields is irrelevant."""
    digests = {name: hashlib.sha256(fields[name]).hexdigest() for name in sorted(fields)}
    canonical = json.dumps([SCHEMA, kind, list(digests.items())], separators=(",", ":"))
    return CacheKey(kind, hashlib.sha256(canonical.encode()).hexdigest(), digests)


@frozen
class Entry:
    """A verified entry: its folder and the names of its files."""

    path: Path
    files: tuple[str, ...]

    def file(self, name: str) -> Path:
        """Return the path of a file. KeyError if the entry has no file of that name."""
        if name not in self.files:
            raise KeyError(name)
        return self.path / name

    def read(self, name: str) -> bytes:
        """Return the contents of a file."""
        return _read(self.file(name))


class Cache:
    """One cache folder. Safe to use from many threads and processes and after a fork.

    A root that cannot be used (read-only, full, not a folder, owned by another user, writable by
    others) is replaced by a private temporary folder, with one warning.
    """

    def __init__(
        self,
        root: Path,
        limit: int = DEFAULT_LIMIT,
        lock_timeout: float = 60.0,
        used: Callable[["CacheKey", "Entry"], None] | None = None,
    ) -> None:
        """Open the folder `root`. `used` is called for every entry that is read or written."""
        self.limit = limit
        self.lock_timeout = lock_timeout
        self._used = used
        self._written = _PRUNE_EVERY  # the first put prunes
        self._temporary_root: Path | None = None
        self._warned: set[str] = set()
        root = Path(os.path.realpath(root))  # a link may change later
        reason = _prepare(root)
        self.root = root if reason is None else self._fall_back(root, reason)

    @property
    def persistent(self) -> bool:
        """Whether entries outlive the process."""
        return self._temporary_root is None

    # -- reading ---------------------------------------------------------------------------

    def get(self, key: CacheKey) -> Entry | None:
        """Return the verified entry of `key`, or None, and mark it as recently used."""
        for root in self._roots():
            folder = _folder(root, key)
            files, damage = _verify(folder, key)
            if files is not None:
                with contextlib.suppress(OSError):
                    os.utime(folder)
                return self._notified(key, Entry(folder, files))
            if damage:
                self._discard(folder, damage)
        return None

    def stored(self) -> Iterator[CacheKey]:
        """Return the keys of all entries."""
        for root in self._roots():
            for kind in _children(root / "entries"):
                for folder in _entries(kind):
                    yield CacheKey(kind.name, folder.name, _stored_fields(folder) or {})

    def nearest(self, key: CacheKey, same: str = "") -> tuple[str, ...] | None:
        """Return the names of the fields in which the most similar other entry of the kind differs.

        An entry that agrees in the field `same` is more similar than any that does not. None if
        there is no other entry of that kind. Reads all manifests, so it is for diagnostics only.
        """
        best: list[str] | None = None
        for root in self._roots():
            for folder in _entries(root / "entries" / key.kind):
                fields = None if folder.name == key.hex else _stored_fields(folder)
                if fields is None:
                    continue
                names = fields.keys() | key.fields.keys()
                differ = sorted(n for n in names if fields.get(n) != key.fields.get(n))
                if best is None or (same in differ, len(differ)) < (same in best, len(best)):
                    best = differ
        return None if best is None else tuple(best)

    # -- writing ---------------------------------------------------------------------------

    def put(self, key: CacheKey, files: Mapping[str, bytes]) -> Entry:
        """Store `files` under `key` and return the entry. An existing entry is kept."""

        def write(folder: Path) -> None:
            for name, data in files.items():
                (folder / name).write_bytes(data)

        return self._store(key, write)

    def try_put(self, key: CacheKey, files: Mapping[str, bytes]) -> None:
        """Store `files` under `key` if possible; a failure only causes a warning."""
        try:
            self.put(key, files)
        except CacheError as error:
            self._warn_once("full", error.diagnostic)

    def get_or_build(self, key: CacheKey, build: Callable[[Path], None]) -> Entry:
        """Return the entry of `key`; if there is none, call `build(folder)` to create it.

        `build` writes the entry's files into an empty private folder. Other processes and threads
        that need the same key wait for up to `lock_timeout` seconds, then build it themselves: the
        lock only saves work. Exceptions of `build` propagate, and nothing is stored.
        """
        entry = self.get(key)
        if entry is not None:
            return entry
        with _locked(self.root / "locks" / f"{key.hex}.lock", self.lock_timeout):
            return self.get(key) or self._store(key, build)

    def remove(self, key: CacheKey) -> None:
        """Remove the entry of `key`, if any."""
        for root in self._roots():
            _remove(_folder(root, key))

    def discard(self, key: CacheKey, damage: str) -> None:
        """Remove the entry of `key`, which turned out to be unusable, and warn once."""
        for root in self._roots():
            self._discard(_folder(root, key), damage)

    def prune(self, limit: int | None = None) -> int:
        """Remove the least recently used entries above `limit` bytes, and files of dead processes.

        Returns the total size of the remaining entries in bytes.
        """
        limit = self.limit if limit is None else limit
        _sweep_tmp(self.root / "tmp")
        _sweep_locks(self.root / "locks")
        entries: list[tuple[float, int, Path]] = []
        for kind in _children(self.root / "entries"):
            for folder in _entries(kind):
                with contextlib.suppress(OSError):
                    size = sum(f.lstat().st_size for f in folder.iterdir())
                    entries.append((folder.stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries):
            if total <= limit:
                break
            _remove(folder)
            total -= size
        return total

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Provide a private empty folder for the duration of the block."""
        folder = _new_tmp(self.root)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # -- inside ----------------------------------------------------------------------------

    def _roots(self) -> tuple[Path, ...]:
        return (
            (self.root,)
            if self._temporary_root in (None, self.root)
            else (self.root, self._temporary_root)
        )

    def _store(self, key: CacheKey, write: Callable[[Path], None]) -> Entry:
        try:
            return self._notified(key, self._store_in(self.root, key, write))
        except OSError as error:
            if self._temporary_root == self.root:
                raise _unusable(self.root, error) from error
            temporary_root = self._fall_back(self.root, str(error))
        try:
            return self._notified(key, self._store_in(temporary_root, key, write))
        except OSError as error:
            raise _unusable(temporary_root, error) from error

    def _notified(self, key: CacheKey, entry: Entry) -> Entry:
        if self._used is not None:
            self._used(key, entry)
        return entry

    def _store_in(self, root: Path, key: CacheKey, write: Callable[[Path], None]) -> Entry:
        work = _new_tmp(root)
        try:
            write(work)
            names = tuple(sorted(p.name for p in work.iterdir()))
            size = _write_manifest(work, names, key)
            self._count(size)  # may prune; before the new entry exists, so that it is not removed
            final = _folder(root, key)
            _make_folder(final.parent)
            try:
                os.rename(work, final)
            except OSError:
                files, _ = _verify(final, key)
                if files is None:  # not a lost race
                    raise
                return Entry(final, files)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return Entry(final, names)

    def _count(self, size: int) -> None:
        self._written += size
        if self._written >= _PRUNE_EVERY:
            self._written = 0
            with contextlib.suppress(OSError):
                self.prune()

    def _discard(self, folder: Path, damage: str) -> None:
        if not _remove(folder) and not os.path.lexists(folder):
            return
        message = f"cache entry {folder.name[:16]} is damaged ({damage}) and will be rebuilt"
        help = "nothing to do; if this recurs, check the disk that holds the cache"
        self._warn_once(str(folder), Diagnostic("GY-CACHE-001", message, help=help))

    def _fall_back(self, root: Path, reason: str) -> Path:
        if self._temporary_root is None:
            self._temporary_root = Path(tempfile.mkdtemp(prefix="gyrator-"))
            weakref.finalize(self, _remove_own, self._temporary_root, os.getpid())
            _prepare(self._temporary_root)
        message = (
            f"the cache folder {root} cannot be used ({reason}); this process compiles without "
        )
        help = "set GYRATOR_CACHE_DIR to a folder that you own, with free space"
        self._warn_once(
            "spare", Diagnostic("GY-CACHE-002", f"{message}a persistent cache", help=help)
        )
        return self._temporary_root

    def _warn_once(self, about: str, diagnostic: Diagnostic) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warn(diagnostic.code, diagnostic.message, diagnostic.help)


def usage(root: Path) -> tuple[int, int]:
    """Return the number and the total size in bytes of all files below the root of a cache.

    Files that other processes remove meanwhile are left out.
    """
    files = size = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(folder, name)).st_size
                files += 1
    return files, size


def _prepare(root: Path) -> str | None:
    """Prepare `root` for use. Return the reason why it is not usable, or None."""
    try:
        _make_folder(root)
        state = root.stat()
        if state.st_uid != os.geteuid():
            return f"it belongs to user {state.st_uid}"
        if parent := _writable_parent(root, state):
            return f"others can replace what is in {parent}"
        if stat.S_IMODE(state.st_mode) != 0o700:
            root.chmod(0o700)
        if state.st_mode & _OTHERS_WRITE and (foreign := _foreign_file(root)):
            return f"others could write to it, and {foreign} is not a file of yours alone"
        for name in ("entries", "locks", "tmp"):
            _make_folder(root / name)
        probe = root / "tmp" / _tmp_name()
        probe.mkdir(mode=0o700)
        probe.rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, accessible only to the user."""
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError as error:
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is not a folder") from error


def _writable_parent(root: Path, state: os.stat_result) -> Path | None:
    """Return a parent of `root` in which others could replace the folder below it, or None.

    The user's own group (with the same number) is assumed to have no other members.
    """
    for parent in root.parents:
        child, state = state, parent.stat()
        own_group = state.st_gid in (0, os.geteuid())
        if state.st_mode & stat.S_ISVTX:  # sticky: only owners may rename
            if child.st_uid not in (0, os.geteuid()):
                return parent
        elif state.st_mode & (stat.S_IWOTH if own_group else _OTHERS_WRITE):
            return parent
    return None


def _foreign_file(root: Path) -> str:
    """Return the name of a file or folder below `root` that is not private, or an empty string."""
    for parent, folders, files in os.walk(root):
        for name, plain in (*((n, False) for n in folders), *((n, True) for n in files)):
            if not _is_private(os.lstat(os.path.join(parent, name)), plain):
                return name
    return ""


def _is_private(state: os.stat_result, plain: bool) -> bool:
    """Return whether this is a regular file (`plain`) or folder that the user owns and only the
    user can write."""
    kind = stat.S_ISREG if plain else stat.S_ISDIR
    own = state.st_uid == os.geteuid() and not state.st_mode & _OTHERS_WRITE
    return own and kind(state.st_mode)


def _read(path: Path | str, folder: int | None = None, *, close: bool = False) -> bytes:
    """Return the contents of a private regular file; OSError for anything else.

    `close` removes the permissions of others first.
    """
    with open(os.open(path, os.O_RDONLY | _OPEN_FLAGS, dir_fd=folder), "rb", buffering=0) as file:
        if close:
            os.fchmod(file.fileno(), 0o600)
        if not _is_private(os.fstat(file.fileno()), plain=True):
            raise OSError(errno.EPERM, "not a plain file that only its owner may write")
        return file.readall()


@contextlib.contextmanager
def _locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock `path`, or proceed without it after `seconds`."""
    # An operating system lock is released when its holder dies, so kill -9 blocks no one. Each
    # holder opens the file separately: an open file must not be shared by threads or forks.
    end = time.monotonic() + seconds
    file: int | None = None
    try:
        while (file := _try_lock(path)) is None and time.monotonic() < end:
            time.sleep(_LOCK_POLL)
    except OSError:
        pass  # locks do not work on this file system
    try:
        yield
    finally:
        if file is not None:
            _unlock(path, file)


def _try_lock(path: Path) -> int | None:
    """Return an open file that holds the lock `path`, or None if another holds it.

    OSError if locks do not work.
    """
    _make_folder(path.parent)
    file = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The last holder may have removed the file since it was opened.
        if os.path.samestat(os.fstat(file), os.lstat(path)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _unlock(path: Path, file: int) -> None:
    """Remove a held lock. A process that opened the file meanwhile detects the removal."""
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)  # a fork may have inherited the open file
    os.close(file)


def _sweep_locks(folder: Path) -> None:
    """Remove lock files that are not held."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if (file := _try_lock(folder / name)) is not None:
                _unlock(folder / name, file)


def _folder(root: Path, key: CacheKey) -> Path:
    return root / "entries" / key.kind / key.hex[:2] / key.hex


def _write_manifest(folder: Path, names: tuple[str, ...], key: CacheKey) -> int:
    """Write the manifest of the files in `folder`; return their total size in bytes."""
    files: dict[str, dict[str, int | str]] = {}
    total = 0
    for name in names:
        data = _read(folder / name, close=True)
        files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        total += len(data)
    about = {"key": key.hex, "schema": SCHEMA}
    text = json.dumps({"files": files, "fields": dict(key.fields), "about": about}, sort_keys=True)
    (folder / MANIFEST).write_bytes(text.encode())
    _read(folder / MANIFEST, close=True)
    return total


def _stored_fields(folder: Path) -> dict[str, str] | None:
    try:
        fields = json.loads(_read(folder / MANIFEST))["fields"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {str(n): str(d) for n, d in fields.items()} if isinstance(fields, dict) else None


def _verify(folder: Path, key: CacheKey) -> tuple[tuple[str, ...] | None, str]:
    """Return (files, "") for an intact entry, (None, "") for a missing one, else (None, damage)."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _OPEN_FLAGS)
    except FileNotFoundError:  # another thread or process may have created it by now
        return None, ""
    except OSError:
        return None, "no folder"
    try:
        if not _is_private(os.fstat(opened), plain=False):
            return None, "others may write to it"
        return _verify_files(opened, key)
    finally:
        os.close(opened)


def _verify_files(folder: int, key: CacheKey) -> tuple[tuple[str, ...] | None, str]:
    try:
        text = _read(MANIFEST, folder)
    except FileNotFoundError:
        return None, "no manifest"
    except OSError as error:
        return None, f"{MANIFEST}: {error.strerror}"
    try:
        manifest = json.loads(text)
        if manifest["about"] != {"key": key.hex, "schema": SCHEMA}:
            return None, "manifest of another entry"
        files = {n: (int(row["size"]), str(row["sha256"])) for n, row in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, "unreadable manifest"
    for name, (size, digest) in files.items():
        try:
            data = _read(name, folder)
        except FileNotFoundError:
            return None, f"no {name}"
        except OSError as error:
            return None, f"{name}: {error.strerror}"
        if len(data) != size:
            return None, f"{name} has {len(data)} bytes, not {size}"
        if hashlib.sha256(data).hexdigest() != digest:
            return None, f"{name} has another hash"
    return tuple(files), ""


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir())
    except OSError:
        return []


def _entries(kind: Path) -> list[Path]:
    return [entry for shard in _children(kind) for entry in _children(shard)]


def _remove(folder: Path) -> bool:
    """Remove an entry, or whatever is in its place. Return whether it existed."""
    # Renamed first, so that no reader sees a partial entry.
    renamed = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.gone")
    try:
        os.rename(folder, renamed)
    except OSError:
        return False
    if renamed.is_dir() and not renamed.is_symlink():
        shutil.rmtree(renamed, ignore_errors=True)
    else:
        renamed.unlink(missing_ok=True)
    return True


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not remove its parent's folder
        shutil.rmtree(folder, ignore_errors=True)


def _pid_space() -> str:
    """Return an identifier of this process table, distinct from other machines and containers."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return hashlib.sha256(f"{platform.node()}/{space}".encode()).hexdigest()[:8]


def _tmp_name() -> str:
    return f"{os.getpid()}-{_pid_space()}-{secrets.token_hex(8)}"


def _new_tmp(root: Path) -> Path:
    folder = root / "tmp" / _tmp_name()
    _make_folder(folder.parent)  # another process may have removed the whole cache
    folder.mkdir(mode=0o700)
    return folder


def _sweep_tmp(root: Path) -> None:
    pid_space = _pid_space()
    for folder in _children(root):
        pid, _, rest = folder.name.partition("-")
        with contextlib.suppress(OSError):
            old = time.time() - folder.stat().st_mtime > _STALE_SECONDS
            ours = pid.isdecimal() and rest.startswith(pid_space)
            if old or (ours and not _alive(int(pid))):
                shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _unusable(root: Path, error: OSError) -> CacheError:
    return CacheError.of(
        "GY-CACHE-003",
        f"neither the cache nor {root} can be written: {error.strerror or error}",
        help="free some disk space, or set GYRATOR_CACHE_DIR and TMPDIR to writable folders",
    )
