"""Constant folding as data: how constants are computed from the known inputs of a graph.

The folding is stored with a program and runs again in the next process; the constants themselves
are never stored.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import asdict, frozen
from torch.fx import Node

FROZEN = "frozen"
"""The key in a placeholder's `meta` that marks its tensor as known."""
ZEROS = "zeros"
"""The key in a known placeholder's `meta` that marks its integers as all zero."""
ASSUMED = "assumed"
"""The key in such a placeholder's `meta` that says that the graph is valid only for zeros."""
PACKED = "packed"
"""The key in the `meta` of a node whose tensor has a library's own layout: only calls can read
it."""
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
        return cls(sources, remaining, steps, results, zeros)

    def constants(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Compute the constants.

        Args:
            inputs: the tensors at the positions `sources`.
        """
        tensors = dict(zip(self.sources, inputs, strict=True))
        last = {k: n for n, step in enumerate(self.steps) for k in _steps([step.args, step.kwargs])}
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


def _steps(value: Any) -> list[int]:
    """Return the numbers of the steps that arguments refer to."""
    match value:
        case {"step": int(number)}:
            return [number]
        case tuple() | list():
            return [n for v in value for n in _steps(v)]
        case dict():
            return [n for v in value.values() for n in _steps(v)]
    return []


def _op(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    op: Any = torch.ops
    for part in name.split("."):
        op = getattr(op, part)
    call: Callable[..., Any] = op
    return call
