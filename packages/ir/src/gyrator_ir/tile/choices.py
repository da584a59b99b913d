"""Choices of tiled kernels: values for them, and kernels without them."""

from collections.abc import Iterable, Sequence

from attrs import evolve

from gyrator_ir.source import Configuration
from gyrator_ir.tile.nodes import (
    Choice,
    Repeat,
    Tiled,
    TiledGroup,
    TiledKernel,
    TileProgram,
)

_FIRST = Configuration(())


def settled(value: int | str) -> int:
    """Return a number of a kernel whose choices are bound. TypeError for the name of a choice."""
    if isinstance(value, str):
        raise TypeError(f"choice {value!r} has no value: `bind-choices` gives it one")
    return value


def bound(tiled: TiledKernel, configuration: Configuration | None = None) -> TiledKernel:
    """Return the kernel with a value for each choice, and no choices left.

    Args:
        configuration: the values; those of the first candidate if None. What it leaves out is the
            first value of its choice.
    """
    if not tiled.choices:
        return tiled
    if configuration is None:
        configuration = next(iter(tiled.candidates), _FIRST)
    values = {c.name: c.values[0] for c in tiled.choices} | dict(configuration.values)

    def value_of(given: int | str) -> int:
        return values[given] if isinstance(given, str) else given

    return evolve(
        tiled,
        loops=tuple(evolve(x, step=value_of(x.step)) for x in tiled.loops),
        reductions=tuple(
            evolve(r, unroll=value_of(r.unroll), block=value_of(r.block)) for r in tiled.reductions
        ),
        pipelined=tuple(evolve(p, ahead=value_of(p.ahead)) for p in tiled.pipelined),
        choices=(),
        candidates=(),
    )


def name_of(tiled: Tiled) -> str:
    """Return the name of what is launched."""
    return tiled.name if isinstance(tiled, TiledGroup | Repeat) else tiled.kernel.name


def candidates_of(tiled: Tiled) -> tuple[Configuration, ...]:
    """Return the candidates of what is launched; kernels of a group share theirs."""
    if isinstance(tiled, Repeat):
        return ()
    if isinstance(tiled, TiledGroup):
        found = {k.candidates for k in tiled.kernels}
        return found.pop() if len(found) == 1 else ()
    return tiled.candidates


def with_candidates(tiled: Tiled, candidates: Iterable[Configuration]) -> Tiled:
    """Return what is launched with these candidates alone."""
    if isinstance(tiled, Repeat):
        return tiled
    if isinstance(tiled, TiledGroup):
        kernels = tuple(evolve(k, candidates=tuple(candidates)) for k in tiled.kernels)
        return evolve(tiled, kernels=kernels)
    return evolve(tiled, candidates=tuple(candidates))


def only(program: TileProgram, kernels: Sequence[Tiled]) -> TileProgram:
    """Return the program of some of its kernels, and the repeats of those."""
    names = set(map(name_of, kernels))
    kept = {name_of(k): k for k in kernels}
    found = (
        k if isinstance(k, Repeat) else kept[name_of(k)]
        for k in program.kernels
        if (k.kernel if isinstance(k, Repeat) else name_of(k)) in names
    )
    return evolve(program, kernels=tuple(found))


def choices_of(candidates: Sequence[Configuration]) -> tuple[Choice, ...]:
    """Return choices of the values that candidates, all over the same names, give them."""
    values: dict[str, set[int]] = {}
    for candidate in candidates:
        for name, value in candidate.values:
            values.setdefault(name, set()).add(value)
    return tuple(Choice(name, tuple(sorted(found))) for name, found in values.items())
