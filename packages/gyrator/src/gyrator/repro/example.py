"""A graph as text with arguments drawn for it, and what PyTorch itself makes of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from gyrator.reports.accuracy import is_as_near, is_close, worst_place
from gyrator_ir.diagnostics import GyratorError
from gyrator_lowering.fx_text import parse
from gyrator_lowering.fx_text.print import attribute

_HINT = re.compile(r"(?m)(?<=^  fact )(\w+) ~ (\d+)$")
_INTEGERS_BELOW = 3
"""Integers are drawn from [0, 3): most dimensions can be indexed by them."""
_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)
_COMPLEX = (torch.complex64, torch.complex32)


@frozen(eq=False)
class Example:
    """An ATen graph and arguments of its sizes, strides and element types."""

    gm: GraphModule
    inputs: tuple[Any, ...]
    sizes: Mapping[str, int]
    """What symbols of the graph are, by name."""

    @classmethod
    def read(cls, text: str, seed: int = 0) -> "Example":
        """Read a graph's text and draw its arguments and constants.

        Integers are small, so that they may be indices; zeros where PyTorch refuses the graph with
        others. Sizes are the graph's hints.

        Raises:
            ParseError: as `gyrator_lowering.fx_text.parse`.
        """
        gm = parse(text)
        sizes = {name: int(value) for name, value in _HINT.findall(text)}
        drawn = cls._drawn(gm, sizes, seed, _INTEGERS_BELOW)
        try:
            drawn.eager()
        except Exception:
            return cls._drawn(gm, sizes, seed, 1)
        return drawn

    @classmethod
    def _drawn(cls, gm: GraphModule, sizes: Mapping[str, int], seed: int, below: int) -> "Example":
        generator = torch.Generator().manual_seed(seed)
        held = deepcopy(gm)
        for node in held.graph.find_nodes(op="get_attr"):
            value = attribute(held, node.target)
            if isinstance(value, Tensor):
                setattr(held, node.target, like(value, generator, below))
        given = (n.meta.get("val") for n in gm.graph.find_nodes(op="placeholder"))
        return cls(held, tuple(like(value, generator, below) for value in given), sizes)

    @classmethod
    def of_sizes(cls, text: str, seed: int = 0) -> "Iterator[Example]":
        """Yield the graph with arguments of the sizes that it was traced with, and of others, where
        its sizes are symbols and PyTorch takes those others.

        Raises:
            ParseError: as `gyrator_lowering.fx_text.parse`.
        """
        yield cls.read(text, seed)
        for by in (1, -1):
            other = _HINT.sub(partial(_moved, by=by), text)
            if other == text:
                return
            try:
                example = cls.read(other, seed)
                example.eager()
            except (GyratorError, ArithmeticError, RuntimeError, ValueError, IndexError):
                continue
            yield example
            return

    @property
    def random(self) -> bool:
        """Whether the graph draws numbers, which no two compilers draw alike."""
        return any(
            torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            for node in self.gm.graph.nodes
        )

    def arguments(self) -> list[Any]:
        """Return the arguments anew: a graph may write to them."""
        return [clone(value) for value in self.inputs]

    def eager(self) -> list[Any]:
        """Return the results of PyTorch's own kernels, and after them the arguments as the graph
        leaves them."""
        return run_eagerly(self.gm, self.arguments())

    def exact(self) -> list[Any] | None:
        """Return the same computed in float64; None where an op does not take it."""
        given = [_widened(clone(v)) for v in self.inputs]
        try:
            with torch.no_grad():
                return [*_Exact(self.gm).run(*given), *given]
        except Exception:  # ops may refuse the type, or give another one
            return None


def _moved(fact: re.Match[str], by: int) -> str:
    return f"{fact[1]} ~ {int(fact[2]) + by}"


def run_eagerly(gm: GraphModule, given: Sequence[Any]) -> list[Any]:
    """Return a graph's results, and after them the arguments as it leaves them."""
    with torch.no_grad():
        return [*Interpreter(gm).run(*given), *given]


def difference(ours: list[Any], expected: list[Any], example: Example) -> str:
    """Say where results are not what eager mode and float64 allow; nothing where they are.

    The results of a graph that draws random numbers are compared by their forms alone.
    """
    if len(ours) != len(expected):
        return f"{len(ours)} results, eager mode has {len(expected)}"
    exact: list[Any] | None = None
    for k, (a, b) in enumerate(zip(ours, expected, strict=True)):
        if not isinstance(b, Tensor):
            if a != b:
                return f"result {k} is {a!r}, in eager mode {b!r}"
            continue
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            form = f"{a.dtype} {list(a.shape)}, in eager mode {b.dtype} {list(b.shape)}"
            return f"result {k} is {form}"
        if b.is_floating_point() and b.itemsize == 1:
            a, b = a.float(), b.float()
        if example.random or is_close(a, b):
            continue
        if exact is None:
            exact = example.exact() or []
        if not exact or not is_as_near(a, b, exact[k]):
            return f"result {k}: {worst_place(a, b)}"
    return ""


def like(value: Any, generator: torch.Generator, below: int) -> Any:
    """Return a tensor of this form with random elements, or the hint of a size."""
    if isinstance(value, torch.SymInt | int):
        return hint(value)
    if not isinstance(value, Tensor):
        return value
    shape, strides = [[hint(n) for n in part] for part in (value.shape, value.stride())]
    span = 1 + sum((n - 1) * k for n, k in zip(shape, strides, strict=True))
    storage = _drawn(span if 0 not in shape else 0, value.dtype, generator, below)
    return storage.to(value.device).as_strided(shape, strides)


def hint(size: Any) -> int:
    """Return what a symbolic size is in the example that a graph was traced with."""
    if isinstance(size, int):
        return size
    known = size.node.hint
    return _INTEGERS_BELOW - 1 if known is None else int(known)


def clone(value: Any) -> Any:
    """Return a copy of a tensor with its strides; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    whole = value.untyped_storage()
    bytes_ = torch.empty(0, dtype=torch.uint8, device=value.device).set_(whole).clone()
    storage = bytes_.view(value.dtype)
    return storage.as_strided(value.shape, value.stride(), value.storage_offset())


def _drawn(count: int, dtype: torch.dtype, generator: torch.Generator, below: int) -> Tensor:
    if dtype.is_complex or dtype.is_floating_point:
        kind = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(count, generator=generator, dtype=kind).to(dtype)
    most = 2 if dtype is torch.bool else below
    return torch.randint(0, most, (count,), generator=generator).to(dtype)


# Float64 ----------------------------------------------------------------------------------------


def _wide(dtype: Any) -> Any:
    if dtype in _COMPLEX:
        return torch.complex128
    return torch.float64 if dtype in _ROUNDED else dtype


def _widened(value: Any) -> Any:
    return value.to(_wide(value.dtype)) if isinstance(value, Tensor) else value


class _Exact(Interpreter):
    """Computes in float64 what a graph computes in narrower types."""

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return (
            tuple(_wide(a) if isinstance(a, torch.dtype) else a for a in args),
            {k: _wide(v) if isinstance(v, torch.dtype) else v for k, v in kwargs.items()},
        )

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _widened(super().get_attr(target, args, kwargs))
