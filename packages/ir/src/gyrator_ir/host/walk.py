"""Which names a sequence of instructions binds, uses and drops: for wrappers and passes."""

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from gyrator_ir.expr import Cond, Expr, Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.loop.nodes import Literal, TypeArg, UserKernel
from gyrator_ir.types import Device

_BINDS = {
    h.BindConstant: "name", h.Allocate: "name", h.AllocatePool: "name",
    h.AllocateFromPool: "name", h.Reuse: "name", h.View: "name", h.TmaDescriptor: "name",
    h.BindSize: "symbol", h.BindParameter: "symbol", h.DefineSymbol: "symbol",
    h.ReadScalar: "symbol",
}  # fmt: skip
_NOT_NAMES = frozenset(
    {
        "key",
        "kernel",
        "target",
        "out",
        "program",
        "message",
        "what",
        "label",
        "text",
        "mend",
        "uncaptured",
    }
)
_BODIES = ("body", "then", "otherwise", "condition")


def bodies(instruction: h.Instruction) -> tuple[tuple[h.Instruction, ...], ...]:
    """Return the sequences nested in an instruction."""
    match instruction:
        case h.WithDevice(body=body) | h.ProfileRange(body=body) | h.Repeat(body=body):
            return (body,)
        case h.Branch(then=then, otherwise=otherwise):
            return (then, otherwise)
        case h.Loop(condition=condition, body=body):
            return (condition, body)
        case _:
            return ()


def walk(instructions: Iterable[h.Instruction]) -> Iterator[h.Instruction]:
    """Yield every instruction, nested ones after the one that holds them."""
    for instruction in instructions:
        yield instruction
        for body in bodies(instruction):
            yield from walk(body)


def binds(instruction: h.Instruction) -> tuple[str, ...]:
    """Return the names and symbols that an instruction binds in its own sequence.

    Device and profile bodies bind in the sequence around them.
    """
    match instruction:
        case h.ExternCall(out=str()):
            return ()
        case h.ExternCall(results=results):
            return tuple(_flat(results))
        case h.CollectiveStart(results=results) | h.CallProgram(results=results):
            return results
        case h.CallPartition(results=results) | h.Branch(results=results) | h.Loop(results=results):
            return results
        case h.Repeat(results=results):
            return results
        case h.WithDevice(body=body) | h.ProfileRange(body=body):
            return bound(body)
    attribute = _BINDS.get(type(instruction))
    if attribute is None:
        return ()
    value = getattr(instruction, attribute)
    return (value.name if isinstance(value, Sym) else value,)


def bound(instructions: Iterable[h.Instruction]) -> tuple[str, ...]:
    """Return the names and symbols that a sequence binds, in order."""
    return tuple(dict.fromkeys(n for i in instructions for n in binds(i)))


def freed(instructions: Iterable[h.Instruction]) -> frozenset[str]:
    """Return the names that a sequence drops: `Free`, and the sources of `Reuse`."""
    names: set[str] = set()
    for i in instructions:
        match i:
            case h.Free(name=name) | h.Reuse(source=name):
                names.add(name)
            case h.WithDevice(body=body) | h.ProfileRange(body=body):
                names |= freed(body)
    return frozenset(names)


def uses(instruction: h.Instruction) -> tuple[str, ...]:
    """Return the names and symbols that an instruction itself reads, nested bodies left out."""
    defined = "symbol" if isinstance(instruction, h.Repeat) else _BINDS.get(type(instruction))
    found: list[str] = []
    for attribute in attrs.fields(type(instruction)):
        name = attribute.name
        nested = name in _BODIES and isinstance(getattr(instruction, name), tuple)
        if name == defined or name in _NOT_NAMES or nested:
            continue
        if name in (
            "results",
            "carried",
            "test",
            "next",
            "then_values",
            "otherwise_values",
            "out_names",
        ):
            continue
        _collect(getattr(instruction, name), found)
    if isinstance(instruction, h.ExternCall) and instruction.out is not None:
        found.extend(_flat(instruction.results))
    return tuple(dict.fromkeys(found))


def free_names(instructions: Iterable[h.Instruction]) -> tuple[str, ...]:
    """Return what a sequence uses and does not bind before, in order of first use."""
    known: set[str] = set()
    found: dict[str, None] = {}
    for i in instructions:
        needed = list(uses(i))
        match i:
            case h.Branch(then=then, otherwise=otherwise):
                needed += free_names(then) + free_names(otherwise)
                needed += [n for n in i.then_values if n not in bound(then)]
                needed += [n for n in i.otherwise_values if n not in bound(otherwise)]
            case h.Loop(carried=carried):
                inside = free_names(i.condition) + free_names(i.body)
                local = {*carried, *bound(i.condition), *bound(i.body)}
                needed += [n for n in (*inside, i.test, *i.next) if n not in local]
            case h.Repeat(carried=carried, body=body):
                local = {i.symbol.name, *carried, *bound(body)}
                needed += [n for n in (*free_names(body), *i.next) if n not in local]
            case h.WithDevice(body=body) | h.ProfileRange(body=body):
                needed += free_names(body)
        found.update(dict.fromkeys(n for n in needed if n not in known))
        known.update(binds(i))
    return tuple(found)


def _flat(results: Iterable[Any]) -> Iterator[str]:
    for r in results:
        match r:
            case str():
                yield r
            case tuple():
                yield from r
            case Sym():
                yield r.name


def _collect(value: Any, found: list[str]) -> None:
    match value:
        case h.Ref(name):
            found.append(name)
        case h.ListValue(items):
            _collect(items, found)
        case Expr() | Cond():
            found.extend(sorted(s.name for s in value.free_symbols))
        case Literal() | TypeArg() | Device():
            pass
        case tuple():
            for v in value:
                _collect(v[1] if _is_keyword(v) else v, found)
        case str() if type(value) is str:
            found.append(value)


def _is_keyword(value: object) -> bool:
    return (
        type(value) is tuple
        and len(value) == 2
        and type(value[0]) is str
        and not isinstance(value[1], str)
    )


def programs(host: h.HostProgram) -> tuple[h.HostProgram, ...]:
    """Return a program and all its subprograms, each after those that it calls."""
    return (*(p for sub in host.subprograms for p in programs(sub)), host)


def user_kernels(host: h.HostProgram) -> tuple[UserKernel, ...]:
    """Return the users' kernels that a program and its subprograms launch, each once."""
    return tuple({k.key: k for p in programs(host) for k in p.user_kernels}.values())
