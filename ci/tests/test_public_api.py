"""The lists of public names say what the sources say, and what breaks callers is told."""

import re

PROJECT = """
[project]
name = "gyrator-ir"
version = "0.1.0"
[tool.hatch.build.targets.wheel]
packages = ["src/gyrator_ir"]
[tool.gyrator]
layer = "data"
api = ["a"]
"""
A = (
    "LIMIT: int = 3\n_own = 2\n"
    "def f(x: int, *, y: str = 'a') -> bool: ...\ndef _g(): ...\n"
    "class C(Base):\n    size: int\n    _kept = 1\n    def run(self, n: int) -> None: ...\n"
)


def tree(root, a=A):
    src = root / "packages" / "ir" / "src" / "gyrator_ir"
    src.mkdir(parents=True)
    (root / "packages" / "ir" / "pyproject.toml").write_text(PROJECT)
    text = "from gyrator_ir.b import D\n__all__ = ['D']\nhidden = 1\n"
    (src / "__init__.py").write_text(text)
    (src / "a.py").write_text("import os\n" + a)
    (src / "b.py").write_text("class D:\n    def go(self): ...\n\n\ndef unlisted(): ...\n")
    return src


def test_public_names_and_signatures_are_listed(tmp_path, public_api):
    tree(tmp_path)
    lists = tmp_path / "lists"
    lists.mkdir()
    (package,) = public_api.promised(tmp_path)
    assert public_api.listing(package, tmp_path).splitlines() == [
        "gyrator_ir.D",
        "  go()",
        "gyrator_ir.a.LIMIT: int",
        "gyrator_ir.a.f(x: int, *, y: str = 'a') -> bool",
        "gyrator_ir.a.C(Base)",
        "  size: int",
        "  run(n: int) -> None",
    ]
    (lists / "ir.txt").write_text(public_api.listing(package, tmp_path))
    assert public_api.problems(tmp_path, lists) == []
    src = tmp_path / "packages" / "ir" / "src" / "gyrator_ir"
    (src / "a.py").write_text("def f(x: int) -> bool: ...\n")
    changes = public_api.problems(tmp_path, lists)
    assert "+gyrator_ir.a.f(x: int) -> bool" in changes
    assert "-gyrator_ir.a.f(x: int, *, y: str = 'a') -> bool" in changes


def test_readmes_name_the_public_modules(root, public_api):
    for package in public_api.promised(root):
        if package.api:
            text = (root / package.folder / "README.md").read_text()
            (named,) = re.findall(r"## Public names\n\n(.*)", text)
            assert tuple(re.findall(r"`([\w.]+)`", named.partition(";")[0])) == package.api, (
                package.folder
            )


def test_the_manual_imports_public_names_only(tmp_path, public_api):
    tree(tmp_path)
    (tmp_path / "lists").mkdir()
    (package,) = public_api.promised(tmp_path)
    (tmp_path / "lists" / "ir.txt").write_text(public_api.listing(package, tmp_path))
    good = "from gyrator_ir import D, a\nfrom gyrator_ir.a import C, f\n"
    (tmp_path / "README.md").write_text(f"```python\n{good}```\n")
    assert public_api.problems(tmp_path, tmp_path / "lists") == []
    (tmp_path / "README.md").write_text("```python\nfrom gyrator_ir.b import unlisted\n```\n")
    (found,) = public_api.problems(tmp_path, tmp_path / "lists")
    assert found == "README.md: gyrator_ir.b.unlisted is not public"


def test_breaks_are_told_and_additions_are_not(tmp_path, public_api):
    tree(tmp_path / "old")
    more = A.replace("y: str = 'a'", "y: str = 'a', z: int = 0") + "def h(): ...\n"
    src = tree(tmp_path / "new", more)
    assert list(public_api.breaks(tmp_path / "old", tmp_path / "new")) == []
    (src / "a.py").write_text(A.replace("x: int, *", "*"))
    (src / "b.py").write_text("class D: ...\n")
    assert sorted(public_api.breaks(tmp_path / "old", tmp_path / "new")) == [
        "gyrator_ir.a.f: Parameter was removed",
        "gyrator_ir.b.D.go: Public object was removed",
    ]
