"""Reads one line from left to right, and writes the pieces that it reads."""

import json
import math
import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NoReturn

from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.expr import Cond, Expr, Printer, Sym, parse_cond, parse_expr
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.text.lines import Line
from gyrator_ir.types import Device, DType

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
    """A position in a line. Every method reads one thing or raises a ParseError (GY-PARSE-001)."""

    def __init__(self, line: Line, buffers: Mapping[str, Buffer] = NO_BUFFERS) -> None:
        self.line = line
        self.text = line.text
        self.at = 0
        self.buffers = buffers
        """What a lone name may stand for."""

    def fail(self, expected: str) -> NoReturn:
        """Raise: `expected` was wanted here."""
        rest = self.text[self.at :].strip()
        self.line.fail(f"expected {expected}, got {rest!r}" if rest else f"expected {expected}")

    def _skip(self) -> int:
        text, at = self.text, self.at
        while at < len(text) and text[at] == " ":
            at += 1
        self.at = at
        return at

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        found = pattern.match(self.text, self._skip())
        if found is None:
            self.fail(expected)
        self.at = found.end()
        return found.group()

    def ended(self) -> bool:
        """Tell whether nothing is left."""
        return self._skip() == len(self.text)

    def end(self) -> None:
        """Expect the end of the line."""
        if not self.ended():
            self.fail("the end of the line")

    def looks(self, text: str) -> bool:
        """Tell whether `text` comes next; a word must end where `text` does."""
        at = self._skip()
        if not self.text.startswith(text, at):
            return False
        after = at + len(text)
        if after == len(self.text) or not _continues(text[-1]):
            return True
        return not _continues(self.text[after])

    def take(self, text: str) -> bool:
        """Read `text` if it comes next."""
        if self.looks(text):
            self.at += len(text)
            return True
        return False

    def expect(self, text: str) -> None:
        """Read `text`."""
        if not self.take(text):
            self.fail(repr(text))

    def name(self) -> str:
        """Read an identifier."""
        return self._match(_NAME, "a name")

    def word(self) -> str:
        """Read what `show_word` writes: a dotted word, or a string."""
        return self.string() if self.looks('"') else self._match(_WORD, "a word or a string")

    def string(self) -> str:
        """Read a quoted string."""
        text = self._match(_STRING, "a string in double quotes")
        try:
            value = json.loads(text)
        except ValueError:
            self.fail("a string with valid escapes")
        assert isinstance(value, str)
        return value

    def integer(self) -> int:
        """Read a decimal integer."""
        return int(self._match(_INT, "an integer"))

    def number(self) -> bool | int | float:
        """Read what `show_number` writes."""
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
        """Read the name of an element type."""
        at = self._skip()
        text = self._match(_NAME, "an element type")
        if text not in DType.__members__.values():
            self.at = at
            self.fail(f"an element type ({', '.join(DType)})")
        return DType(text)

    def device(self) -> Device:
        """Read `cpu`, `cuda:1`, or with the type in quotes."""
        kind = self.string() if self.looks('"') else self.name()
        return Device(kind, self.integer() if self.take(":") else None)

    def expr(self) -> Expr:
        """Read an expression: as far as it goes, then up to a comma, bracket or word after it."""
        text = self._stretch(operators=False)
        if not text:
            self.fail("an expression")
        try:
            return _expr_of(text)
        except GyratorError as error:
            self.line.fail(f"expected an expression: {error.diagnostic.message}")

    def cond(self) -> Cond:
        """Read a condition in parentheses."""
        self.expect("(")
        text = self._stretch(operators=True)
        if not text:
            self.fail("a condition")
        self.expect(")")
        try:
            return parse_cond(text)
        except GyratorError as error:
            self.line.fail(f"expected a condition: {error.diagnostic.message}")

    def _stretch(self, operators: bool) -> str:
        start = at = self._skip()
        depth, operand = 0, False
        while at < len(self.text):
            found = _TOKEN.match(self.text, at)
            if found is None:
                break
            word, sign = found.groups()
            if depth == 0:
                if sign in (",", ")", "]", "[", ":", "{", "}", '"', "@"):
                    break
                if word and operand and not (operators and word in _OPERATORS):
                    break
                if sign == "(" and operand and self.text[at] == " ":
                    break
            depth += (sign == "(") - (sign == ")")
            operand = (word is not None and word not in _OPERATORS) or sign == ")"
            at = found.end()
        self.at = at
        return self.text[start:at]


def _continues(character: str) -> bool:
    return character.isalnum() or character == "_"


class Writer:
    """Writes pieces of lines; one instance for one text, whose expressions it remembers."""

    def __init__(self, buffers: Mapping[str, Buffer] = NO_BUFFERS) -> None:
        self.expr = Printer()
        """Writes an expression or a condition."""
        self.buffers = buffers
        """What a lone name may stand for."""

    def exprs(self, exprs: tuple[Expr, ...]) -> str:
        """Write a list of expressions, with brackets."""
        return f"[{', '.join(map(self.expr, exprs))}]"


def read_symbol(s: Scanner) -> Sym:
    """Read the name of a symbol."""
    return symbol_named(s, s.name())


def symbol_named(s: Scanner, name: str) -> Sym:
    """Return the symbol whose name has just been read."""
    try:
        return Sym(name)
    except GyratorError as error:
        s.line.fail(f"expected a symbol: {error.diagnostic.message}")


def show_word(text: str) -> str:
    """Write a dotted word as it is, anything else as a string."""
    return text if _WORD.fullmatch(text) else show_string(text)


def show_string(text: str) -> str:
    """Write a string in double quotes, with JSON's escapes where a character is not printable."""
    plain = text.isprintable()
    return json.dumps(text, ensure_ascii=not plain)


def show_number(value: bool | int | float) -> str:
    """Write a number so that the same type and bits are read back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isnan(value):
        (pattern,) = struct.unpack("<Q", struct.pack("<d", value))
        return "nan" if pattern == _QUIET_NAN else f"nan(0x{pattern:016x})"
    return repr(value)


def show_device(device: Device) -> str:
    """Write a device."""
    kind = device.type if _NAME.fullmatch(device.type) else show_string(device.type)
    return kind if device.index is None else f"{kind}:{device.index}"
