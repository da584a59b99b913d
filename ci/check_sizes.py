"""Fail on what has outgrown its place: files, functions, classes and folders of the packages."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "packages/*/src/**/*.py",
    "packages/*/tools/*.py",
    "conformance/src/**/*.py",
    "ci/*.py",
)
LINES = 800
"""Of a file."""
FUNCTION_LINES = 80
"""Of a function, with its signature and its docstring."""
METHODS = 20
"""Of a class, those it inherits left out."""
MODULES = 20
"""Of a folder."""


def problems(root: Path) -> Iterator[str]:
    """Yield what is too large below `root`, and how large it may be."""
    paths = sorted({path for pattern in SOURCES for path in root.glob(pattern)})
    for folder, count in sorted(Counter(path.parent for path in paths).items()):
        if count > MODULES:
            yield f"{folder.relative_to(root)}: {count} modules, more than {MODULES}: group them"
    for path in paths:
        text, place = path.read_text(), path.relative_to(root)
        if (lines := text.count("\n")) > LINES:
            yield f"{place}: {lines} lines, more than {LINES}: it is two things"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    excess = f"{lines} lines, more than {FUNCTION_LINES}"
                    yield f"{place}:{node.lineno}: {node.name} has {excess}"
            elif isinstance(node, ast.ClassDef):
                methods = sum(
                    isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef) for s in node.body
                )
                if methods > METHODS:
                    excess = f"{methods} methods, more than {METHODS}"
                    yield f"{place}:{node.lineno}: {node.name} has {excess}"


def main() -> int:
    """Print what is too large; return how the process exits."""
    messages = list(problems(ROOT))
    print("\n".join(messages) if messages else "sizes: all within their bounds")
    return bool(messages)


if __name__ == "__main__":
    sys.exit(main())
