"""Reject names that say nothing about the value they are bound to, and modules of a package whose
names only differ in number: `stage` and `stages`."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("packages/*/src/**/*.py", "conformance/src/**/*.py", "ci/*.py")
VAGUE = frozenset(
    "arr asked foo found given gone held kept laid made meant mine misc obj places res ret said "
    "shown some stuff taken temp theirs them there these thing things this those tmp told wanted "
    "wants way who".split()
)


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name and the line of each variable and parameter bound below `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def plurals(root: Path) -> Iterator[str]:
    """Yield each module below `root` whose name is the plural of another's in its package."""
    for src in sorted(root.glob("packages/*/src")):
        modules = {path.stem: path for path in sorted(src.rglob("*.py"))}
        for name, path in modules.items():
            if f"{name}s" in modules:
                both = f"{path.relative_to(root)}, {modules[f'{name}s'].relative_to(root)}"
                yield f"{both}: give the two modules names that say how they differ"


def problems(root: Path) -> Iterator[str]:
    """Yield each binding of a vague name in the sources below `root`, and each pair of modules with
    almost the same name."""
    yield from plurals(root)
    for path in sorted({path for pattern in SOURCES for path in root.glob(pattern)}):
        for name, line in bindings(ast.parse(path.read_text())):
            if name in VAGUE:
                yield f"{path.relative_to(root)}:{line}: name the value itself, not {name!r}"


def main() -> int:
    """Print the problems; return the exit status."""
    lines = list(problems(ROOT))
    print("\n".join(lines) if lines else "names: none is vague or doubled")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
