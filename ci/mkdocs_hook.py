"""What the manual takes from the code itself, so that it cannot fall behind.

- `packages/<name>.md` is the README of that package, `reference/<module>.md` its public names; all
  of them are in the navigation.
- A line `<!-- generated: NAME -->` in a page is replaced by what `GENERATORS[NAME]` returns, a line
  `<!-- rules: FAMILY -->` by the ATen ops that a family of lowering rules covers.
"""

import importlib
import inspect
import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.structure.files import File

from gyrator.cli.parser import make_parser
from gyrator.options import list_modes, list_options
from gyrator_ir.body import nodes as body
from gyrator_ir.body.ops import OPS
from gyrator_ir.host.nodes import INSTRUCTIONS
from gyrator_ir.kernel import nodes as kernel_nodes
from gyrator_ir.loop import nodes
from gyrator_ir.tile import nodes as tile_nodes
from gyrator_lowering.table import TableBuilder

sys.path.insert(0, str(Path(__file__).parent))
from contracts import contracts
from distributions import Package, packages, released

KINDS = {"library": "a library call", "kept": "a call of ATen"}
ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
RULES = re.compile(r"^<!-- rules: ([\w.]+) -->$", re.MULTILINE)
LINK = re.compile(r"\]\(\.\./([\w-]+)(?:/README\.md|/)?(#[\w-]+)?\)")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def prose(member: Any) -> str:
    """Return the docstring of `member` as one Markdown paragraph per paragraph."""
    return inspect.cleandoc(member.__doc__ or "")


def classes(members: Sequence[type]) -> str:
    """Return a section for each attrs class: its docstring and its fields."""
    parts = []
    for member in members:
        fields = ", ".join(f"`{a.name}`" for a in getattr(member, "__attrs_attrs__", ()))
        parts.append(f"### {member.__name__}\n\n{prose(member)}\n\nFields: {fields or 'none'}.")
    return "\n\n".join(parts)


def defined_in(module: ModuleType) -> list[type]:
    """Return the attrs classes that `module` defines, in the order of its text."""
    names = [
        member
        for member in vars(module).values()
        if inspect.isclass(member)
        and member.__module__ == module.__name__
        and hasattr(member, "__attrs_attrs__")
    ]
    return sorted(names, key=lambda member: inspect.getsourcelines(member)[1])


def ops() -> str:
    """Return the op table."""
    rows = [
        [f"`{r.name}`", str(r.arity), r.meaning, r.typing.value, r.domain.value, r.numerics.value]
        for r in OPS.values()
    ]
    return table(["op", "operands", "meaning", "typing", "domain", "numerics"], rows)


def members(kind: Any) -> str:
    """Return a table of the values of an enumeration with the line under each as its meaning."""
    source = inspect.getsource(kind)
    rows = []
    for member in kind:
        match = re.search(rf'^    {member.name} = .*\n(?:    """((?:.|\n)*?)""")?', source, re.M)
        text = inspect.cleandoc(match[1]) if match and match[1] else ""
        rows.append([f"`{member.value}`", " ".join(text.split())])
    return table(["name", "meaning"], rows)


def options() -> str:
    """Return the options of `torch.compile(..., options=...)`."""
    rows = [
        [
            f"`{name}`",
            f"`{about['default']!r}`",
            ", ".join(f"`{c!r}`" for c in about["choices"]) or type(about["default"]).__name__,
            about["meaning"],
        ]
        for name, about in list_options().items()
    ]
    return table(["option", "default", "takes", "meaning"], rows)


def modes() -> str:
    """Return what each mode sets."""
    rows = [
        [f"`{name}`", ", ".join(f"`{k}={v!r}`" for k, v in sets.items()) or "nothing"]
        for name, sets in list_modes().items()
    ]
    return table(["mode", "sets"], rows)


def commands() -> str:
    """Return the help of every command of the command line."""
    width, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "96"
    try:
        return "\n\n".join(_help(make_parser()))
    finally:
        os.environ.pop("COLUMNS")
        if width is not None:
            os.environ["COLUMNS"] = width


def _help(parser: ArgumentParser) -> Iterator[str]:
    """Yield a section for each command of a parser that runs something."""
    if parser.get_default("run"):
        yield f"### {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```"
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for part in action.choices.values():
                yield from _help(part)


def rules(family: str) -> str:
    """Return the ATen ops that the rules of `family` lower, and what each becomes."""
    builder = TableBuilder()
    importlib.import_module(f"gyrator_lowering.rules.{family}").register(builder)
    by_rule: dict[tuple[str, str], list[str]] = {}
    for target, rule in builder.build().rules.items():
        _, packet, *overload = target.split(".")
        kind = KINDS.get(rule.__qualname__.partition(".")[0], "generated code")
        by_rule.setdefault((packet, kind), []).extend(overload)
    rows = [
        [f"`{packet}`", ", ".join(f"`{o}`" for o in sorted(overloads)) or "all", kind]
        for (packet, kind), overloads in sorted(by_rule.items())
    ]
    return table(["aten op", "overloads", "becomes"], rows)


def public_modules() -> str:
    """Return the public modules of each package."""
    rows = [
        [f"[`{p.project['name']}`]({p.folder}.md)", ", ".join(f"`{m}`" for m in (p.module, *p.api))]
        for p in released(packages(ROOT))
    ]
    return table(["package", "root, and modules beside it"], rows)


GENERATORS: Mapping[str, Callable[[], str]] = {
    "ops": ops,
    "instructions": lambda: classes(INSTRUCTIONS),
    "loop-nodes": lambda: classes(defined_in(nodes)),
    "statements": lambda: classes(defined_in(body)),
    "reductions": lambda: members(body.ReduceKind),
    "scans": lambda: members(body.ScanKind),
    "kernel-nodes": lambda: classes(defined_in(kernel_nodes)),
    "tile-nodes": lambda: classes(defined_in(tile_nodes)),
    "commands": commands,
    "contracts": lambda: table(["function", "computed by", "may differ in"], contracts()),
    "modes": modes,
    "options": options,
    "public-modules": public_modules,
}


def reference(package: Package) -> str:
    """Return the page of a package's public names, which mkdocstrings fills in."""
    modules = [package.module, *(f"{package.module}.{name}" for name in package.api)]
    about = f"The public names of [{package.module}](../{package.folder}.md)."
    return "\n\n".join([f"# {package.module}", about, *(f"::: {name}" for name in modules)])


def on_config(config: Any) -> Any:
    """Add the packages to the navigation, in the order of release (called by mkdocs)."""
    packages_shown = released(packages(ROOT))
    config["nav"].append({"Packages": [f"{package.folder}.md" for package in packages_shown]})
    config["nav"].append(
        {"Reference": [f"reference/{package.module}.md" for package in packages_shown]}
    )
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the README of every package as a page (called by mkdocs)."""
    for readme in sorted(ROOT.glob("packages/*/README.md")):
        text = LINK.sub(r"](\1.md\2)", readme.read_text())
        text = text.replace("](../../docs/", "](../")
        page = File.generated(config, f"packages/{readme.parent.name}.md", content=text)
        files.append(page)
    for package in released(packages(ROOT)):
        path = f"reference/{package.module}.md"
        files.append(File.generated(config, path, content=reference(package)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the generated parts of a page (called by mkdocs)."""
    markdown = RULES.sub(lambda match: rules(match[1]), markdown)
    return MARK.sub(lambda match: GENERATORS[match[1]](), markdown)
