"""What the pyproject files say of the packages, and what is derived from it."""

import re
import shutil
import tomllib

import pytest


@pytest.fixture(scope="module")
def projects(root):
    paths = root.glob("packages/*/pyproject.toml")
    return {path.parent.name: tomllib.loads(path.read_text())["project"] for path in paths}


def dependencies(project):
    """Return (distribution, bounds) of each Gyrator dependency of `project`."""
    pairs = (re.match(r"([\w-]+)(.*)", line).groups() for line in project["dependencies"])
    return [(name, bounds) for name, bounds in pairs if name.startswith("gyrator")]


def test_release_order_puts_dependencies_first(listing, projects):
    order = [p.folder.rpartition("/")[2] for p in listing.released(listing.packages(listing.ROOT))]
    assert sorted(order) == sorted(projects) and order[-1] == "gyrator"
    released = set()
    for folder in order:
        needs = {name for name, _ in dependencies(projects[folder])}
        assert needs <= released, f"{folder} is released before {sorted(needs - released)}"
        released.add(projects[folder]["name"])


def test_the_umbrella_depends_on_all_but_tools(listing, projects):
    needs = {name for name, _ in dependencies(projects["gyrator"])}
    others = [p for p in listing.released(listing.packages(listing.ROOT)) if p.layer != "tools"]
    assert needs == {p.project["name"] for p in others} - {"gyrator"}


def test_a_new_kernel_language_is_in_every_list(listing, layers, root, tmp_path):
    """A package in the tree and its dependency in the umbrella's pyproject are all that it takes:
    no checker's rules name it. Its target file and entry point are what sessions find."""
    for package in listing.packages(root):
        (tmp_path / package.folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(root / package.folder / "pyproject.toml", tmp_path / package.folder)
    new = tmp_path / "packages" / "codegen_new"
    (new / "src" / "gyrator_codegen_new").mkdir(parents=True)
    text = (root / "packages" / "codegen_triton" / "pyproject.toml").read_text()
    text = text.replace("codegen-triton", "codegen-new").replace("codegen_triton", "codegen_new")
    (new / "pyproject.toml").write_text(text)
    stage = new / "src" / "gyrator_codegen_new" / "stage.py"
    stage.write_text("from gyrator_codegen import Names\nfrom gyrator_ir.target import Target\n")
    umbrella = tmp_path / "packages" / "gyrator" / "pyproject.toml"
    line = '  "gyrator-codegen-triton==0.1.0",\n'
    text = umbrella.read_text().replace(line, line + line.replace("triton", "new"))
    umbrella.write_text(text)

    found = listing.packages(tmp_path)
    order = [p.name for p in listing.released(found)]
    assert order.index("gyrator_codegen") < order.index("gyrator_codegen_new") < len(order) - 1
    assert ":packages/codegen_new/src:" in listing.mypy_line(found)
    rules = layers.Rules.read(root / "ci" / "layers.toml")
    assert layers.check(tmp_path, rules) == []
    stage.write_text("import torch\nfrom gyrator_lowering import lower\n")
    assert len(layers.check(tmp_path, rules)) == 2  # not declared
    contract = layers.contracts(found, rules).partition(":gyrator_codegen_new]")[2]
    banned = contract.partition("forbidden_modules =")[2].partition("allow")[0].split()
    assert {"torch", "gyrator_lowering", "gyrator_codegen_cpp"} <= {*banned}
    assert not {"gyrator_codegen", "gyrator_ir"} & {*banned}


def test_siblings_depend_by_range_and_the_umbrella_pins(projects):
    versions = {project["name"]: project["version"] for project in projects.values()}
    for folder, project in projects.items():
        for name, bounds in dependencies(project):
            major, minor, _ = map(int, versions[name].split("."))
            pinned = f"=={versions[name]}"
            ranged = f">={major}.{minor},<{major}.{minor + 1}"
            assert bounds == (pinned if folder == "gyrator" else ranged), f"{folder}: {name}"


def test_packages_are_libraries_that_say_for_whom(listing, root):
    for package in listing.released(listing.packages(root)):
        readme = (root / package.folder / "README.md").read_text()
        assert package.public and "nternal to" not in readme, f"{package.folder}: a library"
        assert f"pip install {package.project['name']}" in readme, f"{package.folder}/README.md"
        assert "```python" in readme, f"{package.folder}/README.md: an example"


def test_projects_describe_themselves_alike(root):
    paths = [*root.glob("packages/*/pyproject.toml"), root / "conformance" / "pyproject.toml"]
    projects = [tomllib.loads(path.read_text())["project"] for path in paths]
    assert len({tuple(p["classifiers"]) for p in projects}) == 1
    assert {p["requires-python"] for p in projects} == {">=3.11"}
    assert "Programming Language :: Python :: 3.11" in projects[0]["classifiers"]


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
