import errno
import fcntl
import json
import multiprocessing
import os
import signal
import stat
import threading
import time
import warnings
from pathlib import Path

import pytest

from gyrator_runtime.cache import MANIFEST, Cache, CacheError, default_root, make_key, usage
from gyrator_runtime.warn import GyratorWarning

KEY = make_key("thing", {"text": b"int x;", "flags": b"-O3"})


def test_default_root():
    assert default_root({"GYRATOR_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert default_root({"XDG_CACHE_HOME": "/b", "HOME": "/c"}) == Path("/b/gyrator")
    assert default_root({"HOME": "/c"}) == Path("/c/.cache/gyrator")


def test_keys():
    assert make_key("thing", {"flags": b"-O3", "text": b"int x;"}) == KEY
    others = [
        make_key("thang", {"text": b"int x;", "flags": b"-O3"}),
        make_key("thing", {"text": b"int x;", "flags": b"-O2"}),
        make_key("thing", {"text": b"int x;flags-O3"}),
        make_key("thing", {"textflags": b"int x;-O3"}),
        make_key("thing", {"text": b"int x;", "flags": b"-O3", "more": b""}),
    ]
    assert len({k.hex for k in (KEY, *others)}) == 6
    assert len(KEY.hex) == 64


def test_nearest_names_the_fields_that_differ(tmp_path):
    cache = Cache(tmp_path / "c")
    assert cache.nearest(KEY) is None
    cache.put(make_key("thing", {"text": b"other", "flags": b"-O1"}), {"f": b""})
    cache.put(make_key("thing", {"text": b"int x;", "flags": b"-O2"}), {"f": b""})
    assert cache.nearest(KEY) == ("flags",)
    cache.put(KEY, {"f": b""})
    assert cache.nearest(KEY) == ("flags",)  # an entry is not its own neighbour
    cache.put(make_key("thing", {"text": b"char x;", "flags": b"-O3"}), {"f": b""})
    assert [cache.nearest(KEY, same) for same in ("text", "flags")] == [("flags",), ("text",)]


def test_round_trip_and_privacy(tmp_path):
    cache = Cache(tmp_path / "c")
    assert cache.get(KEY) is None
    entry = cache.put(KEY, {"a.txt": b"one", "b.bin": bytes(range(256))})
    assert entry.read("a.txt") == b"one"
    again = Cache(tmp_path / "c").get(KEY)
    assert again is not None
    assert again.read("b.bin") == bytes(range(256))
    with pytest.raises(KeyError):
        again.file("c")
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    cache.remove(KEY)
    assert cache.get(KEY) is None


def test_open_folder_is_closed_to_others(tmp_path):
    Cache(tmp_path / "c").put(KEY, {"a": b"one"})
    (tmp_path / "c").chmod(0o777)
    assert Cache(tmp_path / "c").get(KEY) is not None
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


def _writable_file(root):
    next(root.rglob("a")).chmod(0o666)


def _writable_folder(root):
    (root / "entries").chmod(0o770)


def _link(root):
    (root / "entries" / "more").symlink_to("/")


@pytest.mark.parametrize("plant", [_writable_file, _writable_folder, _link])
def test_an_open_folder_in_which_others_may_have_been_is_not_used(tmp_path, plant):
    root = tmp_path / "c"
    Cache(root).put(KEY, {"a": b"one"})
    plant(root)
    root.chmod(0o777)
    with pytest.warns(GyratorWarning, match="others could write to it"):
        cache = Cache(root)
    assert cache.get(KEY) is None
    assert not cache.root.is_relative_to(tmp_path)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_can_replace_is_not_used(tmp_path, mode):
    open_folder = tmp_path / "shared"
    open_folder.mkdir()
    if mode == 0o775:
        if os.getuid():
            pytest.skip("only root can give a folder to any group")
        os.chown(open_folder, -1, 12345)
    open_folder.chmod(mode)
    if mode == 0o1777:
        assert Cache(open_folder / "c").root == open_folder / "c"
        return
    with pytest.warns(GyratorWarning, match=f"others can replace what is in {open_folder}"):
        assert Cache(open_folder / "below" / "c").root != open_folder / "below" / "c"


def test_the_way_to_the_folder_is_made_for_the_user_alone(tmp_path):
    mask = os.umask(0)
    try:
        cache = Cache(tmp_path / "a" / "b" / "c")
        cache.get_or_build(KEY, lambda folder: (folder / "x").write_bytes(b"x") and None)
    finally:
        os.umask(mask)
    assert cache.root == tmp_path / "a" / "b" / "c"
    for path in (tmp_path / "a", *tmp_path.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_link_to_the_folder_is_read_once(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "c")
    assert Cache(tmp_path / "link").root == tmp_path / "c"


def test_a_relative_folder_does_not_move(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Cache(Path("c")).root == tmp_path / "c"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root({"GYRATOR_CACHE_DIR": "~/c"}) == tmp_path / "c"
    assert default_root({"GYRATOR_CACHE_DIR": "~no-such-user/c"}) == Path("~no-such-user/c")


def test_relocatable(tmp_path):
    Cache(tmp_path / "c").put(KEY, {"a": b"one"})
    for file in (tmp_path / "c").rglob("*"):
        if file.is_file():
            assert str(tmp_path).encode() not in file.read_bytes()
    (tmp_path / "c").rename(tmp_path / "d")
    entry = Cache(tmp_path / "d").get(KEY)
    assert entry is not None
    assert entry.read("a") == b"one"


def test_first_writer_wins(tmp_path):
    cache = Cache(tmp_path / "c")
    cache.put(KEY, {"a": b"one"})
    assert cache.put(KEY, {"a": b"two"}).read("a") == b"one"
    assert list((tmp_path / "c" / "tmp").iterdir()) == []


def _truncate(folder):
    (folder / "a").write_bytes(b"on")


def _flip(folder):
    (folder / "a").write_bytes(b"onf")


def _lose_file(folder):
    (folder / "a").unlink()


def _lose_manifest(folder):
    (folder / MANIFEST).unlink()


def _garble_manifest(folder):
    (folder / MANIFEST).write_text("{")


def _open_to_others(folder):
    (folder / "a").chmod(0o660)


def _open_manifest(folder):
    (folder / MANIFEST).chmod(0o602)


def _open_entry(folder):
    folder.chmod(0o702)


def _pipe(folder):
    (folder / "a").unlink()
    os.mkfifo(folder / "a", 0o600)


def _pipe_for_manifest(folder):
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST, 0o600)


def _pipe_for_entry(folder):
    folder.rename(folder.with_name("away"))
    os.mkfifo(folder, 0o600)


def _link_elsewhere(folder):
    (folder / "a").rename(folder.parent / "a")
    (folder / "a").symlink_to(folder.parent / "a")


def _linked_entry(folder):
    folder.rename(folder.with_name("away"))
    folder.symlink_to(folder.with_name("away"))


def _folder_for_file(folder):
    (folder / "a").unlink()
    (folder / "a").mkdir()


def _strange_manifest(folder):
    (folder / MANIFEST).write_text("[1, 2]")


def _other_manifest(folder):
    text = json.loads((folder / MANIFEST).read_text())
    text["about"]["key"] = "0" * 64
    (folder / MANIFEST).write_text(json.dumps(text))


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _flip,
        _lose_file,
        _lose_manifest,
        _garble_manifest,
        _strange_manifest,
        _open_to_others,
        _open_manifest,
        _open_entry,
        _pipe,
        _pipe_for_manifest,
        _pipe_for_entry,
        _link_elsewhere,
        _linked_entry,
        _folder_for_file,
        _other_manifest,
    ],
)
def test_damaged_entry_is_a_miss_with_one_warning(tmp_path, damage):
    cache = Cache(tmp_path / "c")
    damage(cache.put(KEY, {"a": b"one"}).path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cache.get(KEY) is None
        assert cache.get(KEY) is None
    assert [w.category for w in caught] == [GyratorWarning]
    assert "GY-CACHE-001" in str(caught[0].message)
    assert cache.put(KEY, {"a": b"one"}).read("a") == b"one"
    assert cache.get(KEY) is not None


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "c").write_text("in the way")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = Cache(tmp_path / "c")
        cache.put(KEY, {"a": b"one"})
    assert [w.category for w in caught] == [GyratorWarning]
    message = f"GY-CACHE-002: the cache folder {tmp_path / 'c'} cannot be used (it is not a folder)"
    assert str(caught[0].message).startswith(message)
    entry = cache.get(KEY)
    assert entry is not None
    assert entry.read("a") == b"one"
    assert stat.S_IMODE(cache.root.stat().st_mode) == 0o700
    assert (tmp_path / "c").read_text() == "in the way"


def test_a_folder_that_cannot_be_written():
    # Nobody, root included, makes folders there.
    with pytest.warns(GyratorWarning, match="GY-CACHE-002"):
        cache = Cache(Path("/proc/self/gyrator"))
    assert cache.put(KEY, {"a": b"one"}).read("a") == b"one"


def test_a_folder_of_another_user(tmp_path, monkeypatch):
    (tmp_path / "c").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.warns(GyratorWarning, match="belongs to user"):
        cache = Cache(tmp_path / "c")
    assert cache.root != tmp_path / "c"


def test_disk_full_falls_back_then_fails_clearly(tmp_path, monkeypatch):
    cache = Cache(tmp_path / "c")
    written = Path.write_bytes
    full = [str(tmp_path)]

    def write_bytes(self, data):
        if any(str(self).startswith(f) for f in full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(self, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entry = cache.put(KEY, {"a": b"one"})
        cache.put(make_key("thing", {}), {"a": b"two"})
    assert [w.category for w in caught] == [GyratorWarning]
    assert "No space left" in str(caught[0].message)
    assert entry.read("a") == b"one"
    assert cache.get(KEY) is not None
    assert list((tmp_path / "c" / "tmp").iterdir()) == []
    full.append("/")
    with pytest.warns(GyratorWarning, match="GY-CACHE-003"):
        cache.try_put(make_key("more", {}), {"a": b"one"})
    with pytest.raises(CacheError) as error:
        cache.put(make_key("more", {}), {"a": b"one"})
    assert error.value.diagnostic.code == "GY-CACHE-003"


def test_real_full_disk(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    cache = Cache(tmp_path / "c")

    def build(folder):
        if folder.is_relative_to(tmp_path):
            os.symlink(full, folder / "a")
            (folder / "a").write_bytes(b"one")
        (folder / "a").write_bytes(b"one")

    with pytest.warns(GyratorWarning, match="No space left"):
        assert cache.get_or_build(KEY, build).read("a") == b"one"


def test_failing_build_leaves_nothing(tmp_path):
    cache = Cache(tmp_path / "c")

    def build(folder):
        (folder / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.get_or_build(KEY, build)
    assert cache.get(KEY) is None
    assert list((tmp_path / "c" / "tmp").iterdir()) == []
    assert not (tmp_path / "c" / "entries" / "thing").exists()


def test_prune_drops_the_least_recently_used(tmp_path):
    cache = Cache(tmp_path / "c")
    keys = [make_key("thing", {"n": bytes([n])}) for n in range(4)]
    for age, key in enumerate(keys):
        entry = cache.put(key, {"a": bytes(10_000)})
        os.utime(entry.path, (1000.0 + age, 1000.0 + age))
    assert cache.get(keys[0]) is not None  # used just now
    left = cache.prune(limit=25_000)
    assert left <= 25_000
    assert [cache.get(k) is not None for k in keys] == [True, False, False, True]


def test_prune_happens_by_itself(tmp_path):
    cache = Cache(tmp_path / "c", limit=50_000_000)
    for n in range(5):
        cache.put(make_key("thing", {"n": bytes([n])}), {"a": bytes(40_000_000)})
    assert sum(f.stat().st_size for f in tmp_path.rglob("a")) < 200_000_000


def test_usage_while_another_thread_writes_and_removes(tmp_path):
    cache = Cache(tmp_path / "c")
    cache.put(KEY, {"a": bytes(5000)})
    kept = usage(cache.root)
    stop = threading.Event()

    def write_and_remove():
        while not stop.is_set():
            with cache.scratch() as folder:
                for n in range(20):
                    (folder / str(n)).write_bytes(bytes(7))

    writer = threading.Thread(target=write_and_remove)
    writer.start()
    try:
        seen = [usage(cache.root) for _ in range(300)]
    finally:
        stop.set()
        writer.join()
    assert all(size - kept[1] <= 7 * (files - kept[0]) <= 140 for files, size in seen)
    assert usage(cache.root) == kept


def test_prune_sweeps_what_dead_writers_left(tmp_path):
    cache = Cache(tmp_path / "c")
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_die_while_writing, args=(tmp_path / "c", -1.0))
    child.start()
    child.join(60)
    assert len(list((tmp_path / "c" / "tmp").iterdir())) == 1
    with cache.scratch() as own_folder:
        cache.prune()
        assert list((tmp_path / "c" / "tmp").iterdir()) == [own_folder]


def _die_while_writing(root, delay):
    def build(folder):
        (folder / "a").write_bytes(b"half")
        if delay >= 0:
            (root / "started").touch()
            time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    Cache(root).get_or_build(KEY, build)


def _count_builds(root, log, barrier):
    def build(folder):
        with open(log, "a") as out:
            out.write("built\n")
        time.sleep(0.3)
        (folder / "a").write_bytes(b"one")

    cache = Cache(root)
    barrier.wait(60)
    if cache.get_or_build(KEY, build).read("a") != b"one":
        os._exit(3)


def test_processes_build_a_key_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    args = (tmp_path / "c", tmp_path / "log", barrier)
    children = [context.Process(target=_count_builds, args=args) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [c.exitcode for c in children] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "built\n"


def test_threads_build_a_key_once(tmp_path):
    cache = Cache(tmp_path / "c")
    builds = []

    def build(folder):
        builds.append(folder)
        time.sleep(0.1)
        (folder / "a").write_bytes(b"one")

    got = []
    threads = [
        threading.Thread(target=lambda: got.append(cache.get_or_build(KEY, build).read("a")))
        for _ in range(8)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [b"one"] * 8
    assert len(builds) == 1


def test_kill_9_of_a_builder_blocks_nobody(tmp_path):
    context = multiprocessing.get_context("spawn")
    root = tmp_path / "c"
    child = context.Process(target=_die_while_writing, args=(root, 600.0))
    child.start()
    deadline = time.monotonic() + 60
    while not (root / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (root / "started").exists()
    cache = Cache(root, lock_timeout=3600.0)
    got = []

    def build(folder):
        (folder / "a").write_bytes(b"whole")

    waiting = threading.Thread(target=lambda: got.append(cache.get_or_build(KEY, build)))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()  # the other one holds the lock
    child.kill()
    child.join()
    waiting.join(60)
    assert got[0].read("a") == b"whole"


def test_a_holder_that_never_ends_is_waited_for_only_so_long(tmp_path):
    root = tmp_path / "c"
    lock_held, done = threading.Event(), threading.Event()

    def slow(folder):
        lock_held.set()
        done.wait(60)
        (folder / "a").write_bytes(b"slow")

    holder = threading.Thread(target=lambda: Cache(root).get_or_build(KEY, slow))
    holder.start()
    lock_held.wait(60)
    entry = Cache(root, lock_timeout=0.2).get_or_build(
        KEY, lambda folder: (folder / "a").write_bytes(b"quick") and None
    )
    assert entry.read("a") == b"quick"
    done.set()
    holder.join()
    assert Cache(root).get(KEY).read("a") == b"quick"


def test_fork_while_a_thread_builds(tmp_path):
    cache = Cache(tmp_path / "c")
    lock_held = threading.Event()

    def slow(folder):
        lock_held.set()
        time.sleep(0.5)
        (folder / "a").write_bytes(b"parent")

    holder = threading.Thread(target=lambda: cache.get_or_build(KEY, slow))
    holder.start()
    lock_held.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            entry = cache.get_or_build(KEY, lambda _: os._exit(2))
            other = cache.get_or_build(
                make_key("mine", {}), lambda folder: (folder / "a").write_bytes(b"x") and None
            )
            status = 0 if (entry.read("a"), other.read("a")) == (b"parent", b"x") else 4
        finally:
            os._exit(status)
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_entry_of_another_user_is_not_read(tmp_path):
    if os.getuid():
        pytest.skip("only root can give files away")
    cache = Cache(tmp_path / "c")
    entry = cache.put(KEY, {"a": b"one"})
    os.chown(entry.file("a"), 12345, -1)
    with pytest.raises(OSError, match="only its owner"):
        entry.read("a")
    with pytest.warns(GyratorWarning, match="GY-CACHE-001"):
        assert cache.get(KEY) is None


def _make_pipe(path):
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_make_pipe, Path.mkdir, lambda p: p.symlink_to("/dev/zero")])
def test_what_is_in_place_of_a_lock_holds_nobody_up(tmp_path, make):
    cache = Cache(tmp_path / "c")
    make(cache.root / "locks" / f"{KEY.hex}.lock")
    entry = cache.get_or_build(KEY, lambda folder: (folder / "a").write_bytes(b"x") and None)
    assert entry.read("a") == b"x"


def test_locks_go_with_their_holders(tmp_path):
    cache = Cache(tmp_path / "c")
    locks = cache.root / "locks"
    keys = [make_key("thing", {"n": bytes([n])}) for n in range(3)]

    def build(folder):
        assert [p.name for p in locks.iterdir()] == [f"{keys[0].hex}.lock"]
        (locks / "dead.lock").touch()
        cache.prune()  # takes the one that nobody holds
        assert [p.name for p in locks.iterdir()] == [f"{keys[0].hex}.lock"]
        (folder / "a").write_bytes(b"x")

    cache.get_or_build(keys[0], build)
    assert list(locks.iterdir()) == []


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    inside, most = [], []

    def build(folder):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.002)
        inside.pop()
        raise ValueError

    def hammer():
        cache = Cache(tmp_path / "c")
        for _ in range(10):
            with pytest.raises(ValueError):
                cache.get_or_build(KEY, build)

    threads = [threading.Thread(target=hammer) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(most) == 60 and set(most) == {1}
    assert list((tmp_path / "c" / "locks").iterdir()) == []


def test_locks_that_do_not_work_are_done_without(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    cache = Cache(tmp_path / "c")
    entry = cache.get_or_build(KEY, lambda folder: (folder / "a").write_bytes(b"x") and None)
    assert entry.read("a") == b"x"


def test_the_cache_removed_under_a_running_process(tmp_path):
    import shutil

    cache = Cache(tmp_path / "c")
    cache.put(KEY, {"a": b"one"})
    shutil.rmtree(tmp_path / "c")
    assert cache.get(KEY) is None
    entry = cache.get_or_build(KEY, lambda folder: (folder / "a").write_bytes(b"x") and None)
    assert entry.read("a") == b"x"
