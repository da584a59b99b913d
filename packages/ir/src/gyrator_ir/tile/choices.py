"""Choices of tiled kernels: binding them to values, and their candidates."""

from collections.abc import Iterable, Sequence

from attrs import evolve

from gyrator_ir.source import Configuration
from gyrator_ir.tile.nodes import Choice, Repeat, Tiled, TiledGroup, TiledKernel, TileProgram

_FIRST = Configuration(())


def settled(value: int | str) -> int:
    """Return a value of a kernel whose choices are bound.

    Raises:
        TypeError: if the value is still the name of a choice.
    """
    if isinstance(value, str):
        raise TypeError(f"choice {value!r} is not bound; run the pass `bind-choices` first")
    return value


def bound(tiled: TiledKernel, configuration: Configuration | None = None) -> TiledKernel:
    """Return the kernel with each choice replaced by a value.

    Args:
        tiled: a kernel.
        configuration: the values, or None for those of the first candidate. A choice that it does
            not mention gets its first value.
    """
    if not tiled.choices:
        return tiled
    if configuration is None:
        configuration = next(iter(tiled.candidates), _FIRST)
    values = {c.name: c.values[0] for c in tiled.choices} | dict(configuration.values)

    def value_of(setting: int | str) -> int:
        return values[setting] if isinstance(setting, str) else setting

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
    """Return the name of a kernel, template, group or repeat."""
    return tiled.name if isinstance(tiled, TiledGroup | Repeat) else tiled.kernel.name


def candidates_of(tiled: Tiled) -> tuple[Configuration, ...]:
    """Return the candidates of a launch; for a group, the candidates that its kernels share."""
    if isinstance(tiled, Repeat):
        return ()
    if isinstance(tiled, TiledGroup):
        candidates = {k.candidates for k in tiled.kernels}
        return candidates.pop() if len(candidates) == 1 else ()
    return tiled.candidates


def with_candidates(tiled: Tiled, candidates: Iterable[Configuration]) -> Tiled:
    """Return the kernel, template or group with its candidates replaced."""
    if isinstance(tiled, Repeat):
        return tiled
    if isinstance(tiled, TiledGroup):
        kernels = tuple(evolve(k, candidates=tuple(candidates)) for k in tiled.kernels)
        return evolve(tiled, kernels=kernels)
    return evolve(tiled, candidates=tuple(candidates))


def only(program: TileProgram, kernels: Sequence[Tiled]) -> TileProgram:
    """Return the program restricted to `kernels`, which replace those of the same names, and their
    repeats."""
    by_name = {name_of(k): k for k in kernels}
    selected = (
        k if isinstance(k, Repeat) else by_name[name_of(k)]
        for k in program.kernels
        if (k.kernel if isinstance(k, Repeat) else name_of(k)) in by_name
    )
    return evolve(program, kernels=tuple(selected))


def choices_of(candidates: Sequence[Configuration]) -> tuple[Choice, ...]:
    """Return choices with the values that occur in candidates, which all have the same names."""
    values: dict[str, set[int]] = {}
    for candidate in candidates:
        for name, value in candidate.values:
            values.setdefault(name, set()).add(value)
    return tuple(Choice(name, tuple(sorted(numbers))) for name, numbers in values.items())
