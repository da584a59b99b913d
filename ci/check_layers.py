"""Fail on an import, a cycle of modules or a device's name that `ci/layers.toml` does not allow.

Which layer a package is in, and what it may import at all, its pyproject.toml says.

Imports inside functions and under TYPE_CHECKING count: a cycle hidden is still a cycle. So do
`importlib.import_module("...")` and `__import__("...")` with a constant name.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # also where it is loaded by its path
from distributions import Package, packages

ROOT = Path(__file__).resolve().parent.parent
IMPORTERS = ("import_module", "__import__")


@dataclass(frozen=True)
class Import:
    """One imported dotted name, with the line that imports it."""

    module: str
    name: str  # what `from module import name` names; empty for `import module`
    line: int


@dataclass(frozen=True)
class Rules:
    """The contents of `layers.toml`."""

    layers: dict[str, list[str]]
    closed: dict[str, list[str]]
    modules: dict[str, list[str]]
    offered: list[str]
    forbidden: dict[str, str]
    device_names: tuple[str, ...]
    device_files: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Rules":
        """Return the rules written in `path`."""
        data: dict[str, Any] = tomllib.loads(path.read_text())
        return cls(
            data["layers"],
            data["closed"],
            data["modules"],
            data["offered"]["names"],
            data["forbidden"],
            tuple(data["devices"]["names"]),
            tuple(data["devices"]["files"]),
        )


def imports(tree: ast.AST) -> Iterator[Import]:
    """Yield every import of `tree`, however deep the statement sits."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(alias.name, "", node.lineno) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                where = "." * level + (module or "")
                yield from (Import(where, alias.name, node.lineno) for alias in names)
            case ast.Call(func=func, args=[ast.Constant(value=str(module)), *_]):
                called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
                if called in IMPORTERS:
                    yield Import(module, "", node.lineno)


def attributes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every dotted attribute of `tree` (`a.b.c`) with its line."""
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name):
            yield ".".join([inner.id, *reversed(parts)]), node.lineno


def strings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every string constant of `tree` with its line, docstrings left out."""
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value, node.lineno


def under(name: str, top: str) -> bool:
    """Tell whether the dotted `name` is `top` or lies inside it."""
    return name == top or name.startswith(top + ".")


def permits(patterns: tuple[str, ...], path: Path) -> bool:
    """Tell whether one of `patterns` (a path, or a folder followed by `/**`) covers `path`."""
    text = path.as_posix()
    return any(
        text.startswith(pattern.removesuffix("**")) if pattern.endswith("/**") else text == pattern
        for pattern in patterns
    )


def import_problems(
    found: Import, package: Package, known: Mapping[str, Package], rules: Rules
) -> Iterator[str]:
    """Yield what is wrong with one import made by `package`; `known` has all by their modules."""
    if found.module.startswith("."):
        yield "relative import; write the full name"
        return
    full = f"{found.module}.{found.name}" if found.name else found.module
    for banned, why in rules.forbidden.items():
        if under(full, banned):
            yield f"imports {banned}: {why}"
    top = found.module.partition(".")[0]
    if top == package.module or top in sys.stdlib_module_names:
        return
    sibling = known.get(top)
    allowed = rules.layers[package.layer]
    if sibling is not None:
        if allowed != ["*"] and sibling.layer not in allowed:
            yield f"the layer {package.layer!r} may not import {top}, which is {sibling.layer!r}"
        wanted = {sibling.name}
    else:
        if package.layer in rules.closed.get(top, ()):
            yield f"the layer {package.layer!r} may not import {top}"
        wanted = {name for name, modules in rules.modules.items() if top in modules} or {top}
    if not wanted & {*package.needs, *rules.offered}:
        yield f"imports {top}, which {package.folder}/pyproject.toml does not declare"


def file_problems(
    path: Path, tree: ast.AST, package: Package, known: Mapping[str, Package], rules: Rules
) -> Iterator[str]:
    """Yield `file:line: problem` for one file; `path` is relative to the repository."""
    for found in imports(tree):
        for problem in import_problems(found, package, known, rules):
            yield f"{path}:{found.line}: {problem}"
    for dotted, line in attributes(tree):
        for banned, why in rules.forbidden.items():
            if dotted == banned:
                yield f"{path}:{line}: uses {banned}: {why}"
    if not permits(rules.device_files, path):
        for text, line in strings(tree):
            if text.partition(":")[0] in rules.device_names:
                yield (
                    f'{path}:{line}: names the device "{text}"; only target definitions and '
                    "device interfaces do (ci/layers.toml, [devices])"
                )


def cycle(trees: dict[str, ast.AST]) -> list[str]:
    """Return one cycle among the modules `trees`, first module repeated last, or nothing."""
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        used = set()
        for found in imports(tree):
            full = f"{found.module}.{found.name}"
            used.add(full if full in trees else found.module)
        graph[module] = (used & trees.keys()) - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def check(root: Path, rules: Rules) -> list[str]:
    """Return every problem of the packages under `root`, in a stable order."""
    problems: list[str] = []
    known = {package.module: package for package in packages(root)}
    for package in known.values():
        if package.layer not in rules.layers:
            said = f"layer {package.layer!r} is none of ci/layers.toml, [layers]"
            problems.append(f"{package.folder}/pyproject.toml: {said}")
            continue
        src = root / package.folder / "src"
        trees: dict[str, ast.AST] = {}
        for path in sorted(src.rglob("*.py")):
            dotted = ".".join(path.relative_to(src).with_suffix("").parts)
            tree = ast.parse(path.read_text(), str(path))
            trees[dotted.removesuffix(".__init__")] = tree
            problems += file_problems(path.relative_to(root), tree, package, known, rules)
        if loop := cycle(trees):
            problems.append(f"{package.folder}: import cycle {' -> '.join(loop)}")
    return problems


def main() -> int:
    """Print the problems of this repository; return 1 if there are any."""
    problems = check(ROOT, Rules.read(ROOT / "ci" / "layers.toml"))
    print("\n".join(problems) or "layers: ok")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
