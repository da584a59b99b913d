"""Fail on an import, a cycle of modules or a device's name that `ci/layers.toml` does not allow.

Which layer a package is in, and what it may import at all, its pyproject.toml says. From that come
the contracts that import-linter checks, imports inside functions and under TYPE_CHECKING included.
What it cannot say is checked here: dependencies that are not declared, cycles of single modules,
modules imported by `importlib.import_module("...")`, and devices' names.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

sys.path.insert(0, str(Path(__file__).parent))  # also where it is loaded by its path
from distributions import Package, packages

ROOT = Path(__file__).resolve().parent.parent
IMPORTERS = ("import_module", "__import__")


@dataclass(frozen=True)
class Rules:
    """The contents of `layers.toml`."""

    layers: dict[str, list[str]]
    closed: dict[str, list[str]]
    modules: dict[str, list[str]]
    common: list[str]
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
            data["common"]["names"],
            tuple(data["devices"]["names"]),
            tuple(data["devices"]["files"]),
        )


# What import-linter checks ----------------------------------------------------------------------


def contracts(packages: Sequence[Package], rules: Rules) -> str:
    """Return a configuration of import-linter: for each package what it may not import."""
    roots = [p.module for p in packages]
    parts = [_section("importlinter", root_packages=roots, include_external_packages=["true"])]
    for package in packages:
        allowed = rules.layers[package.layer]
        banned = [
            p.module
            for p in packages
            if p is not package and allowed != ["*"] and p.layer not in allowed
        ]
        banned += [name for name, layers in rules.closed.items() if package.layer in layers]
        if banned:
            part = _section(
                f"importlinter:contract:{package.module}",
                name=[f"{package.module}, which is of the layer '{package.layer}'"],
                type=["forbidden"],
                source_modules=[package.module],
                forbidden_modules=banned,
                allow_indirect_imports=["true"],
            )
            parts.append(part)
    return "\n".join(parts)


def _section(title: str, **fields: Sequence[str]) -> str:
    lines = [f"{key} = " + "\n    ".join(values) for key, values in fields.items()]
    return "\n".join([f"[{title}]", *lines, ""])


def kept(root: Path, packages: Sequence[Package], rules: Rules) -> bool:
    """Let import-linter check the contracts, and print those that are broken."""
    sys.path[:0] = [str(root / p.folder / "src") for p in packages]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "contracts.ini"
        path.write_text(contracts(packages, rules))
        return bool(lint_imports(str(path), no_cache=True) == EXIT_STATUS_SUCCESS)


# What it cannot say -----------------------------------------------------------------------------


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every module that `tree` imports, or imports a name of, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from ((f"{module}.{alias.name}", node.lineno) for alias in names)
            case ast.Call(args=[ast.Constant(value=str(module)), *_]) if _imports(node.func):
                yield module, node.lineno


def _imports(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in IMPORTERS


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


def permits(patterns: tuple[str, ...], path: Path) -> bool:
    """Tell whether one of `patterns` (a path, or a folder followed by `/**`) covers `path`."""
    text = path.as_posix()
    return any(
        text.startswith(pattern.removesuffix("**")) if pattern.endswith("/**") else text == pattern
        for pattern in patterns
    )


def file_problems(
    path: Path, tree: ast.AST, package: Package, known: Mapping[str, Package], rules: Rules
) -> Iterator[str]:
    """Yield `file:line: problem` for one file; `path` is relative to the repository."""
    for name, line in imports(tree):
        top = name.partition(".")[0]
        if top == package.module or top in sys.stdlib_module_names:
            continue
        owners = {n for n, modules in rules.modules.items() if top in modules} or {top}
        if top in known:
            owners = {known[top].name}
        if not owners & {*package.needs, *rules.common}:
            reason = f"which {package.folder}/pyproject.toml does not declare"
            yield f"{path}:{line}: imports {top}, {reason}"
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
        used = {name if name in trees else name.rpartition(".")[0] for name, _ in imports(tree)}
        graph[module] = (used & trees.keys()) - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def check(root: Path, rules: Rules) -> list[str]:
    """Return the problems of the packages under `root` that import-linter does not see."""
    problems: list[str] = []
    known = {package.module: package for package in packages(root)}
    for package in known.values():
        if package.layer not in rules.layers:
            reason = f"layer {package.layer!r} is none of ci/layers.toml, [layers]"
            problems.append(f"{package.folder}/pyproject.toml: {reason}")
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
    rules = Rules.read(ROOT / "ci" / "layers.toml")
    problems = check(ROOT, rules)
    print("\n".join(problems) or "layers: ok")
    return int(bool(problems) or not kept(ROOT, packages(ROOT), rules))


if __name__ == "__main__":
    sys.exit(main())
