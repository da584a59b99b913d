"""Digests of packages change with whatever is in them, and in what they import of ours."""

import pytest

from gyrator_ir import content


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Return a function that writes files, and forgets the digests of what was there."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix("" if path.suffix else ".py").write_text(text)
        content._source.cache_clear()
        content.reached.cache_clear()

    yield write
    content._source.cache_clear()
    content.reached.cache_clear()


def test_every_file_counts(packages, tmp_path):
    packages(mine__a="x = 1\n", mine__sub__b="y = 1\n")
    digests = {content.source_hash("mine")}
    packages(mine__a="x = 2\n")
    digests.add(content.source_hash("mine"))
    packages(mine__sub__b="y = 2\n")
    digests.add(content.source_hash("mine"))
    (tmp_path / "mine" / "head.h").write_text("")
    packages()
    digests.add(content.source_hash("mine"))
    assert len(digests) == 4
    (tmp_path / "mine" / "__pycache__").mkdir()
    (tmp_path / "mine" / "__pycache__" / "a.pyc").write_text("")
    packages()
    assert content.source_hash("mine") in digests


def test_what_is_imported_counts_too(packages):
    late = "def f():\n    from gyrator_b.m import x\n    return x\n"
    packages(gyrator_a__m=late, gyrator_b__m="from gyrator_c.m import x\n", gyrator_c__m="x = 1\n")
    assert content.reached("gyrator_a") == ("gyrator_a", "gyrator_b", "gyrator_c")
    alone, whole = content.source_hash("gyrator_a"), content.content_hash("gyrator_a")
    packages(gyrator_c__m="x = 2\n")
    assert content.source_hash("gyrator_a") == alone
    assert content.content_hash("gyrator_a") != whole


def test_a_package_that_is_not_there():
    with pytest.raises(ModuleNotFoundError, match="gyrator_nonesuch"):
        content.content_hash("gyrator_nonesuch")
