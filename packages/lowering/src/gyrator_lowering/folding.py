"""Constant folding as data: how constants are computed from the known inputs of a graph.

The folding is stored with a program and runs again in the next process; the constants themselves
are never stored.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from attrs import asdict, evolve
from torch.fx import Node

from gyrator_ir.define import frozen

FROZEN = "frozen"
"""The key in a placeholder's `meta` that marks its tensor as known."""
ZEROS = "zeros"
"""The key in a known placeholder's `meta` that marks its integers as all zero."""
ASSUMED = "assumed"
"""The key in such a placeholder's `meta` that says that the graph is valid only for zeros."""
PACKED = "packed"
"""The key in the `meta` of a node whose tensor has a library's own layout: only calls can read
it."""
Kind: TypeAlias = Literal["step", "input"]
"""What a reference in the arguments of a step is to."""
_NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device)


@frozen
class Step:
    """One call of an op.

    Arguments are JSON: `{"input": position}` is an input tensor, `{"step": number}` the result of
    another step, and `{"dtype": "float32"}` and the like are constants of torch.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def inputs(self) -> list[int]:
        """Return the positions of the inputs that it reads."""
        return _references([self], "input")

    def with_inputs(self, positions: Mapping[int, int]) -> "Step":
        """Return the step with other positions of its inputs."""
        return _renumbered(self, "input", positions)


@frozen
class Folding:
    """How constants are computed from the known inputs of a graph."""

    sources: tuple[int, ...]
    """Positions of the known inputs that the graph does not take, or that constants are computed
    from."""
    remaining: tuple[int, ...]
    """Positions of the inputs that the graph takes, before the constants."""
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    """The steps whose results are the constants."""
    zeros: tuple[int, ...] = ()
    """The subset of `sources` whose integers must all be zero for the graph to be valid."""
    packed: int = 0
    """How many of the results, the last ones, are in a library's own layout."""

    def as_json(self) -> dict[str, Any]:
        """Return the folding as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Folding":
        """Read the result of `as_json`."""
        steps = tuple(Step(s["op"], tuple(s["args"]), s["kwargs"]) for s in data["steps"])
        sources, remaining, results, zeros = (
            tuple(data[name]) for name in ("sources", "remaining", "results", "zeros")
        )
        return cls(sources, remaining, steps, results, zeros, data["packed"])

    def split_packing(self) -> tuple["Folding", tuple[Step, ...]]:
        """Return the folding without its packed constants, and the steps that pack them.

        What these read of other steps follows the constants among the results of the folding, and
        `{"step": n}` in their arguments is result `n`.
        """
        plain = len(self.results) - self.packed
        packing = [self.steps[k] for k in self.results[plain:]]
        results = dict.fromkeys([*self.results[:plain], *_references(packing, "step")])
        numbers = {old: new for new, old in enumerate(self._needed(results))}
        steps = tuple(_renumbered(self.steps[old], "step", numbers) for old in numbers)
        read = set(_references(steps, "input"))
        folding = evolve(
            self,
            sources=tuple(k for k in self.sources if k in read or k in self.zeros),
            steps=steps,
            results=tuple(numbers[k] for k in results),
            packed=0,
        )
        positions = {step: position for position, step in enumerate(results)}
        return folding, tuple(_renumbered(step, "step", positions) for step in packing)

    def _needed(self, results: Iterable[int]) -> list[int]:
        """Return the steps that results are computed by, in order."""
        needed: set[int] = set()
        pending = [*results]
        while pending:
            step = pending.pop()
            if step not in needed:
                needed.add(step)
                pending += _references([self.steps[step]], "step")
        return sorted(needed)

    def constants(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Compute the constants.

        Args:
            inputs: the tensors at the positions `sources`.
        """
        tensors = dict(zip(self.sources, inputs, strict=True))
        last = {k: n for n, step in enumerate(self.steps) for k in _references([step], "step")}
        values: dict[int, Any] = {}
        for n, step in enumerate(self.steps):
            args = _decoded(step.args, tensors, values)
            values[n] = _op(step.op)(*args, **_decoded(step.kwargs, tensors, values))
            for k in [k for k in values if last.get(k, -1) <= n and k not in self.results]:
                del values[k]
        return [values[k] for k in self.results]


def encoded(value: Any, reference: Callable[[Node], dict[str, int]]) -> Any:
    """Return the arguments of a step as JSON.

    Args:
        value: the arguments.
        reference: returns the JSON that stands for the value of a node.

    Raises:
        TypeError: for values that a step cannot have.
    """
    match value:
        case Node():
            return reference(value)
        case tuple() | list():
            return [encoded(v, reference) for v in value]
        case dict():
            return {k: encoded(v, reference) for k, v in value.items()}
        case None | bool() | int() | float() | str():
            return value
    if isinstance(value, _NAMED):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    raise TypeError(f"{type(value).__name__} cannot be an argument of a step")


def _decoded(value: Any, inputs: dict[int, Any], steps: dict[int, Any]) -> Any:
    match value:
        case {"input": int(place)}:
            return inputs[place]
        case {"step": int(number)}:
            return steps[number]
        case {"device": str(name)}:
            return torch.device(name)
        case {"dtype": str(name)} | {"layout": str(name)} | {"memory_format": str(name)}:
            return getattr(torch, name)
        case tuple() | list():
            return [_decoded(v, inputs, steps) for v in value]
        case dict():
            return {k: _decoded(v, inputs, steps) for k, v in value.items()}
    return value


def _references(steps: Iterable[Step], kind: Kind) -> list[int]:
    """Return the numbers of the steps or inputs that the arguments of steps refer to."""
    return [n for s in steps for n in _numbers([*s.args, *s.kwargs.values()], kind)]


def _numbers(value: Any, kind: Kind) -> list[int]:
    match value:
        case {"step": int(number)} | {"input": int(number)}:
            return [number] if kind in value else []
        case tuple() | list():
            return [n for v in value for n in _numbers(v, kind)]
        case dict():
            return [n for v in value.values() for n in _numbers(v, kind)]
    return []


def _renumbered(step: Step, kind: Kind, numbers: Mapping[int, int]) -> Step:
    """Return a step that refers to steps or inputs by other numbers."""

    def renumber(value: Any) -> Any:
        match value:
            case {"step": int(number)} | {"input": int(number)}:
                return {kind: numbers[number]} if kind in value else value
            case tuple() | list():
                return [renumber(v) for v in value]
            case dict():
                return {k: renumber(v) for k, v in value.items()}
        return value

    return Step(step.op, tuple(map(renumber, step.args)), renumber(step.kwargs))


def _op(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    call: Callable[..., Any] = operator.attrgetter(name)(torch.ops)
    return call
