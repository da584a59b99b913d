"""Lexical elements of the text forms: a scanner of lines, and printers of the same elements."""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NoReturn, TypeVar

from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.expr import Cond, Expr, Printer, Sym, parse_cond, parse_expr
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.text.lines import Line
from gyrator_ir.types import Device, DType

T = TypeVar("T")
_NAME = re.compile(r"[^\W\d]\w*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:\-/]*")
_INT = re.compile(r"-?[0-9]+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(
    r"-?(?:inf|nan(?:\(0x[0-9a-f]{16}\))?|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)(?![\w.])"
)
_TOKEN = re.compile(r" *(?:(\w+)|(//|\*\*|[-+*%<>=!]=?|,|\(|\)|\]|\[|.))")
_OPERATORS = frozenset({"and", "or", "not"})
NO_BUFFERS: Mapping[str, Buffer] = MappingProxyType({})
_expr_of = lru_cache(1024)(parse_expr)  # programs repeat their addresses
_QUIET_NAN = 0x7FF8000000000000


class Scanner:
    """A position in a line. Each method parses one element or raises ParseError (GY-PARSE-001)."""

    def __init__(self, line: Line, buffers: Mapping[str, Buffer] = NO_BUFFERS) -> None:
        self.line = line
        self.text = line.text
        self.at = 0
        self.buffers = buffers
        """The buffers that a name without a layout can denote."""

    def fail(self, expected: str) -> NoReturn:
        """Raise the error that `expected` should come next."""
        rest = self.text[self.at :].strip()
        self.line.fail(f"expected {expected}, got {rest!r}" if rest else f"expected {expected}")

    def _skip(self) -> int:
        text, at = self.text, self.at
        while at < len(text) and text[at] == " ":
            at += 1
        self.at = at
        return at

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self.text, self._skip())
        if match is None:
            self.fail(expected)
        self.at = match.end()
        return match.group()

    def ended(self) -> bool:
        """Return whether the rest of the line is blank."""
        return self._skip() == len(self.text)

    def end(self) -> None:
        """Check that the rest of the line is blank."""
        if not self.ended():
            self.fail("the end of the line")

    def looks(self, text: str) -> bool:
        """Return whether `text` comes next. If it ends in a word, so must the word in the line."""
        at = self._skip()
        if not self.text.startswith(text, at):
            return False
        after = at + len(text)
        if after == len(self.text) or not _continues(text[-1]):
            return True
        return not _continues(self.text[after])

    def take(self, text: str) -> bool:
        """Consume `text` if it comes next, and return whether it did."""
        if self.looks(text):
            self.at += len(text)
            return True
        return False

    def expect(self, text: str) -> None:
        """Consume `text`."""
        if not self.take(text):
            self.fail(repr(text))

    def name(self) -> str:
        """Parse an identifier."""
        return self._match(_NAME, "a name")

    def word(self) -> str:
        """Parse the output of `show_word`: a dotted word or a string."""
        return self.string() if self.looks('"') else self._match(_WORD, "a word or a string")

    def string(self) -> str:
        """Parse a quoted string."""
        text = self._match(_STRING, "a string in double quotes")
        try:
            value = json.loads(text)
        except ValueError:
            self.fail("a string with valid escapes")
        assert isinstance(value, str)
        return value

    def integer(self) -> int:
        """Parse a decimal integer."""
        return int(self._match(_INT, "an integer"))

    def number(self) -> bool | int | float:
        """Parse the output of `show_number`."""
        if self.take("true"):
            return True
        if self.take("false"):
            return False
        text = self._match(_NUMBER, "a number")
        if "nan(" in text:
            packed = struct.pack("<Q", int(text.partition("(")[2][:-1], 16))
            value: float = struct.unpack("<d", packed)[0]
            return value
        return int(text) if _INT.fullmatch(text) else float(text)

    def dtype(self) -> DType:
        """Parse the name of an element type."""
        at = self._skip()
        text = self._match(_NAME, "an element type")
        if text not in DType.__members__.values():
            self.at = at
            self.fail(f"an element type ({', '.join(DType)})")
        return DType(text)

    def device(self) -> Device:
        """Parse `cpu` or `cuda:1`; the type may be in quotes."""
        kind = self.string() if self.looks('"') else self.name()
        return Device(kind, self.integer() if self.take(":") else None)

    def expr(self) -> Expr:
        """Parse an expression, which ends at a comma, a closing bracket or a following word."""
        text = self._expression_text(operators=False)
        if not text:
            self.fail("an expression")
        try:
            return _expr_of(text)
        except GyratorError as error:
            self.line.fail(f"expected an expression: {error.diagnostic.message}")

    def cond(self) -> Cond:
        """Parse a condition in parentheses."""
        self.expect("(")
        text = self._expression_text(operators=True)
        if not text:
            self.fail("a condition")
        self.expect(")")
        try:
            return parse_cond(text)
        except GyratorError as error:
            self.line.fail(f"expected a condition: {error.diagnostic.message}")

    def _expression_text(self, operators: bool) -> str:
        start = at = self._skip()
        depth, operand = 0, False
        while at < len(self.text):
            token = _TOKEN.match(self.text, at)
            if token is None:
                break
            word, sign = token.groups()
            if depth == 0:
                if sign in (",", ")", "]", "[", ":", "{", "}", '"', "@"):
                    break
                if word and operand and not (operators and word in _OPERATORS):
                    break
                if sign == "(" and operand and self.text[at] == " ":
                    break
            depth += (sign == "(") - (sign == ")")
            operand = (word is not None and word not in _OPERATORS) or sign == ")"
            at = token.end()
        self.at = at
        return self.text[start:at]


def _continues(character: str) -> bool:
    return character.isalnum() or character == "_"


class Writer:
    """Prints elements of lines. One instance serves one text, and caches its expressions."""

    def __init__(self, buffers: Mapping[str, Buffer] = NO_BUFFERS) -> None:
        self.expr = Printer()
        """Prints an expression or a condition."""
        self.buffers = buffers
        """The buffers that a name without a layout can denote."""

    def exprs(self, exprs: tuple[Expr, ...]) -> str:
        """Print a list of expressions, in brackets."""
        return f"[{', '.join(map(self.expr, exprs))}]"


def read_line(
    line: Line, word: str, read: Callable[[Scanner], T], buffers: Mapping[str, Buffer] = NO_BUFFERS
) -> T:
    """Parse a line of `word` and what `read` parses, without lines below it."""
    s = Scanner(line.leaf(), buffers)
    s.expect(word)
    value = read(s)
    s.end()
    return value


def read_symbol(s: Scanner) -> Sym:
    """Parse the name of a symbol."""
    return symbol_named(s, s.name())


def symbol_named(s: Scanner, name: str) -> Sym:
    """Return the symbol of a name that has just been parsed."""
    try:
        return Sym(name)
    except GyratorError as error:
        s.line.fail(f"expected a symbol: {error.diagnostic.message}")


def show_word(text: str) -> str:
    """Print a dotted word as it is, and anything else as a string."""
    return text if _WORD.fullmatch(text) else show_string(text)


def show_string(text: str) -> str:
    """Print a string in double quotes, with JSON escapes if it has unprintable characters."""
    plain = text.isprintable()
    return json.dumps(text, ensure_ascii=not plain)


def show_number(value: bool | int | float) -> str:
    """Print a number such that it parses back to the same type and bits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isnan(value):
        (pattern,) = struct.unpack("<Q", struct.pack("<d", value))
        return "nan" if pattern == _QUIET_NAN else f"nan(0x{pattern:016x})"
    return repr(value)


def show_device(device: Device) -> str:
    """Print a device."""
    kind = device.type if _NAME.fullmatch(device.type) else show_string(device.type)
    return kind if device.index is None else f"{kind}:{device.index}"
