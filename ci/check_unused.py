"""Fail on what is declared and does nothing, over the syntax trees of the packages.

- a field of an attrs class that nothing reads: printing and parsing a text form, comparing and
  hashing are no reads, and neither is a test;
- an option of a stage that its own package does not read outside the class;
- an instruction of the Wrapper IR that no stage and no customer makes;
- a function, class, constant or method that tests alone use;
- a parameter with a default that no call gives another value, tests included.

Names are compared, not types: a field called as another one that is read passes. What is used from
outside is named in prose (the manual, the READMEs), in metadata (entry points) or in `KEPT`.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = "packages/*/src/**/*.py"
TESTS = "packages/*/tests/**/*.py"
USERS = ("conformance/**/*.py", "bench/*.py", "packages/*/tools/*.py")
PROSE = ("README.md", "docs/**/*.md", "packages/*/README.md", "**/pyproject.toml", "ci/*.py")
TOOLS = "packages/testing/"
"""Tools for tests: what they read does nothing for users, and what they offer, tests use."""
_LEVELS = "body|loop|kernel|tile|host"
FORMS = re.compile(rf"gyrator_ir/(({_LEVELS})/(print|parse|forms)|text/program)\.py$")
"""What only writes the text of an IR and reads it back."""
INSTRUCTIONS = "packages/ir/src/gyrator_ir/host/nodes.py"
TRANSLATORS = ("packages/ir/", "packages/wrapper_", TOOLS)
"""Who translates instructions, and so makes none that a stage has not made."""
ALL = "*"
"""Any arguments, where a call has `*` or `**`."""
KEPT: Mapping[str, str] = {
    "gyrator_ir.expr.sympy_bridge.to_sympy": "the oracle that tests compare expressions with",
    "gyrator_runtime.native.references.UserLaunch.grids": "the linker takes a reference's fields",
}
"""Exceptions, `module.Class.field` or `module.name`, each with its reason."""


@dataclass(frozen=True)
class Declared:
    """A name that a module declares."""

    name: str
    owner: str
    """The class, for a field or a method."""
    path: str
    line: int
    kind: str
    place: int | None = None
    """Of a parameter: where it stands in a call, if it may be given by position."""

    @property
    def full(self) -> str:
        """The dotted name."""
        module = self.path.partition("/src/")[2].removesuffix(".py").removesuffix("/__init__")
        return ".".join(p for p in (module.replace("/", "."), self.owner, self.name) if p)


@dataclass
class Used:
    """What files use: names that they load, import or spell, fields of patterns, classes called."""

    names: dict[str, set[str]] = field(default_factory=dict)
    """The files in which each name occurs other than as its own definition."""
    attributes: dict[str, set[str]] = field(default_factory=dict)
    """The files that read an attribute of the name."""
    built: dict[str, set[str]] = field(default_factory=dict)
    """The files that call the name."""
    passed: dict[str, set[str | int]] = field(default_factory=dict)
    """By name of what is called: the keywords and places of arguments."""
    values: set[str] = field(default_factory=set)
    """Names that stand elsewhere than in calls: who calls them gives what it likes."""

    def see(self, path: str, tree: ast.AST, positions: Mapping[str, list[str]]) -> None:
        """Add what one file uses; `positions` has the fields of each class in order."""
        for node in ast.walk(tree):
            for name, table in self._uses(node, positions):
                table.setdefault(name, set()).add(path)

    def see_calls(self, tree: ast.AST) -> None:
        """Add the arguments that one file gives, and the functions that it passes on."""
        called: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called.add(id(node.func))
                passed = self.passed.setdefault(last_name(node.func), set())
                passed.update(k.arg or ALL for k in node.keywords)
                passed.update(range(len(node.args)))
                if any(isinstance(a, ast.Starred) for a in node.args):
                    passed.add(ALL)
        for node in ast.walk(tree):
            if id(node) not in called and isinstance(node, ast.Name | ast.Attribute):
                self.values.add(last_name(node))

    def _uses(
        self, node: ast.AST, positions: Mapping[str, list[str]]
    ) -> Iterator[tuple[str, dict[str, set[str]]]]:
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()):
                yield name, self.names
                yield name, self.attributes
            case ast.Name(id=name, ctx=ast.Load()):
                yield name, self.names
            case ast.ImportFrom(names=aliases):
                yield from ((alias.name, self.names) for alias in aliases)
            case ast.Constant(value=str(text)):
                for name in re.findall(r"\w+", text) if len(text) < 100 else ():
                    yield name, self.names
                if text.isidentifier():  # getattr, attrgetter
                    yield text, self.attributes
            case ast.MatchClass(cls=cls, patterns=patterns, kwd_attrs=keywords):
                fields = positions.get(last_name(cls), [])
                used = [f for f, p in zip(fields, patterns, strict=False) if not wild(p)]
                for name in (*used, *keywords):
                    yield name, self.names
                    yield name, self.attributes
        if isinstance(node, ast.Call):
            yield last_name(node.func), self.built


def last_name(node: ast.AST) -> str:
    """Return `c` of `a.b.c` or of `c`, else nothing."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def wild(pattern: ast.pattern) -> bool:
    """Tell whether a pattern is `_`."""
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None and pattern.name is None


def parameters(path: str, owner: str, function: ast.FunctionDef) -> Iterator[Declared]:
    """Yield the parameters of a function that have defaults; `owner` is its class, if any."""
    args, skipped = function.args, 1 if owner else 0
    called = owner if function.name == "__init__" else function.name
    by_place = [*args.posonlyargs, *args.args]
    first = len(by_place) - len(args.defaults)
    for n, a in enumerate(by_place[first:], first - skipped):
        yield Declared(a.arg, called, path, a.lineno, "parameter", n)
    for a, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if default is not None:
            yield Declared(a.arg, called, path, a.lineno, "parameter")


def is_data(node: ast.ClassDef) -> bool:
    """Tell whether a class is one of attrs' or a dataclass."""
    decorators = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
    return any(last_name(d) in ("frozen", "define", "dataclass") for d in decorators)


def fields(node: ast.ClassDef) -> list[tuple[str, int]]:
    """Return the fields of an attrs class and their lines."""
    return [
        (line.target.id, line.lineno)
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and "ClassVar" not in ast.unparse(line.annotation)
    ]


def declared(path: str, tree: ast.Module) -> Iterator[Declared]:
    """Yield the fields, functions, classes and methods of a module; private ones are ruff's."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield Declared(node.name, "", path, node.lineno, "class")
            if is_data(node):
                for name, line in fields(node):
                    yield Declared(name, node.name, path, line, "field")
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not overrides(node, inner):
                    yield Declared(inner.name, node.name, path, inner.lineno, "method")
                    yield from parameters(path, node.name, inner)
                elif isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    yield from parameters(path, node.name, inner)
        elif isinstance(node, ast.FunctionDef) and not overrides(None, node):
            yield Declared(node.name, "", path, node.lineno, "function")
            yield from parameters(path, "", node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and not target.id.startswith("__"):
                    yield Declared(target.id, "", path, node.lineno, "constant")


def overrides(owner: ast.ClassDef | None, function: ast.FunctionDef) -> bool:
    """Tell whether others may call a function without its name: a base class, Python, a table."""
    inherits = owner is not None and bool(owner.bases)
    return inherits or function.name.startswith("__") or bool(function.decorator_list)


def instructions(tree: ast.Module) -> list[str]:
    """Return the members of the union `Instruction`."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="Instruction")], value=value):
                return [n.id for n in ast.walk(value) if isinstance(n, ast.Name)]
    return []


def problems(root: Path, exceptions: Mapping[str, str]) -> list[str]:
    """Return what is declared under `root` and not used, and the exceptions that are none."""
    trees = {
        path.relative_to(root).as_posix(): ast.parse(path.read_text(), str(path))
        for pattern in (PRODUCT, *USERS)
        for path in sorted(root.glob(pattern))
    }
    known = [d for path, tree in trees.items() if "/src/" in path for d in declared(path, tree)]
    positions = {
        node.name: [name for name, _ in fields(node)]
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and is_data(node)
    }
    used = Used()
    for path, tree in trees.items():
        used.see_calls(tree)
        if "/tests/" not in path:
            used.see(path, tree, positions)
    for path in root.glob(TESTS):
        used.see_calls(ast.parse(path.read_text()))
    for path in root.glob("packages/*/src/**/*.jinja"):
        for name in re.findall(r"\.(\w+)", path.read_text()):
            used.attributes.setdefault(name, set()).add(path.relative_to(root).as_posix())
    prose = {
        word
        for pattern in PROSE
        for path in root.glob(pattern)
        if path.name != "check_unused.py"
        for word in re.findall(r"\w+", path.read_text())
    }
    lines = {d.full: line for d in known if (line := problem(d, used, prose, root))}
    nodes = trees.get(INSTRUCTIONS)
    for name in instructions(nodes) if nodes else ():
        if all(path.startswith(TRANSLATORS) for path in used.built.get(name, ())):
            lines[f"gyrator_ir.host.nodes.{name}"] = (
                f"{INSTRUCTIONS}: no stage makes the instruction {name}"
            )
    stale = [
        f"ci/check_unused.py: {name} is used; take it from KEPT"
        for name in exceptions
        if name not in lines
    ]
    return [line for name, line in lines.items() if name not in exceptions] + stale


def problem(d: Declared, used: Used, prose: Set[str], root: Path) -> str:
    """Return what is wrong with a declaration, or nothing."""
    where = f"{d.path}:{d.line}"
    if d.kind == "parameter":
        passed = used.passed.get(d.owner, set())
        unknown = d.owner in used.values or d.owner in prose or d.path.startswith(TOOLS)
        if unknown or not passed.isdisjoint((d.name, d.place, ALL)):
            return ""
        return f"{where}: no call gives the parameter {d.name} of {d.owner}"
    if d.kind != "field":
        outside = d.path.startswith((TOOLS, "conformance/"))
        return (
            ""
            if outside or d.name in prose or used.names.get(d.name)
            else f"{where}: only tests use the {d.kind} {d.full}"
        )
    readers = {
        path
        for path in used.attributes.get(d.name, ())
        if not path.startswith(TOOLS) and not FORMS.search(path)
    }
    if d.owner.endswith("Options"):
        package = d.path.partition("/src/")[0]
        if not any(path.startswith(package) and path != d.path for path in readers):
            return f"{where}: no stage reads the option {d.full}"
        return ""
    if d.path.startswith(TOOLS) or readers:
        return ""
    return f"{where}: nothing reads the field {d.full}"


def main() -> int:
    """Print the problems of this repository; return 1 if there are any."""
    messages = problems(ROOT, KEPT)
    print("\n".join(messages) or "declared: all of it is used")
    if messages:
        print("use it, or delete it; KEPT in ci/check_unused.py is for what others use")
    return int(bool(messages))


if __name__ == "__main__":
    sys.exit(main())
