"""Compare the public names of every package with the lists in `ci/public_api/`, by griffe.

`python ci/public_api.py` fails where a list is not what the sources say, or where the manual, a
vendor or a customer of ours imports what is not public; `--write` rewrites the lists.
`--since TAG` names what breaks callers of the release with that tag, for its changelog.

Public is what the root of a package, or a module that its pyproject.toml names in
`[tool.gyrator] api`, has in `__all__`; where a module has none, what it defines and does not begin
with an underscore. Signatures and fields count.
"""

import ast
import difflib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import griffe

sys.path.insert(0, str(Path(__file__).parent))  # also where it is loaded by its path
from distributions import Package, packages

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def promised(root: Path) -> tuple[Package, ...]:
    """Return the packages that others import."""
    return tuple(
        p for p in packages(root) if p.folder.startswith("packages/") or "/" not in p.folder
    )


def modules(package: Package, root: Path) -> Iterator[griffe.Module]:
    """Yield the root of a package and its public modules."""
    src = root / package.folder / "src"
    top = griffe.load(package.module, search_paths=[src], allow_inspection=False)
    assert isinstance(top, griffe.Module)
    yield top
    for name in package.api:
        module = top[name]
        assert isinstance(module, griffe.Module), f"{package.module}.{name} is no module"
        yield module


def names(module: griffe.Module) -> Iterator[tuple[str, griffe.Object | griffe.Alias]]:
    """Yield the public names of a module and what they are."""
    for name, member in module.members.items():
        if isinstance(member, griffe.Module) or member.kind is griffe.Kind.MODULE:
            continue
        if name in module.exports if module.exports is not None else member.is_public:
            yield name, member


def lines(path: str, member: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the line of a name, and below a class those of its members."""
    if member.is_alias:
        if not member.target_path.startswith(f"{path.partition('.')[0]}."):
            yield f"{path} = {member.target_path}"  # of another package
            return
        member = member.final_target
    where, _, name = path.rpartition(".")
    if member.is_function:
        yield f"{where}.{name}{str(member.signature()).removeprefix(member.name)}".lstrip(".")
    elif member.is_attribute:
        yield f"{path}: {member.annotation}" if member.annotation else path
    else:
        bases = ", ".join(map(str, member.bases))
        yield f"{path}({bases})" if bases else path
        for name, inner in member.members.items():
            if not name.startswith("_"):
                yield from (f"  {line}" for line in lines(name, inner))


def listing(package: Package, root: Path) -> str:
    """Return the public names of a package, a line each."""
    entries = ((m, n, o) for m in modules(package, root) for n, o in names(m))
    return "".join(f"{line}\n" for m, n, o in entries for line in lines(f"{m.path}.{n}", o))


def outsiders(root: Path, known: dict[str, set[str]]) -> Iterator[str]:
    """Yield the imports of what is not public by the manual, vendors and customers."""
    pages = [root / "README.md", *root.glob("docs/**/*.md")]
    texts = {p: BLOCK.findall(p.read_text()) for p in pages if p.exists()}
    for package in packages(root):
        if package.folder.count("/") == 2 or package.folder == "conformance/vendor":
            texts |= {p: [p.read_text()] for p in (root / package.folder / "src").rglob("*.py")}
    for path, blocks in sorted(texts.items()):
        for node in (n for block in blocks for n in ast.walk(ast.parse(block))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            top = node.module.partition(".")[0]
            for alias in node.names if top in known else ():
                if f"{node.module}.{alias.name}" not in known[top]:
                    yield f"{path.relative_to(root)}: {node.module}.{alias.name} is not public"


def problems(root: Path, lists: Path) -> list[str]:
    """Return the differences between the lists and the sources, and imports of private names."""
    messages: list[str] = []
    known: dict[str, set[str]] = {}
    for package in promised(root):
        path = lists / f"{Path(package.folder).name}.txt"
        old = path.read_text().splitlines() if path.exists() else []
        new = listing(package, root).splitlines()
        messages += difflib.unified_diff(old, new, path.name, "the sources", lineterm="", n=0)
        known[package.module] = {re.split(r"[ (:]", line)[0] for line in new}
        known[package.module] |= {f"{package.module}.{name}" for name in package.api}
    return [*messages, *outsiders(root, known)]


def breaks(before: Path, root: Path) -> Iterator[str]:
    """Yield what of the public names of an older tree is changed or gone, so that callers break."""
    for package in promised(before):
        if not (root / package.folder / "src").exists():
            yield f"{package.folder}: gone"
            continue
        old, new = next(modules(package, before)), next(modules(package, root))
        public = []
        for module in modules(package, before):
            for name, member in names(module):
                public.append(f"{module.path}.{name}")
                if member.is_alias and member.target_path.startswith(f"{package.module}."):
                    public.append(member.final_target.path)
        for one in griffe.find_breaking_changes(old, new):
            if any(f"{one.obj.path}.".startswith(f"{path}.") for path in public):
                yield f"{one.obj.path}: {one.kind.value}"


def main(arguments: list[str]) -> int:
    """Compare, write, or name what breaks; return 1 where a list is out of date."""
    lists = ROOT / "ci" / "public_api"
    if arguments[:1] == ["--since"]:
        with TemporaryDirectory() as folder:
            git = ("git", "archive", arguments[1], "packages", "conformance")
            archive = subprocess.run(git, cwd=ROOT, check=True, capture_output=True).stdout
            subprocess.run(("tar", "-x", "-C", folder), check=True, input=archive)
            print("\n".join(breaks(Path(folder), ROOT)) or "nothing breaks")
        return 0
    if arguments == ["--write"]:
        for package in promised(ROOT):
            (lists / f"{Path(package.folder).name}.txt").write_text(listing(package, ROOT))
    messages = problems(ROOT, lists)
    print("\n".join(messages) or "public names: as listed")
    if messages:
        print("review the change; `python ci/public_api.py --write` accepts new lists")
    return int(bool(messages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
