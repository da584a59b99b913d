"""Operations on other buffers."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from attrs import evolve

from gyrator_ir.body.rewrite import AnyStatement, rewritten
from gyrator_ir.loop import nodes
from gyrator_ir.loop.nodes import Arg, ListArg, Operation, TensorRef

S = TypeVar("S", bound=AnyStatement)
A = TypeVar("A", bound=Arg)
Op = TypeVar("Op", bound=Operation)


def on_buffers(op: Op, buffers: Mapping[str, str]) -> Op:
    """Return a loop, or a call of an op, a template or a user's kernel, with buffers replaced.

    If nothing changes, the operation itself is returned. The buffers that calls create must not
    change.
    """

    def body(statements: Iterable[S]) -> tuple[S, ...]:
        return tuple(rewritten(s, buffers=buffers) for s in statements)

    def arg(a: A) -> A:
        match a:
            case TensorRef(buffer=name) if name in buffers:
                return evolve(a, buffer=buffers[name])
            case ListArg(items):
                return ListArg(tuple(map(arg, items)))  # type: ignore[return-value]
            case _:
                return a

    def keywords(pairs: Iterable[tuple[str, Arg]]) -> tuple[tuple[str, Arg], ...]:
        return tuple((name, arg(a)) for name, a in pairs)

    def names(mutated: Iterable[str]) -> tuple[str, ...]:
        return tuple(buffers.get(name, name) for name in mutated)

    new: Operation
    match op:
        case nodes.Extern(args=args, kwargs=kwargs, mutates=mutates):
            new = evolve(
                op, args=tuple(map(arg, args)), kwargs=keywords(kwargs), mutates=names(mutates)
            )
        case nodes.Template(inputs=inputs, fallback=fallback, formulas=formulas):
            new = evolve(
                op,
                inputs=tuple(map(arg, inputs)),
                attributes=keywords(op.attributes),
                fallback=fallback and on_buffers(fallback, buffers),
                formulas=tuple(evolve(f, body=body(f.body)) for f in formulas),
            )
        case nodes.UserTritonKernel(args=args, constants=constants, mutates=mutates):
            new = evolve(
                op,
                args=keywords(args),
                constants=keywords(constants),
                descriptors=keywords(op.descriptors),
                mutates=names(mutates),
            )
        case nodes.Pointwise(body=statements) | nodes.Scatter(body=statements):
            new = evolve(op, body=body(statements))
        case nodes.Reduction() | nodes.Scan() | nodes.Sort():
            new = evolve(op, body=body(op.body), stores=body(op.stores))
        case _:
            return op
    return op if new == op else new
