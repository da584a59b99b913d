"""What the manual says of others is so, and every page can be reached."""

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import attrs
import pytest
import yaml

from gyrator import list_options
from gyrator.engine.passes import pipelines
from gyrator.targets import TargetDefinition

NAME = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)`")


def rows(root):
    """Return the cells of the first table of the page on moving from TorchInductor."""
    text = (root / "docs" / "from-torchinductor.md").read_text()
    table = text.partition("|---|---|---|\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()]


def settings(tree):
    """Yield the names that a module or a class sets, those of classes with theirs before."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for name in settings(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (t.id for t in targets if isinstance(t, ast.Name))


def test_the_settings_of_torchinductor_exist(root):
    torch = Path(find_spec("torch").origin).parent  # its settings are read, and not imported
    known = set(settings(ast.parse((torch / "_inductor" / "config.py").read_text())))
    names = [name for row in rows(root) for name in NAME.findall(row[0])]
    names = {name for name in names if name != "aoti_compile_and_package"}
    assert len(names) > 30
    assert names <= known, names - known


def test_the_options_and_passes_of_gyrator_exist(root):
    options, passes = list_options(), {n for p in pipelines() for n in p.names}
    text = (root / "docs" / "from-torchinductor.md").read_text()
    found = set(re.findall(r"`([a-z_]+)=[\w\"]", text)) - {
        "backend",
        "parts",
        "dynamic",
        "fullgraph",
    }
    assert len(found) >= 5
    assert found - {"rules", "decompositions", "mode"} <= options.keys()
    named = set(re.findall(r"the pass `([a-z-]+)`", text))
    assert named and named <= passes


def test_the_fields_of_targets_are_described(root):
    text = (root / "docs" / "how-to" / "add-a-target.md").read_text()
    table = text.partition("|---|---|\n")[2].partition("\n\n")[0]
    described = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(described) == sorted(f.name for f in attrs.fields(TargetDefinition))


def pages(nav):
    """Yield the pages of a navigation."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for value in entry.values():
                yield from pages([value] if isinstance(value, str) else value)


def test_every_page_is_in_the_navigation(root):
    nav = yaml.safe_load((root / "mkdocs.yml").read_text())["nav"]
    listed = list(pages(nav))
    assert len(listed) == len(set(listed))
    there = {p.relative_to(root / "docs").as_posix() for p in (root / "docs").rglob("*.md")}
    assert set(listed) == there


def test_pages_called_index_have_a_line_of_their_own_and_the_search_needs_no_server(root):
    """The theme's `navigation.indexes` would take them out of the lists that they stand in."""
    manual = yaml.safe_load((root / "mkdocs.yml").read_text())
    assert "navigation.indexes" not in manual["theme"]["features"]
    assert "offline" in manual["plugins"] and manual["use_directory_urls"] is False


@pytest.mark.parametrize("name", ["ir/index.md", "errors/index.md", "ops/overview.md"])
def test_pages_that_begin_a_part_are_linked_to(root, name):
    links = re.compile(rf"\]\((?:\.\./)*{re.escape(name)}")
    assert any(links.search(p.read_text()) for p in (root / "docs").rglob("*.md"))


def test_the_walk_names_files_and_functions_that_exist(root):
    text = (root / "docs" / "walk.md").read_text()
    named = set()
    for path, function in re.findall(r"`(gyrator[\w/]*(?:\.py)?)`(?:, `([\w.]+)`)?", text):
        (place,) = root.glob(f"packages/*/src/{path}")
        module = import_module(path.removesuffix(".py").replace("/", ".")) if function else None
        assert module is None or attrgetter(function)(module), f"{place}: {function}"
        named.add((path, function))
    assert len(named) > 12


def test_every_pass_is_in_the_readme_of_a_package(root):
    text = "".join(path.read_text() for path in root.glob("packages/*/README.md"))
    missing = [n for p in pipelines() for n in p.names if f"`{n}`" not in text]
    assert not missing


def test_contributing_names_every_session(root):
    functions = ast.parse((root / "noxfile.py").read_text()).body
    sessions = {
        f.name
        for f in functions
        if isinstance(f, ast.FunctionDef)
        and any(ast.unparse(d).startswith("nox.session") for d in f.decorator_list)
    }
    assert {"tests", "wrappers"} <= sessions
    named = re.findall(r'nox -s "?(\w+)', (root / "CONTRIBUTING.md").read_text())
    assert sessions <= set(named)
