"""Encoding of the arguments of dispatcher calls for a schema."""

import re
from collections.abc import Mapping

from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, Expr
from gyrator_ir.host import nodes as h
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_ir.types import Device
from gyrator_wrapper_cpp.errors import refusal
from gyrator_wrapper_cpp.kinds import Kind, Kinds
from gyrator_wrapper_cpp.schema import Argument, Default, Schema
from gyrator_wrapper_cpp.text import TYPE_NAMES, SizePrinter, device, integer, quoted, real

_LIST = re.compile(r"(.*)\[(\d*)\]")
_TYPES = {"ScalarType": "dtype", "Layout": "layout", "MemoryFormat": "memory_format"}
_RETURNS = {
    "Tensor": "T",
    "Tensor[]": "L",
    "int": "i",
    "SymInt": "i",
    "bool": "i",
    "SymBool": "i",
    "float": "i",
}
GENERATORS_SINCE = (2, 13)
"""The first version of the ABI that supports generator arguments."""


class InexpressibleError(Exception):
    """The ABI has no encoding for a value of this kind."""


def return_letters(schema: Schema, mixed: bool = False) -> str:
    """Return a letter for each result, in the form that `gy::Call::call` takes.

    Args:
        schema: the schema of the op.
        mixed: whether the ABI converts each result by its own type. libtorch up to 2.13 reads the
            types in reverse order, so that the sequence of result types must be a palindrome.

    Raises:
        InexpressibleError: if the ABI does not support results of some type.
    """
    if not mixed and schema.returns != schema.returns[::-1]:
        raise InexpressibleError("results of several types")
    for kind in schema.returns:
        if kind not in _RETURNS:
            raise InexpressibleError(f"a result of type {kind}")
    return "".join(_RETURNS[kind] for kind in schema.returns)


def matched(
    schema: Schema, args: tuple[h.Value, ...], kwargs: Mapping[str, h.Value]
) -> tuple[tuple[Argument, h.Value], ...]:
    """Pair each argument of a schema with its value or its default."""
    if len(args) > len(schema.arguments):
        raise refusal("GY-WCPP-002", f"{schema.target} takes {len(schema.arguments)} arguments")
    unknown = kwargs.keys() - {a.name for a in schema.arguments[len(args) :]}
    if unknown:
        raise refusal("GY-WCPP-002", f"{schema.target} has no further argument {min(unknown)!r}")
    pairs = list(zip(schema.arguments, args, strict=False))
    for argument in schema.arguments[len(args) :]:
        if argument.name in kwargs:
            pairs.append((argument, kwargs[argument.name]))
        elif argument.has_default:
            pairs.append((argument, _default(argument.default, argument.kind)))
        else:
            raise refusal("GY-WCPP-002", f"{schema.target} is called without {argument.name!r}")
    return tuple(pairs)


def _default(value: Default, kind: str) -> h.Value:
    if isinstance(value, tuple):
        return h.ListValue(tuple(Literal(v) for v in value))
    type_kind = _TYPES.get(kind.rstrip("?"))
    if isinstance(value, str) and type_kind is not None:
        return TypeArg(type_kind, value)
    return Literal(value)


@frozen
class Encoder:
    """Formats `gy::Slot` expressions."""

    kinds: Kinds
    size: SizePrinter
    abi: tuple[int, int]
    hooked: frozenset[str] = frozenset()

    def slot(self, kind: str, value: h.Value) -> str:
        """Format a value as an argument of type `kind`.

        Raises:
            InexpressibleError: if the ABI does not support such arguments.
            UnsupportedError: GY-WCPP-002, if the value does not have that type.
        """
        if kind.endswith("?"):
            if value == Literal(None):
                return "gy::none()"
            if kind == "Generator?" and isinstance(value, h.Ref):
                return self._generator(value, "maybe_generator")
            return f"gy::some({self.slot(kind[:-1], value)})"
        list_type = _LIST.fullmatch(kind)
        if list_type is not None:
            items = self._items(value, list_type.group(2), kind)
            added = "".join(f".add({self.slot(list_type.group(1), item)})" for item in items)
            return f"gy::List({len(items)}){added}.take()"
        return self._base(kind, value)

    def _items(self, value: h.Value, count: str, kind: str) -> tuple[h.Value, ...]:
        match value:
            case h.ListValue(items):
                return items
            case Expr() | Literal(int() | float()) if count:
                return (value,) * int(count)
        raise _mismatch(kind, value)

    def _base(self, kind: str, value: h.Value) -> str:
        match kind:
            case "Tensor":
                if isinstance(value, h.Ref) and self.kinds[value.name] is Kind.TENSOR:
                    return f"gy::tensor(f.{self.kinds.member(value.name)})"
                if value == Literal(None):
                    return "gy::undefined()"
                if isinstance(getattr(value, "value", value), Expr | int | float | complex):
                    raise InexpressibleError("a number as a tensor")
            case "int" | "SymInt":
                return f"gy::integer({self._integer(kind, value)})"
            case "bool" | "SymBool":
                return f"gy::boolean({self._integer(kind, value)})"
            case "float":
                return f"gy::real({self._real(kind, value)})"
            case "str":
                self._direct(kind)
                if isinstance(value, Literal) and isinstance(value.value, str):
                    return f"gy::text({quoted(value.value)}, {len(value.value.encode())})"
            case "ScalarType" | "Layout" | "MemoryFormat" | "Device":
                return self._type(kind, value)
            case "Generator":
                return self._generator(value, "generator")
            case _:
                raise InexpressibleError(f"an argument of type {kind}")
        raise _mismatch(kind, value)

    def _direct(self, kind: str) -> None:
        if kind in self.hooked:
            raise InexpressibleError(f"an argument of type {kind} correctly")

    def _integer(self, kind: str, value: h.Value) -> str:
        match value:
            case Expr():
                return self.size(value)
            case Literal(bool(v)) | Literal(int(v)):
                if -(2**63) <= v < 2**63:
                    return integer(int(v))
            case h.Ref(name) if self.kinds[name] is Kind.VALUE:
                return f"gy::int_of(f.{self.kinds.member(name)}, {quoted(name)})"
        raise _mismatch(kind, value)

    def _real(self, kind: str, value: h.Value) -> str:
        match value:
            case Literal(bool(v)) | Literal(int(v)) | Literal(float(v)):
                return real(float(v))
            case Expr():
                return f"static_cast<double>({self.size(value)})"
        raise _mismatch(kind, value)

    def _type(self, kind: str, value: h.Value) -> str:
        if kind == "Device":
            if isinstance(value, TypeArg) and value.kind == "device":
                return f"gy::where({device(device_of(value.value), host_index=-1)})"
            raise _mismatch(kind, value)
        expected = _TYPES[kind]
        match value:
            case TypeArg(type_kind, name) if type_kind == expected:
                if name not in TYPE_NAMES[expected]:
                    raise InexpressibleError(f"the {expected} {name}")
                return f"gy::integer(aoti_torch_{expected}_{name}())"
            case Literal(int(v)):
                return f"gy::integer({integer(v)})"
            case Const():
                return f"gy::integer({integer(value.value)})"
        raise _mismatch(kind, value)

    def _generator(self, value: h.Value, function: str) -> str:
        if not isinstance(value, h.Ref) or self.kinds[value.name] is not Kind.VALUE:
            raise _mismatch("Generator", value)
        self._direct("Generator")
        if self.abi < GENERATORS_SINCE:
            raise InexpressibleError("a generator (before torch 2.13)")
        return f"gy::{function}(f.{self.kinds.member(value.name)})"


def device_of(text: str) -> Device:
    """Parse a device such as `cuda:1`."""
    kind, _, index = text.partition(":")
    return Device(kind, int(index) if index else None)


def _mismatch(kind: str, value: h.Value) -> Exception:
    return refusal("GY-WCPP-002", f"{value!r} is not a value of type {kind}")
