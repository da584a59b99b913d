"""Parameters of a host program, and the size symbols that they bind."""

from collections.abc import Iterable, Set

from gyrator_ir.expr import Const, Expr, Sym, SymKind, eq, linear
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import used_names
from gyrator_ir.loop.nodes import Buffer, Input, OpaqueInput, SizeInput, TensorInput


def parameters(inputs: Iterable[Input]) -> tuple[h.Parameter, ...]:
    """Return the parameters of the host program, in order."""
    result: list[h.Parameter] = []
    for program_input in inputs:
        match program_input:
            case TensorInput(buffer=buffer):
                result.append(h.Parameter(buffer.name, "tensor"))
            case SizeInput(name=name):
                result.append(h.Parameter(name, "size"))
            case OpaqueInput(name=name):
                result.append(h.Parameter(name, "opaque"))
    return tuple(result)


def bind_inputs(
    inputs: Iterable[Input],
) -> tuple[list[h.Instruction], list[h.AssertTrue], set[Sym]]:
    """Return the instructions that bind size symbols, checks of integer parameters that repeat what
    others say, and the symbols bound. Symbols are bound from integer parameters if possible, else
    from sizes and strides of tensors."""
    inputs = tuple(inputs)
    bound: set[Sym] = set()
    result: list[h.Instruction] = []
    checks: list[SizeInput] = []
    for program_input in inputs:
        if isinstance(program_input, SizeInput):
            if isinstance(program_input.expr, Sym) and program_input.expr not in bound:
                bound.add(program_input.expr)
                result.append(h.BindParameter(program_input.expr, program_input.name))
            else:
                checks.append(program_input)
    tensors = [g.buffer for g in inputs if isinstance(g, TensorInput) and not g.packed]
    for strides in (False, True):
        for b in tensors:
            for dim, e in enumerate(b.strides if strides else b.shape):
                if isinstance(e, Sym) and e not in bound:
                    bound.add(e)
                    result.append(h.BindSize(e, b.name, dim, strides))
    result.extend(_solved(tensors, bound))
    asserts: list[h.AssertTrue] = []
    for program_input in checks:
        value = Sym(f"s_{program_input.name}")
        result.append(h.BindParameter(value, program_input.name))
        bound.add(value)
        asserts.append(
            h.AssertTrue(
                eq(program_input.expr, value),
                f"the integer {program_input.name} is not {program_input.expr!r}",
            )
        )
    return result, asserts, bound


def needed_checks(
    inputs: Iterable[Input], checks: Iterable[h.AssertTrue], instructions: Iterable[h.Instruction]
) -> list[h.AssertTrue]:
    """Return the checks of integers on which the instructions depend. Integers that nothing uses
    may have no value: a dimension of a jagged tensor, say."""
    used = used_names(instructions)
    idle = {s for i in inputs if isinstance(i, SizeInput) for s in i.expr.free_symbols}
    idle = {s for s in idle if s.name not in used}
    return [c for c in checks if not c.condition.free_symbols & idle]


def check_inputs(
    inputs: Iterable[Input], bound: Set[Sym], used: Set[str], written: Set[str]
) -> list[h.Instruction]:
    """Return checks of the input tensors that are `used` and whose sizes are all `bound`.

    An input with a pending conjugation or negation is replaced by a resolved copy, unless it is
    `written` to.
    """
    return [
        h.Conform(
            b.name,
            b.dtype,
            b.device,
            b.shape,
            b.strides,
            h.Mend.NOTHING if b.name in written else h.Mend.PENDING,
        )
        for b in (g.buffer for g in inputs if isinstance(g, TensorInput) and not g.packed)
        if b.name in used and all(e.free_symbols <= bound for e in (*b.shape, *b.strides))
    ]


def _solved(tensors: Iterable[Buffer], bound: set[Sym]) -> list[h.Instruction]:
    """Bind symbols that occur only in linear sizes such as `2*s0 + 1`, by solving for them."""
    result: list[h.Instruction] = []
    for b in tensors:
        for dim, e in enumerate(b.shape):
            unknown = [s for s in e.free_symbols if s not in bound]
            if len(unknown) != 1:
                continue
            split = linear(e, unknown)
            if split is None or not isinstance(split[0][unknown[0]], Const):
                continue
            size = Sym(f"s_{b.name}_{dim}")
            result.append(h.BindSize(size, b.name, dim))
            value: Expr = (size - split[1]) // split[0][unknown[0]]
            result.append(h.DefineSymbol(unknown[0], value))
            bound.update((size, unknown[0]))
    return result


def bind_results(created: Iterable[Buffer], bound: set[Sym]) -> list[h.Instruction]:
    """Bind unbacked symbols that are determined by the sizes of a call's results."""
    result: list[h.Instruction] = []
    for b in created:
        for dim, e in enumerate(b.shape):
            if isinstance(e, Sym) and e.kind is SymKind.UNBACKED and e not in bound:
                bound.add(e)
                result.append(h.BindSize(e, b.name, dim))
    return result
