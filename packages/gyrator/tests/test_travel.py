"""Entries of the cache that go to other machines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import run_forked

from gyrator.cli.main import main
from gyrator_runtime.cache import Cache, CacheError, make_key
from gyrator_runtime.transfer import export_cache, import_cache, packed, unpack

MAKE = """
import sys, torch, gyrator
from gyrator.session import Session, default_session
records = []
session = default_session()
session.observer = records.append
def f(x):
    return torch.softmax(x, -1) * 2 + x.sum()
def run():
    x = torch.arange(15.0).reshape(3, 5)
    torch.testing.assert_close(torch.compile(f, backend="gyrator")(x), f(x))
"""
SAVE = """
run()
assert not records[0].cached
data, info = torch.compiler.save_cache_artifacts()
assert len(info.gyrator_artifacts) >= 3, info
open(sys.argv[1], "wb").write(data)
"""
LOAD = """
info = torch.compiler.load_cache_artifacts(open(sys.argv[1], "rb").read())
assert len(info.gyrator_artifacts) >= 3, info
run()
assert records[0].cached, records
"""


def _run(program: str, folder: Path, *arguments: object, **environment: str) -> None:
    variables = {**os.environ, "GYRATOR_CACHE_DIR": str(folder), **environment}
    done = run_forked(MAKE + program, [*map(str, arguments)], variables)
    assert done.returncode == 0, done.stderr


def test_torchs_artifacts_carry_programs_and_the_runner(tmp_path: Path) -> None:
    file = tmp_path / "artifacts"
    _run(SAVE, tmp_path / "one", file)
    # Without a path there is no compiler: what is there came with the artifacts.
    _run(LOAD, tmp_path / "two", file, PATH="")


@pytest.mark.parametrize("order", ["import gyrator, torch", "import torch, gyrator"])
def test_torch_knows_our_entries_whichever_is_imported_first(order: str) -> None:
    known = "from torch.compiler._cache import CacheArtifactFactory as Factory\n"
    requested = "assert 'gyrator' in Factory._artifact_types and torch.__spec__.loader.get_source"
    subprocess.run([sys.executable, "-c", f"{order}\n{known}{requested}"], check=True)


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for to, why in ((tmp_path / "none" / "a.zip", "No such file"), (tmp_path, "Is a directory")):
        assert main(["cache", "export", str(to)]) == 2
        assert capsys.readouterr().err.startswith(f"gyrator: {to}: {why}")
    assert not list(tmp_path.parent.glob(".*.part"))


def test_a_cache_is_exported_and_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cache.zip"
    _run("run()", tmp_path / "one")
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path / "one"))
    assert main(["cache", "export", str(file)]) == 0
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path / "two"))
    assert main(["cache", "import", str(file)]) == 0
    exported, imported = capsys.readouterr().out.split("\n")[:2]
    assert exported == imported != "0 entries"
    with pytest.raises(SystemExit, match="2"):
        main(["cache", "export"])
    _run("run(); assert records[0].cached", tmp_path / "two", PATH="")


def test_an_entry_is_the_same_elsewhere_and_damage_is_seen(tmp_path: Path) -> None:
    one, two = Cache(tmp_path / "one"), Cache(tmp_path / "two")
    key = make_key("things", {"a": b"1"})
    entry = one.put(key, {"x.txt": b"hello", "y.bin": bytes(range(256))})
    data = packed(key, entry)
    assert unpack(two, data) == key
    actual = two.get(key)
    assert actual is not None
    assert actual.read("y.bin") == bytes(range(256))
    assert list(two.stored()) == [key]
    three = Cache(tmp_path / "three")
    for damaged in (b"", data[:7], data[:-1], data[:-2] + b"zz", data.replace(b"x.txt", b"/.txt")):
        with pytest.raises(CacheError, match="GY-CACHE-012"):
            unpack(three, damaged)
    assert not list(three.stored())
    assert export_cache(one, tmp_path / "all.zip") == 1
    (tmp_path / "all.zip").write_bytes((tmp_path / "all.zip").read_bytes()[:-5])
    with pytest.raises(CacheError, match="GY-CACHE-012"):
        import_cache(three, tmp_path / "all.zip")
