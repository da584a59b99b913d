"""The packages, as their own pyproject.toml files tell of them: what every list is derived from.

`python ci/distributions.py` prints them in the order of their release, none before one that it
depends on, and fails where a list elsewhere is another; `--write` mends it.

A pyproject.toml says in `[tool.gyrator]`:

- `layer`: which of the layers of `ci/layers.toml` the package is in;
- `public`: whether it keeps its promises to everybody; only siblings depend on the others;
- `api`: the modules beside its root whose names are public (CONTRIBUTING.md);
- `optional`: distributions that it imports where they are installed, and does not depend on.
"""

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("packages/*", "conformance", "conformance/*", "conformance/*/*")
MYPY = re.compile(r"^mypy_path = .*$", re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """One distribution of the repository."""

    folder: str
    """Relative to the repository."""
    project: Mapping[str, Any]
    """The table `[project]`."""
    about: Mapping[str, Any]
    """The table `[tool.gyrator]`."""
    module: str
    """What its sources import it as."""

    @property
    def name(self) -> str:
        """The name of its distribution, with underscores."""
        return distribution(self.project["name"])

    @property
    def layer(self) -> str:
        """Its layer; empty where it says none."""
        return str(self.about.get("layer", ""))

    @property
    def public(self) -> bool:
        """Whether others than its siblings may depend on it."""
        return bool(self.about.get("public", False))

    @property
    def api(self) -> tuple[str, ...]:
        """Its public modules beside the root, without the name of the package."""
        return tuple(self.about.get("api", ()))

    @property
    def needs(self) -> frozenset[str]:
        """The distributions that it depends on, always or as an extra, with underscores."""
        lines = [*self.project.get("dependencies", ()), *self.about.get("optional", ())]
        for extra in self.project.get("optional-dependencies", {}).values():
            lines += extra
        return frozenset(map(distribution, lines))


def distribution(requirement: str) -> str:
    """Return the name in a requirement, as a module would be called."""
    match = re.match(r"[\w.-]+", requirement)
    return match[0].replace("-", "_").lower() if match else ""


def packages(root: Path) -> tuple[Package, ...]:
    """Return all packages of a repository, those of `packages/` first, by folder."""
    listed = []
    for place in PLACES:
        for path in sorted(root.glob(f"{place}/pyproject.toml")):
            data = tomllib.loads(path.read_text())
            tool = data.get("tool", {})
            (wheel,) = tool["hatch"]["build"]["targets"]["wheel"]["packages"]
            folder = path.parent.relative_to(root).as_posix()
            module = wheel.removeprefix("src/")
            listed.append(Package(folder, data["project"], tool.get("gyrator", {}), module))
    return tuple(listed)


def released(all_packages: tuple[Package, ...]) -> tuple[Package, ...]:
    """Return what is published, in the order of release."""
    ours = {p.name: p for p in all_packages if p.folder.startswith("packages/")}
    needs = {name: sorted(p.needs & ours.keys()) for name, p in ours.items()}
    return tuple(ours[name] for name in TopologicalSorter(needs).static_order())


def mypy_line(all_packages: tuple[Package, ...]) -> str:
    """Return the line of mypy.ini that says where sources are."""
    return f"mypy_path = {':'.join(f'{p.folder}/src' for p in all_packages)}"


def main(arguments: list[str]) -> int:
    """Print the packages; compare or write the list that cannot be derived when it is used."""
    listed = packages(ROOT)
    for p in released(listed):
        version = p.project["version"]
        print(f"{p.name:24} {version:8} {'public' if p.public else 'internal':9} {p.layer}")
    path = ROOT / "mypy.ini"
    text = path.read_text()
    updated = MYPY.sub(mypy_line(listed), text)
    if arguments == ["--write"]:
        path.write_text(updated)
    elif updated != text:
        print("mypy.ini: mypy_path lacks a package; `python ci/distributions.py --write` mends it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
