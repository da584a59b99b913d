"""The text form of arguments and results of calls."""

from collections.abc import Callable
from typing import Any

from gyrator_ir.expr import ZERO, Cond, Expr, Sym
from gyrator_ir.host.nodes import ListValue, Ref
from gyrator_ir.loop.nodes import ListArg, Literal, TensorRef, TypeArg
from gyrator_ir.text.forms import (
    CODECS,
    COND,
    EXPRS,
    NAME,
    Codec,
    Grammar,
    build,
    pairs,
    read_parts,
    sequence,
    show_parts,
)
from gyrator_ir.text.scanner import (
    Scanner,
    Writer,
    read_symbol,
    show_number,
    show_string,
    show_word,
)

RESERVED = frozenset({"none", "true", "false", "inf", "nan", "complex"})
"""Words that begin a constant. A tensor of such a name is printed with a `%`."""

LAYOUT = Grammar(CODECS).parts(TensorRef, " {dtype}{shape:exprs} strides {strides:exprs}")
"""`f32[4, 8] strides [8, 1]`."""


def show_layout(node: object, writer: Writer) -> str:
    """Print the element type, shape and strides of a node, with a space before them."""
    return show_parts(LAYOUT, node, writer)


def read_layout(scanner: Scanner) -> dict[str, Any]:
    """Parse the output of `show_layout`."""
    return read_parts(LAYOUT, scanner)


def _show_name(name: str) -> str:
    return f"%{name}" if name in RESERVED else name


def _show_tensor(ref: TensorRef, writer: Writer) -> str:
    buffer = writer.buffers.get(ref.buffer)
    twin = f" twin {ref.twin}" if ref.twin else ""
    if (
        buffer is not None
        and ref.offset is ZERO
        and (ref.dtype, ref.shape, ref.strides) == (buffer.dtype, buffer.shape, buffer.strides)
    ):
        return f"{_show_name(ref.buffer)}{twin}"
    offset = "" if ref.offset is ZERO else f" offset {writer.expr(ref.offset)}"
    return f"{_show_name(ref.buffer)}:{show_layout(ref, writer)}{offset}{twin}"


def _read_tensor(scanner: Scanner) -> TensorRef:
    name = scanner.name()
    if scanner.take(":"):
        values = read_layout(scanner)
        values["offset"] = scanner.expr() if scanner.take("offset") else ZERO
        values["twin"] = _read_twin(scanner)
        return build(scanner.line, TensorRef, {"buffer": name, **values})
    buffer = scanner.buffers.get(name)
    if buffer is None:
        scanner.line.fail(f"expected the name of a declared buffer, got {name!r}")
    twin = _read_twin(scanner)
    return TensorRef(name, buffer.dtype, buffer.shape, buffer.strides, ZERO, twin)


def _read_twin(scanner: Scanner) -> int:
    return scanner.integer() if scanner.take("twin") else 0


def _show_constant(value: object) -> str:
    match value:
        case None:
            return "none"
        case str():
            return show_string(value)
        case complex():
            return f"complex({show_number(value.real)}, {show_number(value.imag)})"
        case bool() | int() | float():
            return show_number(value)
    return repr(value)


def _read_complex(scanner: Scanner) -> complex:
    scanner.expect("(")
    real = scanner.number()
    scanner.expect(",")
    imaginary = scanner.number()
    scanner.expect(")")
    return complex(real, imaginary)


def _read_plain(scanner: Scanner) -> object | None:
    """Parse a constant, an expression in parentheses or `<kind value>`; return None for others."""
    if scanner.take("("):
        expr = scanner.expr()
        scanner.expect(")")
        return expr
    if scanner.take("<"):
        kind = scanner.word()
        value = scanner.word()
        scanner.expect(">")
        return TypeArg(kind, value)
    if scanner.looks('"'):
        return Literal(scanner.string())
    if scanner.take("none"):
        return Literal(None)
    if scanner.take("complex"):
        return Literal(_read_complex(scanner))
    rest = scanner.text[scanner.at : scanner.at + 1]
    if (rest and rest in "-0123456789") or any(map(scanner.looks, ("true", "false", "inf", "nan"))):
        return Literal(scanner.number())
    return None


def _codec(
    many: type, tensor: Callable[[Any, Writer], str], read_tensor: Callable[[Scanner], Any]
) -> Codec:
    def show(value: Any, writer: Writer) -> str:
        match value:
            case Expr():
                return f"({writer.expr(value)})"
            case Literal(constant):
                return _show_constant(constant)
            case TypeArg(kind, text):
                return f"<{show_word(kind)} {show_word(text)}>"
        if isinstance(value, many):
            return items.show(value.items, writer)  # type: ignore[attr-defined]  # ListArg, ListValue
        return tensor(value, writer)

    def read(scanner: Scanner) -> Any:
        if scanner.looks("["):
            return many(items.read(scanner))
        plain = _read_plain(scanner)
        if plain is not None:
            return plain
        scanner.take("%")
        return read_tensor(scanner)

    codec = Codec(show, read)
    items = sequence(codec, "[]")
    return codec


ARG = _codec(ListArg, _show_tensor, _read_tensor)
"""An argument of an operation. A name without a layout denotes the whole buffer."""
VALUE = _codec(ListValue, lambda ref, _: _show_name(ref.name), lambda scanner: Ref(scanner.name()))
"""An operand of an instruction."""

ARGS, VALUES = sequence(ARG, "()"), sequence(VALUE, "()")
ARGS_BY_NAME, VALUES_BY_NAME = pairs(ARG), pairs(VALUE)
OUTPUTS, RETURNED = sequence(ARG, ""), sequence(VALUE, "")
GRID = sequence(EXPRS, "[]")


def _show_result(result: str | tuple[str, ...] | Sym | None, _: Writer) -> str:
    match result:
        case None:
            return "none"
        case str():
            return _show_name(result)
        case tuple():
            return f"[{', '.join(result)}]"
    return f"({result.name})"


def _read_result(scanner: Scanner) -> object:
    if scanner.take("none"):
        return None
    if scanner.take("("):
        symbol = read_symbol(scanner)
        scanner.expect(")")
        return symbol
    if scanner.looks("["):
        return _NAME_LIST.read(scanner)
    scanner.take("%")
    return scanner.name()


_NAME_LIST = sequence(NAME, "[]")
RESULTS = sequence(Codec(_show_result, _read_result), "()")
"""The results of a call: `b0`, `[b1, b2]` for a list, `(u0)` for an integer, `none` if unused."""


def _decision(codec: Codec, tensors: type) -> Codec:
    """Return the codec of a condition on sizes in parentheses, or a one-element tensor."""

    def show(value: Any, writer: Writer) -> str:
        return (COND if isinstance(value, Cond) else codec).show(value, writer)

    def read(scanner: Scanner) -> Any:
        if scanner.looks("("):
            return scanner.cond()
        value = codec.read(scanner)
        if not isinstance(value, tensors):
            scanner.fail("a tensor or a condition in parentheses")
        return value

    return Codec(show, read)


ARG_OR_COND = _decision(ARG, TensorRef)
REF_OR_COND = _decision(VALUE, Ref)
