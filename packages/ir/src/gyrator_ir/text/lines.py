"""Text as a tree of lines, structured by indentation."""

from typing import NoReturn

from attrs import field

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import ParseError

INDENT = "  "


@frozen
class Line:
    """One line, without its indentation, and the lines indented below it."""

    number: int
    """Line number, counted from 1."""
    text: str
    children: tuple["Line", ...] = ()

    def fail(self, message: str, code: str = "GY-PARSE-001", help: str = "") -> NoReturn:
        """Raise a ParseError that quotes this line."""
        raise ParseError.of(code, message, f"line {self.number}: {self.text}", help=help)

    def leaf(self) -> "Line":
        """Return the line itself, after checking that no lines are indented below it."""
        if self.children:
            self.children[0].fail("expected no line to be indented here")
        return self


@frozen
class _Open:
    number: int
    indent: int
    text: str
    children: list["_Open"] = field(factory=list)

    def close(self) -> Line:
        return Line(self.number, self.text, tuple(c.close() for c in self.children))


def parse_lines(text: str) -> tuple[Line, ...]:
    """Return the unindented lines, each with its children. Blank lines and lines that begin with
    `;` are skipped.

    Raises:
        ParseError: GY-PARSE-001, if the indentation of a line does not match that of its siblings,
            or contains a tab.
    """
    root = _Open(0, -1, "")
    stack = [root]
    for number, raw in enumerate(text.split("\n"), 1):
        stripped = raw.lstrip(" ")
        if not stripped.strip() or stripped.startswith(";"):
            continue
        if stripped[0] == "\t":
            Line(number, stripped.strip()).fail("expected spaces for indentation, got a tab")
        opened = _Open(number, len(raw) - len(stripped), stripped.rstrip(" \r"))
        while stack[-1].indent >= opened.indent:
            stack.pop()
        siblings = stack[-1].children
        if siblings and siblings[0].indent != opened.indent:
            Line(number, opened.text).fail(
                f"expected an indentation of {siblings[0].indent} spaces, got {opened.indent}"
            )
        siblings.append(opened)
        stack.append(opened)
    return tuple(child.close() for child in root.children)


def indented(lines: list[str]) -> list[str]:
    """Return the lines indented by one more level."""
    return [INDENT + line for line in lines]
