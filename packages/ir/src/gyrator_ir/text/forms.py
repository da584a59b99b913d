"""Forms: declarative line formats, from which nodes are both printed and parsed.

    Grammar(CODECS).form(Copy, "copy {source} -> {destination} [non_blocking]")

is the form of a `Copy` with two names and a flag. See `Grammar` for the notation.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from attrs import NOTHING, field, fields

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.text.lines import Line, indented
from gyrator_ir.text.scanner import (
    Scanner,
    Writer,
    read_symbol,
    show_device,
    show_string,
    show_word,
)

Node = TypeVar("Node")


@frozen
class Codec:
    """The text format of one kind of value."""

    show: Callable[[Any, Writer], str]
    read: Callable[[Scanner], Any]


class _Required:
    """The value is always printed."""


REQUIRED = _Required()


@frozen
class Part:
    """An attribute of a node, printed as `lead value`, after a space unless `glued`.

    The default value `omit` is not printed, and is the result of parsing if the part is absent.
    """

    attribute: str
    codec: Codec
    lead: str = ""
    omit: object = REQUIRED
    glued: bool = False

    def show(self, node: object, writer: Writer) -> str:
        """Print the part, including the space before it."""
        value = getattr(node, self.attribute)
        if self.omit is not REQUIRED and type(value) is type(self.omit) and value == self.omit:
            return ""
        text = self.codec.show(value, writer)
        pieces = [piece for piece in (self.lead, text) if piece]
        if not pieces:
            return ""
        return ("" if self.glued else " ") + " ".join(pieces)

    def read(self, scanner: Scanner) -> Any:
        """Parse the part."""
        if self.omit is not REQUIRED:
            return self.codec.read(scanner) if scanner.take(self.lead) else self.omit
        if self.lead:
            scanner.expect(self.lead)
        return self.codec.read(scanner)


def show_parts(parts: Iterable[Part], node: object, writer: Writer) -> str:
    """Print the parts of a line, each with the space before it."""
    return "".join(part.show(node, writer) for part in parts)


def read_parts(parts: Iterable[Part], scanner: Scanner) -> dict[str, Any]:
    """Parse the output of `show_parts`, and return the attributes."""
    return {part.attribute: part.read(scanner) for part in parts}


@frozen
class Block:
    """An attribute that is printed as lines below its node, under a line `title` if it is set."""

    attribute: str
    title: str = ""


@frozen
class Form:
    """The format of a node: a line `verb parts` or `target = verb parts`, and blocks below it."""

    cls: type
    verb: str
    parts: tuple[Part, ...] = ()
    target: Part | None = None
    blocks: tuple[Block, ...] = ()

    def head(self, node: object, writer: Writer) -> str:
        """Print the line."""
        assign = f"{self.target.show(node, writer)[1:]} = " if self.target else ""
        return assign + self.verb + show_parts(self.parts, node, writer)

    def show(
        self, node: object, writer: Writer, items: Callable[[Any, Writer], list[str]]
    ) -> list[str]:
        """Print the line and its blocks; `items` prints the contents of a block."""
        lines = [self.head(node, writer)]
        for block in self.blocks:
            below = items(getattr(node, block.attribute), writer)
            lines += indented([block.title, *indented(below)] if block.title else below)
        return lines

    def read(self, scanner: Scanner, items: Callable[[tuple[Line, ...]], Any]) -> Any:
        """Parse the whole line, including the target, and its blocks; `items` parses the contents
        of a block."""
        values: dict[str, Any] = {}
        if self.target:
            values[self.target.attribute] = self.target.read(scanner)
            scanner.expect("=")
        scanner.expect(self.verb)
        values |= read_parts(self.parts, scanner)
        scanner.end()
        values |= self._blocks(scanner.line, items)
        return build(scanner.line, self.cls, values)

    def _blocks(self, line: Line, items: Callable[[tuple[Line, ...]], Any]) -> dict[str, Any]:
        if not self.blocks:
            line.leaf()
            return {}
        if not self.blocks[0].title:
            return {self.blocks[0].attribute: items(line.children)}
        titles = [child.text for child in line.children]
        expected = [block.title for block in self.blocks]
        if titles != expected:
            line.fail(f"expected below it: {', '.join(expected)}")
        return {
            block.attribute: items(child.children)
            for block, child in zip(self.blocks, line.children, strict=True)
        }


def build(line: Line, cls: Callable[..., Node], values: Mapping[str, Any]) -> Node:
    """Return a node. Errors of its validators are raised as ParseError (GY-PARSE-003)."""
    try:
        return cls(**values)
    except TypeError as error:
        line.fail(str(error), code="GY-PARSE-003")
    except GyratorError as error:
        line.fail(error.diagnostic.message, code="GY-PARSE-003")


@frozen
class FormTable:
    """The forms of a level, by class and by verb."""

    forms: tuple[Form, ...]
    by_class: Mapping[type, Form] = field(init=False)
    by_verb: Mapping[tuple[bool, str], Form] = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "by_class", {f.cls: f for f in self.forms})
        by_verb = {(f.target is not None, f.verb): f for f in self.forms}
        if len(by_verb) != len(self.forms):
            raise ValueError("two forms have the same verb")
        object.__setattr__(self, "by_verb", by_verb)

    def find(self, scanner: Scanner) -> Form | None:
        """Return the form whose `verb` or `target = verb` comes next, without consuming it."""
        first, second, third = peek(scanner)
        if second == "=":
            return self.by_verb.get((True, third))
        return self.by_verb.get((False, first))

    def verbs(self) -> str:
        """Return the list of verbs as text, for messages."""
        return ", ".join(sorted(form.verb for form in self.forms))


def peek(scanner: Scanner) -> tuple[str, str, str]:
    """Return the next three blank-separated words of the line, without consuming them."""
    words = scanner.text[scanner.at :].split(maxsplit=3)
    first, second, third = (*words[:3], "", "", "")[:3]
    return first, second, third


# Codecs ---------------------------------------------------------------------------------------


def sequence(codec: Codec, brackets: str) -> Codec:
    """Return the codec of a tuple: comma-separated items, in `brackets` unless those are empty."""
    opening, closing = brackets[:1], brackets[1:]

    def show(values: Iterable[Any], writer: Writer) -> str:
        return opening + ", ".join(codec.show(v, writer) for v in values) + closing

    def read(scanner: Scanner) -> tuple[Any, ...]:
        items: list[Any] = []
        if opening:
            scanner.expect(opening)
            if scanner.take(closing):
                return ()
        elif scanner.ended():
            return ()
        while True:
            items.append(codec.read(scanner))
            if not scanner.take(","):
                break
        if closing:
            scanner.expect(closing)
        return tuple(items)

    return Codec(show, read)


def pairs(codec: Codec) -> Codec:
    """Return the codec of a tuple of pairs (key, value): `{key=value, ...}`."""

    def show(pair: tuple[str, Any], writer: Writer) -> str:
        return f"{show_word(pair[0])}={codec.show(pair[1], writer)}"

    def read(scanner: Scanner) -> tuple[str, Any]:
        key = scanner.word()
        scanner.expect("=")
        return key, codec.read(scanner)

    return sequence(Codec(show, read), "{}")


NAME = Codec(lambda value, _: value, lambda s: s.name())
WORD = Codec(lambda value, _: show_word(value), lambda s: s.word())
STRING = Codec(lambda value, _: show_string(value), lambda s: s.string())
INTEGER = Codec(lambda value, _: str(value), lambda s: s.integer())
EXPR = Codec(lambda value, w: w.expr(value), lambda s: s.expr())
COND = Codec(lambda value, w: f"({w.expr(value)})", lambda s: s.cond())
DTYPE = Codec(lambda value, _: value.value, lambda s: s.dtype())
DEVICE = Codec(lambda value, _: show_device(value), lambda s: s.device())
EXPRS = sequence(EXPR, "[]")
NAMES = sequence(NAME, "()")
WORDS = sequence(WORD, "()")
INTEGERS = sequence(INTEGER, "()")
SYMBOL = Codec(lambda value, _: value.name, read_symbol)
SYMBOLS = sequence(SYMBOL, "()")
TRUE = Codec(lambda *_: "", lambda _: True)


def _show_origins(rows: tuple[int, ...], _: Writer) -> str:
    return " ".join(f"@{row}" for row in rows)


def _read_origins(scanner: Scanner) -> tuple[int, ...]:
    rows: list[int] = []
    while scanner.take("@"):
        rows.append(scanner.integer())
    return tuple(rows)


ORIGINS = Codec(_show_origins, _read_origins)


def member_of(words: type[StrEnum]) -> Codec:
    """Return the codec of the members of an enum."""

    def read(scanner: Scanner) -> StrEnum:
        word = scanner.name()
        if word not in words.__members__.values():
            scanner.line.fail(f"expected one of {', '.join(words)}, got {word!r}")
        return words(word)

    return Codec(lambda value, _: value.value, read)


# Grammars -------------------------------------------------------------------------------------

CODECS: Mapping[str, Codec] = MappingProxyType(
    {
        "name": NAME, "word": WORD, "string": STRING, "integer": INTEGER, "expr": EXPR,
        "names": NAMES, "words": WORDS, "integers": INTEGERS, "exprs": EXPRS,
        "cond": COND, "dtype": DTYPE, "device": DEVICE, "symbol": SYMBOL, "symbols": SYMBOLS,
        "origins": ORIGINS,
    }
)  # fmt: skip
"""The codecs that all grammars know, by name."""

_FORM = re.compile(r"(?:(?P<target>\{[\w:]+\}) = )?(?P<verb>\w+)(?P<parts>.*)")
_PART = re.compile(
    r"(?P<space> ?)(?P<optional>\[?)(?:(?P<lead>[^\s{}\[\]]+)(?: |(?=\])))?"
    r"(?:\{(?P<attribute>\w+)(?::(?P<codec>\w+))?\})?\]?"
)


@frozen
class Grammar:
    """A notation for forms, in which `codecs` have names.

    | notation | what is printed |
    | --- | --- |
    | `{x}` | attribute `x`: by the codec `x` if there is one, else as a name |
    | `{x:expr}` | attribute `x`, by the codec `expr` |
    | `on {x}` | the same after the word `on` |
    | `[on {x}]` | nothing if `x` has the default value of its field, or else `()` |
    | `[stable]` | the word `stable` if the attribute `stable` is true |

    A form is `verb parts`, or `{x} = verb parts`.
    """

    codecs: Mapping[str, Codec]

    def form(self, cls: type, text: str, *blocks: Block) -> Form:
        """Return the form of a class."""
        match = _FORM.fullmatch(text)
        assert match is not None, text
        target, verb, rest = match.group("target", "verb", "parts")
        targets = self.parts(cls, target) if target else (None,)
        return Form(cls, verb, self.parts(cls, rest), targets[0], blocks)

    def parts(self, cls: type, text: str) -> tuple[Part, ...]:
        """Return the parts of a line that shows attributes of a class."""
        parts: list[Part] = []
        at = 0
        while at < len(text):
            match = _PART.match(text, at)
            assert match is not None and match.end() > at, text[at:]
            parts.append(self._part(cls, match, first=at == 0))
            at = match.end()
        return tuple(parts)

    def _part(self, cls: type, match: re.Match[str], first: bool) -> Part:
        space, optional, lead, attribute, codec = match.groups("")
        if not attribute:
            return Part(lead, TRUE, lead=lead, omit=False)
        known = self.codecs[codec] if codec else self.codecs.get(attribute, NAME)
        omit: object = REQUIRED
        if optional:
            default = getattr(fields(cls), attribute).default
            omit = () if default is NOTHING else default
        return Part(attribute, known, lead, omit, glued=not (space or first))
