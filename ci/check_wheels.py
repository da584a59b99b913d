"""Fail if a wheel lacks a file of its package: `python ci/check_wheels.py dist`.

Every file that git tracks under `packages/*/src` has to be in the wheel, and so has the licence.
"""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def missing(package: Path, wheel: Path) -> list[str]:
    """Return what `wheel`, built of the folder `package`, should hold and does not."""
    listing = subprocess.run(
        ["git", "ls-files", "src"], cwd=package, capture_output=True, text=True, check=True
    ).stdout
    expected = {line.removeprefix("src/") for line in listing.splitlines()}
    with zipfile.ZipFile(wheel) as archive:
        members = set(archive.namelist())
    lacks = sorted(expected - members)
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in members):
        lacks.append("LICENSE")
    if not any(name.endswith("/py.typed") for name in members):
        lacks.append("py.typed")
    return lacks


def main(dist: Path) -> int:
    """Check the wheels in `dist`; return 1 if one is absent or incomplete."""
    problems: list[str] = []
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(path.read_text())["project"]
        stem = f"{project['name'].replace('-', '_')}-{project['version']}"
        wheel = dist / f"{stem}-py3-none-any.whl"
        if not wheel.exists():
            problems.append(f"{wheel} was not built")
        else:
            problems += [f"{wheel.name} lacks {name}" for name in missing(path.parent, wheel)]
    print("\n".join(problems) or "wheels: complete")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
