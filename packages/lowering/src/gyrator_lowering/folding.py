"""How constants are computed of what is known of a graph's inputs, as data.

A folding is stored with a program and run again in the next process: constants are never stored.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import asdict, frozen
from torch.fx import Node

FROZEN = "frozen"
"""The key in a placeholder's `meta` that says that its tensor is known."""
ZEROS = "zeros"
"""The key in a known placeholder's `meta` that says that its integers are all zero."""
ASSUMED = "assumed"
"""The key in such a placeholder's `meta` that says that the graph is right for zeros alone."""
PACKED = "packed"
"""The key in `meta` of what holds a tensor in a library's own layout: only calls can read it."""
_NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device)


@frozen
class Step:
    """A call of an op.

    Arguments are JSON: `{"input": place}` is a tensor that is given, `{"step": number}` the result
    of another step, `{"dtype": "float32"}` and its kin are constants of torch.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@frozen
class Folding:
    """How constants are computed from the inputs of a graph that are known."""

    given: tuple[int, ...]
    """Places of inputs that the graph is no longer called with, or that constants come from."""
    kept: tuple[int, ...]
    """Places of inputs that the graph is called with, before the constants."""
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    """The steps whose results are the constants."""
    zeros: tuple[int, ...] = ()
    """Those of `given` whose integers must all be zero for the graph to be right."""

    def as_json(self) -> dict[str, Any]:
        """Return the folding as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Folding":
        """Read what `as_json` gave."""
        steps = tuple(Step(s["op"], tuple(s["args"]), s["kwargs"]) for s in data["steps"])
        given, kept, results, zeros = (
            tuple(data[name]) for name in ("given", "kept", "results", "zeros")
        )
        return cls(given, kept, steps, results, zeros)

    def constants(self, given: Sequence[torch.Tensor]) -> list[Any]:
        """Compute the constants of the tensors at the places `given`."""
        inputs = dict(zip(self.given, given, strict=True))
        last = {k: n for n, step in enumerate(self.steps) for k in _steps([step.args, step.kwargs])}
        values: dict[int, Any] = {}
        for n, step in enumerate(self.steps):
            args = _decoded(step.args, inputs, values)
            values[n] = _op(step.op)(*args, **_decoded(step.kwargs, inputs, values))
            for k in [k for k in values if last.get(k, -1) <= n and k not in self.results]:
                del values[k]
        return [values[k] for k in self.results]


def encoded(value: Any, named: Callable[[Node], dict[str, int]]) -> Any:
    """Return the arguments of a step; `named` tells what stands for a node.

    TypeError for values that a step cannot have.
    """
    match value:
        case Node():
            return named(value)
        case tuple() | list():
            return [encoded(v, named) for v in value]
        case dict():
            return {k: encoded(v, named) for k, v in value.items()}
        case None | bool() | int() | float() | str():
            return value
    if isinstance(value, _NAMED):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    raise TypeError(f"{type(value).__name__} is no argument of a step")


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
    """Return the numbers of the steps that arguments name."""
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
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    call: Callable[..., Any] = found
    return call
