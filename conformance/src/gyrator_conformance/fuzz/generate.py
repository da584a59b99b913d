"""Generate random programs: each statement is tried in eager mode before it is added."""

import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, evolve, field
from torch import Tensor

from gyrator_conformance.fuzz.parts import (
    CALLS,
    VARIABLE,
    assigned,
    mark_of,
    marked,
    with_plainer_parts,
)  # fmt: skip
from gyrator_conformance.fuzz.program import DTYPES, LAYOUTS, Gradients, Input, Program, Size
from gyrator_conformance.fuzz.templates import MUTATION, templates
from gyrator_ir.types import HOST

_LARGEST = 20_000
"""The maximum number of elements of a tensor."""
_TRIES = 12
"""The number of templates tried for one statement."""
_SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33, 64, 65)
_NUMBERS = ("0", "1", "2", "-1", "0.5", "-0.5", "3", "1e-3", "2.5")
_RARE = 0.15
_OPTIONS = {"fusion": False, "min_cut": False, "extern_kernels": "none", "size_asserts": True}
_MODES: tuple[dict[str, Any], ...] = (
    {"numerics": "bitwise"}, {"numerics": "batch_invariant"}, {"freezing": True}, {"inline": False},
)  # fmt: skip
_CALL_WEIGHTS = (6, 1, 2, 2, 2, 2)
"""How often a part is called in each way, in the order of `CALLS`."""
_KINDS = {"t": "fcib", "w": "fci", "f": "f", "c": "c", "i": "i", "b": "b"}


def generate(seed: int, wrappers: tuple[str, ...] = ("python",)) -> Program:
    """Return the random program of a seed."""
    rng = random.Random(seed)
    dims = {f"d{k}": tuple(rng.choices(_SIZES, k=3)) for k in range(3)}
    dynamic = rng.random() < 0.35
    if not dynamic:
        dims = {name: sizes[:1] for name, sizes in dims.items()}
    gradients: Gradients = rng.choices(("none", "first", "second"), (5, 4, 1))[0]
    inputs = tuple(_input(rng, f"x{k}", tuple(dims), gradients) for k in range(rng.randint(1, 3)))
    program = Program(inputs, (), (), dims, {}, dynamic, gradients, rng.choice(wrappers))
    drawn = _Drawing(rng, program)
    for _ in range(rng.randint(2, 10)):
        drawn.statement()
    options: dict[str, Any] = {k: v for k, v in _OPTIONS.items() if rng.random() < _RARE}
    if drawn.random:
        options["fallback_random"] = True
    candidate = evolve(
        program, statements=tuple(drawn.statements), results=drawn.results(), options=options
    )
    return _in_parts(rng, _in_mode(rng, evolve(candidate, dims=_used(candidate))))


def _in_mode(rng: random.Random, program: Program) -> Program:
    """Sometimes add one option of which programs have at most one; with `freezing`, some inputs
    are parameters."""
    if rng.random() < 2 * _RARE:
        program = evolve(program, options={**program.options, **rng.choice(_MODES)})
    if program.options.get("freezing"):
        frozen = (evolve(i, parameter=not i.grad and rng.random() < 0.6) for i in program.inputs)
        program = evolve(program, inputs=tuple(frozen))
    return program


def _in_parts(rng: random.Random, program: Program) -> Program:
    """Sometimes make some statements into parts, if eager mode then still runs the program."""
    end = len(program.statements)
    for number in range(rng.choice((0, 0, 0, 1, 1, 2))):
        ways = rng.choices(tuple(CALLS), _CALL_WEIGHTS, k=rng.choice((1, 1, 1, 2)))
        first, last = sorted(rng.choices(range(end + 1), k=2))
        chosen = program.statements[first:last]
        if any(map(mark_of, chosen)):
            continue
        part = tuple(marked(s, ways, number) for s in chosen)
        statements = (*program.statements[:first], *part, *program.statements[last:])
        candidate = evolve(program, statements=statements)
        if _runs(candidate):
            program = candidate
    return program


def _runs(program: Program) -> bool:
    tensors, scalars = program.arguments(0, HOST)
    arguments = [t.clone() if t.requires_grad else t for t in tensors]
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program.function()(*arguments, *scalars)
    except Exception:
        return False
    return True


def _used(program: Program) -> dict[str, tuple[int, ...]]:
    names = {s for i in program.inputs for s in i.sizes}
    return {name: sizes for name, sizes in program.dims.items() if name in names}


def _input(rng: random.Random, name: str, dims: tuple[str, ...], gradients: Gradients) -> Input:
    rank = rng.choices((0, 1, 2, 3, 4, 5), (1, 4, 6, 4, 3, 1))[0]
    sizes: tuple[Size, ...] = tuple(
        rng.choice(dims) if rng.random() < 0.6 else rng.choice(_SIZES[1:12]) for _ in range(rank)
    )
    if rank > 3:  # small enough for what doubles them
        symbolic = [isinstance(s, str) and rng.random() < 0.3 for s in sizes]
        sizes = tuple(s if k else rng.randint(1, 4) for s, k in zip(sizes, symbolic, strict=True))
    weights = (24, 6, 6, 6, 4, 2, 2, 2, 2, 4, 5, 2, 1, 1, 1)
    dtype = rng.choices(tuple(DTYPES), weights)[0]
    floating = DTYPES[dtype].is_floating_point or DTYPES[dtype].is_complex
    return Input(
        name,
        sizes,
        dtype,
        rng.choice(LAYOUTS) if rng.random() < 0.5 else "c",
        rng.randrange(1 << 30),
        rng.random() < _RARE,
        gradients != "none" and floating and rng.random() < 0.7,
    )


@define
class _Drawing:
    """A program under construction: its statements, and their results in eager mode."""

    rng: random.Random
    program: Program
    statements: list[str] = field(factory=list)
    values: dict[str, Tensor] = field(factory=dict)
    fresh: list[str] = field(factory=list)
    """Values without a reader."""
    random: bool = False

    def __attrs_post_init__(self) -> None:
        tensors, _ = self.program.arguments(0, HOST)
        names = (i.name for i in self.program.inputs)
        self.values = {name: t.detach() for name, t in zip(names, tensors, strict=True)}

    def statement(self) -> None:
        """Add one statement that eager accepts, if one is found."""
        for _ in range(_TRIES):
            family = self.rng.choice(tuple(templates()))
            writes = family == MUTATION
            template = self.rng.choice(templates()[family])
            filled = self._fill(template)
            if filled is not None and self._try(filled, writes):
                self.random |= family == "random"
                return

    def results(self) -> tuple[str, ...]:
        """Return the results of the program: all values without a reader, and sometimes more."""
        computed = [n for n in self.values if n.startswith("v")]
        chosen = dict.fromkeys(n for n in self.fresh if n in self.values)
        chosen |= dict.fromkeys(n for n in self.values if self.rng.random() < 0.1)
        return tuple(chosen) or tuple(computed[-1:]) or tuple(self.values)[:1]

    def _fill(self, template: str) -> str | None:
        first: str | None = None
        parts: list[str] = []
        end = 0
        for slot in re.finditer(r"\{(\w)\}", template):
            kind = slot[1]
            if kind in "tfcibw":
                name = self._tensor(kind, first)
                first = first or name
                text = name
            elif kind == "s":
                text = self._like(first)
            elif kind == "1":
                text = first
            else:
                text = self._number(kind, first)
            if text is None:
                return None
            parts += [template[end : slot.start()], text]
            end = slot.end()
        return "".join(parts) + template[end:]

    def _tensor(self, kind: str, first: str | None) -> str | None:
        fitting = [n for n, t in self.values.items() if _kind(t) in _KINDS[kind]]
        if first in fitting and self.rng.random() < 0.4:
            return first
        recent = [n for n in fitting if n in self.fresh]
        if recent and self.rng.random() < 0.6:
            return self.rng.choice(recent)
        return self.rng.choice(fitting) if fitting else None

    def _like(self, first: str | None) -> str | None:
        if first is None:
            return None
        shape = self.values[first].shape
        return self.rng.choice([n for n, t in self.values.items() if t.shape == shape])

    def _number(self, kind: str, first: str | None) -> str:
        if kind == "d":
            rank = 0 if first is None else self.values[first].dim()
            return str(self.rng.randint(-max(rank, 1), max(rank, 1) - 1))
        return str(self.rng.randint(1, 4)) if kind == "n" else self.rng.choice(_NUMBERS)

    def _try(self, text: str, writes: bool) -> bool:
        name = f"v{len(self.statements)}"
        space: dict[str, Any] = {"torch": torch, "F": F, **DTYPES, **self.values}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if writes:
                    exec(text, space)
                    value = None
                else:
                    value = eval(text, space)
        except Exception:
            return False
        if not writes:
            if not isinstance(value, Tensor) or value.numel() > _LARGEST or value.is_quantized:
                return False
            if value.dtype not in DTYPES.values():
                return False
            self.values[name] = value
        read = set(VARIABLE.findall(text))
        self.fresh = [n for n in self.fresh if n not in read]
        self.statements.append(text if writes else f"{name} = {text}")
        if not writes:
            self.fresh.append(name)
        return True


def _kind(t: Tensor) -> str:
    if t.dtype is torch.bool:
        return "b"
    return "c" if t.is_complex() else "f" if t.is_floating_point() else "i"


def smaller(program: Program) -> Iterator[Program]:
    """Return simpler programs with one change each, the largest changes first."""
    if len(program.results) > 1:
        yield from (_needed(program, result) for result in program.results)
    count = len(program.statements)
    for size in (s for s in (8, 4, 2, 1) if s <= count):
        for start in range(0, count, size):
            statements = program.statements[:start] + program.statements[start + size :]
            yield _without_unknown(evolve(program, statements=statements))
    if len(program.results) > 1:
        for result in program.results:
            yield evolve(program, results=tuple(r for r in program.results if r != result))
    yield from _plainer(program)
    for k, declared in enumerate(program.inputs):
        for change in _simpler(declared):
            inputs = (*program.inputs[:k], change, *program.inputs[k + 1 :])
            yield evolve(program, inputs=inputs)
        if not re.search(
            rf"\b{declared.name}\b", " ".join((*program.statements, *program.results))
        ):
            yield evolve(program, inputs=(*program.inputs[:k], *program.inputs[k + 1 :]))


def _needed(program: Program, result: str) -> Program:
    """Return the statements on which a result depends, and those that use it."""
    names = {result}
    needed: list[str] = []
    for statement in reversed(program.statements):
        named = set(VARIABLE.findall(statement))
        if named & names:
            names |= named
            needed.insert(0, statement)
    return evolve(program, statements=tuple(needed), results=(result,))


def _plainer(program: Program) -> Iterator[Program]:
    if program.calls > 1:
        for call in range(program.calls):
            yield evolve(program, dims={k: (v[call],) for k, v in program.dims.items()})
    if program.dynamic:
        yield evolve(program, dynamic=False)
    if program.gradients == "second":
        yield evolve(program, gradients="first")
    if program.gradients == "first":
        inputs = tuple(evolve(i, grad=False) for i in program.inputs)
        yield evolve(program, gradients="none", inputs=inputs)
    if program.wrapper != "python":
        yield evolve(program, wrapper="python")
    for statements in with_plainer_parts(program.statements):
        yield evolve(program, statements=statements)
    for name in program.options:
        yield evolve(program, options={k: v for k, v in program.options.items() if k != name})
    for name, sizes in program.dims.items():
        for size in (2, 3):
            if any(s > size for s in sizes):
                less = tuple(min(s, size) for s in sizes)
                yield evolve(program, dims={**program.dims, name: less})


def _simpler(original: Input) -> Iterator[Input]:
    if original.layout != "c":
        yield evolve(original, layout="c")
    if original.special:
        yield evolve(original, special=False)
    if original.grad:
        yield evolve(original, grad=False)
    if original.parameter:
        yield evolve(original, parameter=False)
    for k, size in enumerate(original.sizes):
        if isinstance(size, int) and size > 2:
            yield evolve(original, sizes=(*original.sizes[:k], 2, *original.sizes[k + 1 :]))


def _without_unknown(program: Program) -> Program:
    """Drop statements and results whose operands have been removed."""
    known = {i.name for i in program.inputs} | set(program.scalars)
    statements: list[str] = []
    for statement in program.statements:
        variable = {assigned(statement)} - {""}
        if set(VARIABLE.findall(statement)) - variable <= known:
            statements.append(statement)
            known |= variable
    results = tuple(r for r in program.results if r in known)
    last = [name for name in map(assigned, statements) if name]
    fallback = last[-1:] or [i.name for i in program.inputs][:1]
    return evolve(program, statements=tuple(statements), results=results or tuple(fallback))
