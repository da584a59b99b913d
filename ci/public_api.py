"""Compare the public names of every package with the lists in `ci/public_api/`.

`python ci/public_api.py` fails where a list is not what the source says; `--write` rewrites the
lists. A name is public where neither it nor a module above it begins with an underscore, and a
module's `__all__` leaves it in. Signatures count: a changed one is a changed line to review.
"""

import ast
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "ci" / "public_api"


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each package's name and its source folder."""
    for src in [*sorted(root.glob("packages/*/src")), root / "conformance" / "src"]:
        if src.exists():
            yield src.parent.name, src


def listing(src: Path) -> str:
    """Return the public names below a source folder, a line each."""
    lines: list[str] = []
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if any(part.startswith("_") and part != "__main__" for part in parts):
            continue
        lines += names(".".join(parts), ast.parse(path.read_text(), str(path)))
    return "".join(f"{line}\n" for line in lines)


def names(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield the lines of one module."""
    exported = declared(tree)
    for node in tree.body:
        for name, line in lines_of(node):
            public = not name.startswith("_") if exported is None else name in exported
            if public:
                yield f"{module}.{line}"
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and exported is not None:
            for alias in node.names:
                name = alias.asname or alias.name
                if name in exported:
                    yield f"{module}.{name} = {node.module}.{alias.name}"


def declared(tree: ast.Module) -> frozenset[str] | None:
    """Return the names in `__all__`, or None where a module has none."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple()):
                return frozenset(ast.literal_eval(node.value))
    return None


def lines_of(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield (name, line) for what a statement of a module defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, f"{name}{signature(node)}"
        case ast.ClassDef(name=name):
            bases = ", ".join(map(ast.unparse, node.bases))
            yield name, f"{name}({bases})" if bases else name
            for inner in node.body:
                for member, line in lines_of(inner):
                    if not member.startswith("_"):
                        yield name, f"{name}.{line}"
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, f"{name}: {ast.unparse(node.annotation)}"
        case ast.Assign(targets=targets):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, target.id


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a function's parameters and result as text."""
    result = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"({ast.unparse(node.args)}){result}"


def problems(root: Path, lists: Path) -> list[str]:
    """Return the differences between the lists and the sources."""
    found: list[str] = []
    for package, src in sources(root):
        path = lists / f"{package}.txt"
        old = path.read_text().splitlines() if path.exists() else []
        new = listing(src).splitlines()
        if old != new:
            found += difflib.unified_diff(old, new, path.name, "the sources", lineterm="", n=0)
    return found


def main(arguments: list[str]) -> int:
    """Compare, or write; return 1 where a list is out of date."""
    if arguments == ["--write"]:
        LISTS.mkdir(exist_ok=True)
        for package, src in sources(ROOT):
            (LISTS / f"{package}.txt").write_text(listing(src))
        return 0
    found = problems(ROOT, LISTS)
    print("\n".join(found) or "public names: as listed")
    if found:
        print("review the change; `python ci/public_api.py --write` accepts it")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
