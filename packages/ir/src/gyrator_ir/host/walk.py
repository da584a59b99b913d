"""The names that sequences of instructions bind, use and free, for wrappers and passes."""

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
    "key kernel target out program message what label text mend uncaptured".split()
)
_NOT_USED = frozenset("results carried test next then_values otherwise_values out_names".split())
_BODIES = ("body", "then", "otherwise", "condition")


def bodies(instruction: h.Instruction) -> tuple[tuple[h.Instruction, ...], ...]:
    """Return the instruction sequences nested in an instruction."""
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
    """Yield every instruction in preorder, including nested ones."""
    for instruction in instructions:
        yield instruction
        for body in bodies(instruction):
            yield from walk(body)


def binds(instruction: h.Instruction) -> tuple[str, ...]:
    """Return the names and symbols that an instruction binds in its own sequence.

    The bodies of `WithDevice` and `ProfileRange` bind names in the enclosing sequence.
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
    """Return the names that a sequence unbinds: those of `Free`, and the sources of `Reuse`."""
    names: set[str] = set()
    for i in instructions:
        match i:
            case h.Free(name=name) | h.Reuse(source=name):
                names.add(name)
            case h.WithDevice(body=body) | h.ProfileRange(body=body):
                names |= freed(body)
    return frozenset(names)


def uses(instruction: h.Instruction) -> tuple[str, ...]:
    """Return the names and symbols that an instruction uses, not including its nested bodies."""
    defined = "symbol" if isinstance(instruction, h.Repeat) else _BINDS.get(type(instruction))
    names: list[str] = []
    for attribute in attrs.fields(type(instruction)):
        name = attribute.name
        nested = name in _BODIES and isinstance(getattr(instruction, name), tuple)
        if name == defined or nested or name in _NOT_NAMES or name in _NOT_USED:
            continue
        _collect(getattr(instruction, name), names)
    if isinstance(instruction, h.ExternCall) and instruction.out is not None:
        names.extend(_flat(instruction.results))
    return tuple(dict.fromkeys(names))


def used_names(instructions: Iterable[h.Instruction]) -> frozenset[str]:
    """Return the names and symbols that a sequence uses, including its nested bodies."""
    needed: set[str] = set()
    for i in walk(instructions):
        needed.update(uses(i))
        match i:
            case h.Branch():
                needed.update(i.then_values, i.otherwise_values)
            case h.Loop():
                needed.update(i.next, (i.test,))
            case h.Repeat():
                needed.update(i.next)
    return frozenset(needed)


def unused_parameters(program: h.HostProgram) -> frozenset[str]:
    """Return the integer parameters of a program that are bound to symbols which nothing uses."""
    needed = used_names(program.instructions)
    bindings = (i for i in program.instructions if isinstance(i, h.BindParameter))
    return frozenset(i.name for i in bindings if i.symbol.name not in needed)


def captures(i: h.Instruction) -> tuple[str, ...]:
    """Return the names of the enclosing sequence that the bodies of an instruction use or return,
    in order of first use."""
    inside = [name for body in bodies(i) for name in free_names(body)]
    defined = {name for body in bodies(i) for name in bound(body)}
    match i:
        case h.Branch():
            inside += (*i.then_values, *i.otherwise_values)
        case h.Loop():
            inside += (i.test, *i.next)
            defined.update(i.carried)
        case h.Repeat():
            inside += i.next
            defined.update((i.symbol.name, *i.carried))
    return tuple(dict.fromkeys(name for name in inside if name not in defined))


def free_names(instructions: Iterable[h.Instruction]) -> tuple[str, ...]:
    """Return the names that a sequence uses before it binds them, in order of first use."""
    local_names: set[str] = set()
    names: dict[str, None] = {}
    for i in instructions:
        needed = (*uses(i), *captures(i))
        names.update(dict.fromkeys(n for n in needed if n not in local_names))
        local_names.update(binds(i))
    return tuple(names)


def _flat(results: Iterable[Any]) -> Iterator[str]:
    for r in results:
        match r:
            case str():
                yield r
            case tuple():
                yield from r
            case Sym():
                yield r.name


def _collect(value: Any, names: list[str]) -> None:
    match value:
        case h.Ref(name):
            names.append(name)
        case h.ListValue(items):
            _collect(items, names)
        case Expr() | Cond():
            names.extend(sorted(s.name for s in value.free_symbols))
        case Literal() | TypeArg() | Device():
            pass
        case tuple():
            for v in value:
                _collect(v[1] if _is_keyword(v) else v, names)
        case str() if type(value) is str:
            names.append(value)


def _is_keyword(value: object) -> bool:
    return (
        type(value) is tuple
        and len(value) == 2
        and type(value[0]) is str
        and not isinstance(value[1], str)
    )


def programs(host: h.HostProgram) -> tuple[h.HostProgram, ...]:
    """Return a program and all its subprograms in postorder: callees before callers."""
    return (*(p for sub in host.subprograms for p in programs(sub)), host)


def launches(host: h.HostProgram) -> tuple[h.Launch, ...]:
    """Return the launches of a program and its subprograms."""
    every = (i for p in programs(host) for i in walk(p.instructions))
    return tuple(i for i in every if isinstance(i, h.Launch))


def kernels_used(host: h.HostProgram) -> tuple[str, ...]:
    """Return the kernels that a program and its subprograms launch, by first use."""
    return tuple(dict.fromkeys(i.kernel for i in launches(host)))


def constants_used(host: h.HostProgram) -> tuple[str, ...]:
    """Return the keys of the constants that a program and its subprograms bind, by first use."""
    every = (i for p in programs(host) for i in walk(p.instructions))
    return tuple(dict.fromkeys(i.key for i in every if isinstance(i, h.BindConstant)))


def user_kernels(host: h.HostProgram) -> tuple[UserKernel, ...]:
    """Return the distinct user kernels of a program and its subprograms."""
    return tuple({k.key: k for p in programs(host) for k in p.user_kernels}.values())
