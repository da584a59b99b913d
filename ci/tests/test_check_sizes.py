"""The checker of sizes finds each kind, and nothing in what is as large as may be."""

import pytest


@pytest.fixture
def found(tmp_path, sizes):
    """Return a function from files (path below packages/x/src, text) to problems."""

    def check(files):
        for name, text in files.items():
            path = tmp_path / "packages" / "x" / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return list(sizes.problems(tmp_path))

    return check


def folder(count):
    return {f"p/m{k}.py": "" for k in range(count)}


def function(lines):
    return {"p/m.py": "def f():\n" + "    pass\n" * (lines - 1)}


def methods(count):
    return {"p/m.py": "class C:\n" + "    def f(self): ...\n" * count}


@pytest.mark.parametrize("files", [folder(20), function(80), methods(20), {"p/m.py": "\n" * 800}])
def test_what_is_within_the_bounds_passes(found, files):
    assert found(files) == []


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (folder(21), "packages/x/src/p: 21 modules"),
        (function(81), "m.py:1: f has 81 lines"),
        (methods(21), "m.py:1: C has 21 methods"),
        ({"p/m.py": "\n" * 801}, "m.py: 801 lines"),
    ],
)
def test_what_has_outgrown_its_place_is_named(found, files, said):
    (problem,) = found(files)
    assert said in problem
