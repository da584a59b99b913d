"""The common parts of programs of all levels: header, origins, facts, inputs, constants."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gyrator_ir.body.nodes import Axis
from gyrator_ir.diagnostics import GyratorError, ParseError
from gyrator_ir.expr import ShapeFacts, facts_to_text, parse_facts
from gyrator_ir.loop.nodes import (
    Buffer,
    Constant,
    Input,
    OpaqueInput,
    SizeInput,
    TensorInput,
    UserKernel,
    declared,
)
from gyrator_ir.provenance import Origin
from gyrator_ir.text.forms import (
    CODECS,
    INTEGER,
    Codec,
    Grammar,
    build,
    pairs,
    read_parts,
    sequence,
    show_parts,
)
from gyrator_ir.text.lines import Line, indented, parse_lines
from gyrator_ir.text.scanner import (
    Scanner,
    Writer,
    read_line,
    read_symbol,
    show_device,
    show_string,
    show_word,
)
from gyrator_ir.text.values import read_layout, show_layout

_HEADER = re.compile(r"([a-z.]+) (\d+) @([^\W\d]\w*)")


def header_kind(text: str, kinds: Collection[str]) -> str:
    """Return the kind, one of `kinds`, that the first line of a text declares: `loop.program`, ...

    Raises:
        ParseError: GY-PARSE-001, if the line does not declare any of them.
    """
    lines = parse_lines(text)
    if not lines:
        raise ParseError.of("GY-PARSE-001", "expected a program, got an empty text")
    kind = lines[0].text.partition(" ")[0]
    if kind not in kinds:
        lines[0].fail(f"expected one of {', '.join(kinds)}, got {kind!r}")
    return kind


def sole(text: str, kind: str) -> Line:
    """Return the header line of the only program in a text."""
    lines = parse_lines(text)
    if not lines:
        raise ParseError.of("GY-PARSE-001", f"expected a {kind}, got an empty text")
    if len(lines) > 1:
        lines[1].fail(f"expected one {kind}, and everything else indented below it")
    return lines[0]


def read_header(line: Line, kind: str, version: int) -> str:
    """Parse `kind version @name` and return the name.

    Raises:
        ParseError: GY-PARSE-002 for another version.
    """
    match = _HEADER.fullmatch(line.text)
    if match is None or match[1] != kind:
        line.fail(f"expected `{kind} {version} @name`")
    if int(match[2]) != version:
        line.fail(
            f"expected version {version} of {kind}, got version {match[2]}",
            code="GY-PARSE-002",
            help="print the program again with this release",
        )
    return match[3]


# Printers and parsers of lines ----------------------------------------------------------------


def show_origin(row: int, origin: Origin) -> str:
    """Print `origin 0 %add_1 aten.add.Tensor "model.py:31 in forward" "return x + y" "blocks.0"`.

    Trailing empty strings are omitted, so that there are none, two or three.
    """
    text = f"origin {row} %{show_word(origin.node)} {show_word(origin.target)}"
    if origin.location or origin.code or origin.module:
        text += f" {show_string(origin.location)} {show_string(origin.code)}"
    return f"{text} {show_string(origin.module)}" if origin.module else text


def read_origin(line: Line, row: int) -> Origin:
    """Parse the output of `show_origin`."""
    s = Scanner(line.leaf())
    s.expect("origin")
    if s.integer() != row:
        line.fail(f"expected row {row} of the origins")
    s.expect("%")
    node, target = s.word(), s.word()
    location, code = ("", "") if s.ended() else (s.string(), s.string())
    module = "" if s.ended() else s.string()
    s.end()
    return Origin(node, target, location, code, module)


def show_facts(facts: ShapeFacts) -> list[str]:
    """Print one line `fact s0 in [2, 4096]` for each fact."""
    text = facts_to_text(facts)
    return [f"fact {item}" for item in text.split("; ")] if text else []


def read_facts(lines: Sequence[Line]) -> ShapeFacts:
    """Parse the output of `show_facts`."""
    facts = [line.leaf().text.removeprefix("fact ") for line in lines]
    try:
        return parse_facts("; ".join(facts))
    except GyratorError:
        for line, fact in zip(lines, facts, strict=True):
            _read_fact(line, fact)
        raise


def _read_fact(line: Line, text: str) -> None:
    try:
        parse_facts(text)
    except GyratorError as error:
        line.fail(f"expected a fact: {error.diagnostic.message}", help=error.diagnostic.help)


def show_buffer(b: Buffer, writer: Writer) -> str:
    """Print `x: f32[4, 8] strides [8, 1] on cpu`."""
    return f"{b.name}:{show_layout(b, writer)} on {show_device(b.device)}"


def read_buffer(s: Scanner, name: str | None = None) -> Buffer:
    """Parse the output of `show_buffer`, or only the part after the colon if `name` is passed."""
    if name is None:
        name = s.name()
        s.expect(":")
    values = read_layout(s)
    s.expect("on")
    return build(s.line, Buffer, {"name": name, **values, "device": s.device()})


def show_input(i: Input, writer: Writer) -> str:
    """Print `in x: f32[4] strides [1] on cpu`, `in n: size s0` or `in g: opaque`."""
    match i:
        case TensorInput(buffer, packed):
            return f"in {show_buffer(buffer, writer)}{' packed' * packed}"
        case SizeInput(expr, name):
            return f"in {name}: size {writer.expr(expr)}"
        case OpaqueInput(name):
            return f"in {name}: opaque"


def read_input(line: Line) -> Input:
    """Parse the output of `show_input`."""
    return read_line(line, "in", _input)


def _input(s: Scanner) -> Input:
    name = s.name()
    s.expect(":")
    if s.take("size"):
        return SizeInput(s.expr(), name)
    if s.take("opaque"):
        return OpaqueInput(name)
    return TensorInput(read_buffer(s, name), packed=s.take("packed"))


def show_constant(c: Constant, writer: Writer) -> str:
    """Print `constant w: f32[4] strides [1] on cpu key "weight"`."""
    return f"constant {show_buffer(c.buffer, writer)} key {show_word(c.key)}"


def read_constant(line: Line) -> Constant:
    """Parse the output of `show_constant`."""
    return read_line(line, "constant", _constant)


def _constant(s: Scanner) -> Constant:
    buffer = read_buffer(s)
    s.expect("key")
    return Constant(buffer, s.word())


_USER_KERNEL = Grammar({**CODECS, "settings": pairs(INTEGER)}).parts(
    UserKernel, " {key:word} {parameters:words} [settings {settings}]"
)


def show_user_kernel(k: UserKernel, writer: Writer) -> list[str]:
    """Print `user_kernel key (x, n) settings {num_warps=4}`, and its source line by line."""
    head = "user_kernel" + show_parts(_USER_KERNEL, k, writer)
    return [head, *indented([_source_line(text) for text in k.source.split("\n")])]


def _source_line(text: str) -> str:
    plain = text.replace("\t", "").isprintable() and text == text.rstrip()
    return f"| {text}" if plain and text else "|" if plain else show_string(text)


def read_user_kernel(line: Line) -> UserKernel:
    """Parse the output of `show_user_kernel`."""
    s = Scanner(line)
    s.expect("user_kernel")
    values = read_parts(_USER_KERNEL, s)
    s.end()
    return UserKernel(source="\n".join(map(_read_source, line.children)), **values)


def _read_source(line: Line) -> str:
    if line.leaf().text.startswith("|"):
        return line.text.removeprefix("|").removeprefix(" ")
    return Scanner(line).string()


def show_user_kernels(kernels: Sequence[UserKernel], writer: Writer) -> list[str]:
    """Print the table of user kernels."""
    return [line for k in kernels for line in show_user_kernel(k, writer)]


def show_preamble(
    origins: Sequence[Origin],
    facts: ShapeFacts,
    inputs: Sequence[Input],
    constants: Sequence[Constant],
    writer: Writer,
) -> list[str]:
    """Print the origins, facts, inputs and constants of a program or schedule."""
    return [
        *(show_origin(row, origin) for row, origin in enumerate(origins)),
        *show_facts(facts),
        *(show_input(i, writer) for i in inputs),
        *(show_constant(c, writer) for c in constants),
    ]


def _show_axis(axis: Axis, writer: Writer) -> str:
    return f"{axis.symbol.name} < {writer.expr(axis.extent)}"


def _read_axis(s: Scanner) -> Axis:
    symbol = read_symbol(s)
    s.expect("<")
    return build(s.line, Axis, {"symbol": symbol, "extent": s.expr()})


AXES = sequence(Codec(_show_axis, _read_axis), "()")
"""`(i0 < 8, i1 < s0)`."""


def sections(line: Line, words: Mapping[str, str]) -> dict[str, list[Line]]:
    """Group the lines below a program by their first word; `words` maps words to groups.

    Raises:
        ParseError: GY-PARSE-001, for a line whose first word is not in `words`.
    """
    groups: dict[str, list[Line]] = {group: [] for group in words.values()}
    for child in line.children:
        word = child.text.partition(" ")[0]
        if word not in words:
            child.fail(f"expected one of {', '.join(sorted(words))}, got {word!r}")
        groups[words[word]].append(child)
    return groups


PREAMBLE = {
    "origin": "origins",
    "fact": "facts",
    "in": "inputs",
    "constant": "constants",
    "buffer": "buffers",
    "user_kernel": "user_kernels",
}
"""First words of the lines that `read_preamble` parses, and the fields that they belong to."""


def read_preamble(groups: Mapping[str, list[Line]]) -> dict[str, Any]:
    """Parse the groups of `PREAMBLE` that are present."""
    fields: dict[str, Any] = {
        "origins": tuple(read_origin(line, row) for row, line in enumerate(groups["origins"])),
        "facts": read_facts(groups["facts"]) if groups["facts"] else ShapeFacts(),
        "constants": tuple(map(read_constant, groups["constants"])),
        "user_kernels": tuple(map(read_user_kernel, groups["user_kernels"])),
    }
    if "inputs" in groups:
        fields["inputs"] = tuple(map(read_input, groups["inputs"]))
    if "buffers" in groups:
        lines = groups["buffers"]
        fields["buffers"] = tuple(read_line(line, "buffer", read_buffer) for line in lines)
    return fields


def whole_buffers(preamble: Mapping[str, Any]) -> dict[str, Buffer]:
    """Return the buffers that a preamble declares, by name."""
    parts = (preamble[name] for name in ("inputs", "constants", "buffers"))
    return {b.name: b for b in declared(*parts)}
