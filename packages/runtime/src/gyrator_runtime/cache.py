"""A content-addressed store on disk, shared by any number of processes.

    root/                      0700, owned by the user
      entries/<kind>/<k2>/<key>/   one folder an entry: its files and manifest.json
      locks/<key>.lock             one file lock a key, there while somebody builds it
      tmp/<pid>-<space>-<random>/  entries being written; renamed into place when whole

Entries are immutable, hold no absolute path, and are named by the SHA-256 of what they were made
from. A folder appears in `entries` by one `rename`, so a killed writer leaves only something under
`tmp`, which `prune` removes. Every load compares sizes and hashes with the manifest; an entry that
differs is removed and counts as a miss. So is one that holds anything but plain files which the
user owns and nobody else may write: what others planted is not run.
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

from attrs import frozen

from gyrator_ir.diagnostics import Diagnostic, GyratorError
from gyrator_runtime.warn import warn

__all__ = ["Cache", "CacheError", "CacheKey", "Entry", "default_root", "make_key"]

MANIFEST = "manifest.json"
SCHEMA = 2
DEFAULT_LIMIT = 4 << 30
"""Bytes of entries that a cache keeps before it drops the least recently used."""

_STALE_SECONDS = 3600.0
_PRUNE_EVERY = 64 << 20
_LOCK_POLL = 0.02
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# A pipe in place of a file must not hold anybody up, nor a link lead elsewhere.
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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
    """The name of an entry: its kind, its hash, and the digests of the fields it was made from."""

    kind: str
    hex: str
    fields: Mapping[str, str]


def make_key(kind: str, fields: Mapping[str, bytes]) -> CacheKey:
    """Hash `fields` (what the entry is made from) in an order-free and unambiguous way."""
    digests = {name: hashlib.sha256(fields[name]).hexdigest() for name in sorted(fields)}
    canonical = json.dumps([SCHEMA, kind, list(digests.items())], separators=(",", ":"))
    return CacheKey(kind, hashlib.sha256(canonical.encode()).hexdigest(), digests)


@frozen
class Entry:
    """A verified entry: its folder and the names of its files."""

    path: Path
    files: tuple[str, ...]

    def file(self, name: str) -> Path:
        """Return the path of one file; KeyError where the entry has none of that name."""
        if name not in self.files:
            raise KeyError(name)
        return self.path / name

    def read(self, name: str) -> bytes:
        """Return the bytes of one file."""
        return _read(self.file(name))


class Cache:
    """One cache folder. Safe to use from many threads and processes and after a fork.

    A root that cannot be used (read-only, full, not a folder, another user's, open to others) is
    replaced by a private temporary folder with one warning, so that callers need not care.
    """

    def __init__(
        self,
        root: Path,
        limit: int = DEFAULT_LIMIT,
        lock_timeout: float = 60.0,
        used: Callable[["CacheKey", "Entry"], None] | None = None,
    ) -> None:
        """Open the folder `root`. `used` is told of every entry that is read or written."""
        self.limit = limit
        self.lock_timeout = lock_timeout
        self._used = used
        self._written = _PRUNE_EVERY  # so that the first put prunes
        self._spare: Path | None = None
        self._warned: set[str] = set()
        root = Path(os.path.realpath(root))  # a link may be changed later
        reason = _prepare(root)
        self.root = root if reason is None else self._fall_back(root, reason)

    @property
    def lasting(self) -> bool:
        """Whether what is stored outlives the process."""
        return self._spare is None

    # -- reading ---------------------------------------------------------------------------

    def get(self, key: CacheKey) -> Entry | None:
        """Return the verified entry of `key`, or None. Marks it as recently used."""
        for root in self._roots():
            folder = _folder(root, key)
            files, damage = _verify(folder, key)
            if files is not None:
                with contextlib.suppress(OSError):
                    os.utime(folder)
                return self._told(key, Entry(folder, files))
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
        """Name the fields in which the most similar other entry of the same kind differs.

        One that agrees in the field `same` is more similar than any that does not. Returns None if
        there is no other entry of that kind. Reads the manifests of all: for people who ask.
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
        """Store `files` under `key` and return the entry; an entry already there wins."""

        def write(folder: Path) -> None:
            for name, data in files.items():
                (folder / name).write_bytes(data)

        return self._store(key, write)

    def keep(self, key: CacheKey, files: Mapping[str, bytes]) -> None:
        """Store `files` under `key` if that can be done; they can be done without."""
        try:
            self.put(key, files)
        except CacheError as error:
            self._warn_once("full", error.diagnostic)

    def get_or_build(self, key: CacheKey, build: Callable[[Path], None]) -> Entry:
        """Return the entry of `key`; where there is none, call `build(folder)` to make it.

        `build` writes the entry's files into an empty private folder. Other processes and threads
        that want the same key wait, up to `lock_timeout` seconds, then build it themselves: the
        lock only saves work. What `build` raises is passed on and nothing is stored.
        """
        entry = self.get(key)
        if entry is not None:
            return entry
        with _locked(self.root / "locks" / f"{key.hex}.lock", self.lock_timeout):
            return self.get(key) or self._store(key, build)

    def remove(self, key: CacheKey) -> None:
        """Forget the entry of `key` if there is one."""
        for root in self._roots():
            _remove(_folder(root, key))

    def discard(self, key: CacheKey, damage: str) -> None:
        """Forget the entry of `key`, which turned out to be of no use, and warn once."""
        for root in self._roots():
            self._discard(_folder(root, key), damage)

    def prune(self, limit: int | None = None) -> int:
        """Drop the least recently used entries over `limit` bytes, and what dead processes left.

        Returns the bytes of entries that stay.
        """
        limit = self.limit if limit is None else limit
        _sweep_tmp(self.root / "tmp")
        _sweep_locks(self.root / "locks")
        found: list[tuple[float, int, Path]] = []
        for kind in _children(self.root / "entries"):
            for folder in _entries(kind):
                with contextlib.suppress(OSError):
                    size = sum(f.lstat().st_size for f in folder.iterdir())
                    found.append((folder.stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in found)
        for _, size, folder in sorted(found):
            if total <= limit:
                break
            _remove(folder)
            total -= size
        return total

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private empty folder for the length of the block."""
        folder = _new_tmp(self.root)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # -- inside ----------------------------------------------------------------------------

    def _roots(self) -> tuple[Path, ...]:
        return (self.root,) if self._spare in (None, self.root) else (self.root, self._spare)

    def _store(self, key: CacheKey, write: Callable[[Path], None]) -> Entry:
        try:
            return self._told(key, self._store_in(self.root, key, write))
        except OSError as error:
            if self._spare == self.root:
                raise _unusable(self.root, error) from error
            spare = self._fall_back(self.root, str(error))
        try:
            return self._told(key, self._store_in(spare, key, write))
        except OSError as error:
            raise _unusable(spare, error) from error

    def _told(self, key: CacheKey, entry: Entry) -> Entry:
        if self._used is not None:
            self._used(key, entry)
        return entry

    def _store_in(self, root: Path, key: CacheKey, write: Callable[[Path], None]) -> Entry:
        work = _new_tmp(root)
        try:
            write(work)
            names = tuple(sorted(p.name for p in work.iterdir()))
            size = _write_manifest(work, names, key)
            self._count(size)  # before the entry is there, which is to stay
            final = _folder(root, key)
            _make_folder(final.parent)
            try:
                os.rename(work, final)
            except OSError:
                files, _ = _verify(final, key)
                if files is None:  # not a race that we lost
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
        said = f"cache entry {folder.name[:16]} is damaged ({damage}); it is built again"
        help = "nothing to do; if it happens often, check the disk that holds the cache"
        self._warn_once(str(folder), Diagnostic("GY-CACHE-001", said, help=help))

    def _fall_back(self, root: Path, reason: str) -> Path:
        if self._spare is None:
            self._spare = Path(tempfile.mkdtemp(prefix="gyrator-"))
            weakref.finalize(self, _remove_own, self._spare, os.getpid())
            _prepare(self._spare)
        said = f"the cache folder {root} cannot be used ({reason}); this process compiles without "
        help = "set GYRATOR_CACHE_DIR to a folder that you own, with free space"
        self._warn_once("spare", Diagnostic("GY-CACHE-002", f"{said}a lasting cache", help=help))
        return self._spare

    def _warn_once(self, about: str, what: Diagnostic) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warn(what.code, what.message, what.help)


def _prepare(root: Path) -> str | None:
    """Make `root` ready for use; return why it is not usable, or None."""
    try:
        _make_folder(root)
        state = root.stat()
        if state.st_uid != os.geteuid():
            return f"it belongs to user {state.st_uid}"
        if loose := _loose_parent(root, state):
            return f"others can replace what is in {loose}"
        if stat.S_IMODE(state.st_mode) != 0o700:
            root.chmod(0o700)
        if state.st_mode & _OTHERS_WRITE and (strange := _strange(root)):
            return f"others could write to it, and {strange} is not a file of yours alone"
        for name in ("entries", "locks", "tmp"):
            _make_folder(root / name)
        probe = root / "tmp" / _tmp_name()
        probe.mkdir(mode=0o700)
        probe.rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, for the user alone."""
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def _loose_parent(root: Path, state: os.stat_result) -> Path | None:
    """Return a folder above `root` in which others may put another one in its place, or None.

    A group that is the user's own (of the same number) has no others in it.
    """
    for parent in root.parents:
        below, state = state, parent.stat()
        own_group = state.st_gid in (0, os.geteuid())
        if state.st_mode & stat.S_ISVTX:  # there only owners rename
            if below.st_uid not in (0, os.geteuid()):
                return parent
        elif state.st_mode & (stat.S_IWOTH if own_group else _OTHERS_WRITE):
            return parent
    return None


def _strange(root: Path) -> str:
    """Return the name of something below `root` that is not the user's alone, or nothing."""
    for at, folders, files in os.walk(root):
        for name, plain in (*((n, False) for n in folders), *((n, True) for n in files)):
            if not _ours(os.lstat(os.path.join(at, name)), plain):
                return name
    return ""


def _ours(state: os.stat_result, plain: bool) -> bool:
    """Whether this is a plain file, or else a folder, which the user owns and only he may write."""
    kind = stat.S_ISREG if plain else stat.S_ISDIR
    own = state.st_uid == os.geteuid() and not state.st_mode & _OTHERS_WRITE
    return own and kind(state.st_mode)


def _read(path: Path | str, folder: int | None = None, *, close: bool = False) -> bytes:
    """Return the bytes of a plain file of the user's alone; OSError for anything else.

    `close` closes it to others first.
    """
    with open(os.open(path, os.O_RDONLY | _SAFELY, dir_fd=folder), "rb", buffering=0) as file:
        if close:
            os.fchmod(file.fileno(), 0o600)
        if not _ours(os.fstat(file.fileno()), plain=True):
            raise OSError(errno.EPERM, "not a plain file that only its owner may write")
        return file.readall()


@contextlib.contextmanager
def _locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock `path`, or go on without it after so many seconds."""
    # A lock of the operating system: it dies with its holder, so kill -9 blocks nobody. Each
    # holder opens the file anew, because an open file must not be shared by threads or forks.
    end = time.monotonic() + seconds
    held: int | None = None
    try:
        while (held := _try_lock(path)) is None and time.monotonic() < end:
            time.sleep(_LOCK_POLL)
    except OSError:
        pass  # locks do not work here
    try:
        yield
    finally:
        if held is not None:
            _unlock(path, held)


def _try_lock(path: Path) -> int | None:
    """Return an open file that holds the lock `path`, or None while another holds it.

    OSError where locks do not work.
    """
    _make_folder(path.parent)
    file = os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its last holder may have removed it since it was opened.
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
    """Remove a lock that is held. Whoever opened it meanwhile sees that it is gone."""
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)  # a fork may have copied the open file
    os.close(file)


def _sweep_locks(folder: Path) -> None:
    """Remove the locks that nobody holds."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if (held := _try_lock(folder / name)) is not None:
                _unlock(folder / name, held)


def _folder(root: Path, key: CacheKey) -> Path:
    return root / "entries" / key.kind / key.hex[:2] / key.hex


def _write_manifest(folder: Path, names: tuple[str, ...], key: CacheKey) -> int:
    """Describe the files in `folder`; return their size in bytes."""
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
    """Return (files, "") of a sound entry, (None, "") of a missing one, (None, damage) else."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _SAFELY)
    except FileNotFoundError:  # it may be there by now, from another thread or process
        return None, ""
    except OSError:
        return None, "no folder"
    try:
        if not _ours(os.fstat(opened), plain=False):
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
    """Remove an entry, or what is in its place; return whether it was there."""
    # Renamed first, so that no reader sees half an entry.
    doomed = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.gone")
    try:
        os.rename(folder, doomed)
    except OSError:
        return False
    if doomed.is_dir() and not doomed.is_symlink():
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        doomed.unlink(missing_ok=True)
    return True


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not remove its parent's folder
        shutil.rmtree(folder, ignore_errors=True)


def _pid_space() -> str:
    """Return what tells this process table from that of another machine or container."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return hashlib.sha256(f"{platform.node()}/{space}".encode()).hexdigest()[:8]


def _tmp_name() -> str:
    return f"{os.getpid()}-{_pid_space()}-{secrets.token_hex(8)}"


def _new_tmp(root: Path) -> Path:
    folder = root / "tmp" / _tmp_name()
    _make_folder(folder.parent)  # somebody may have removed the whole cache under us
    folder.mkdir(mode=0o700)
    return folder


def _sweep_tmp(tmp: Path) -> None:
    here = _pid_space()
    for folder in _children(tmp):
        pid, _, rest = folder.name.partition("-")
        with contextlib.suppress(OSError):
            old = time.time() - folder.stat().st_mtime > _STALE_SECONDS
            ours = pid.isdecimal() and rest.startswith(here)
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
