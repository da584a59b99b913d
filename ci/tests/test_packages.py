"""What ci/packages.toml and the pyproject files say of each other is true."""

import re
import tomllib

import pytest


@pytest.fixture(scope="module")
def listed(root):
    return tomllib.loads((root / "ci" / "packages.toml").read_text())


@pytest.fixture(scope="module")
def projects(root):
    paths = root.glob("packages/*/pyproject.toml")
    return {path.parent.name: tomllib.loads(path.read_text())["project"] for path in paths}


def dependencies(project):
    """Return (distribution, bounds) of each Gyrator dependency of `project`."""
    pairs = (re.match(r"([\w-]+)(.*)", line).groups() for line in project["dependencies"])
    return [(name, bounds) for name, bounds in pairs if name.startswith("gyrator")]


def test_each_package_is_listed_once(listed, projects):
    assert sorted(listed["release_order"]) == sorted(projects)
    assert sorted(listed["public"] + listed["internal"]) == sorted(projects)


def test_release_order_puts_dependencies_first(listed, projects):
    released = set()
    for folder in listed["release_order"]:
        needs = {name for name, _ in dependencies(projects[folder])}
        assert needs <= released, f"{folder} is released before {sorted(needs - released)}"
        released.add(projects[folder]["name"])


def test_siblings_depend_by_range_and_the_umbrella_pins(projects):
    versions = {project["name"]: project["version"] for project in projects.values()}
    for folder, project in projects.items():
        for name, bounds in dependencies(project):
            major, minor, _ = map(int, versions[name].split("."))
            pinned = f"=={versions[name]}"
            ranged = f">={major}.{minor},<{major}.{minor + 1}"
            assert bounds == (pinned if folder == "gyrator" else ranged), f"{folder}: {name}"


def test_internal_packages_say_so(listed, root):
    for folder in listed["internal"]:
        readme = (root / "packages" / folder / "README.md").read_text()
        assert "nternal" in readme.split("\n\n")[1], f"packages/{folder}/README.md, first line"


@pytest.mark.parametrize("name", ["CHANGELOG.md", "LICENSE", "README.md", "tests"])
def test_each_package_has(root, projects, name):
    missing = [folder for folder in projects if not (root / "packages" / folder / name).exists()]

    assert not missing


def test_each_changelog_has_an_unreleased_part(root, projects):
    for folder in projects:
        assert "## Unreleased" in (root / "packages" / folder / "CHANGELOG.md").read_text(), folder


def test_each_readme_has_an_example_that_runs(root, projects):
    readmes = {folder: root / "packages" / folder / "README.md" for folder in projects}

    assert not [f for f, readme in readmes.items() if "```python" not in readme.read_text()]
