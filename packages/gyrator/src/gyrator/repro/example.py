"""A graph from its text, with random arguments and PyTorch's results for them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from gyrator.reports.accuracy import describe_difference, is_as_near, is_close
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_lowering.fx_text import parse

_HINT = re.compile(r"(?m)(?<=^  fact )(\w+) ~ (\d+)$")
_INTEGERS_BELOW = 3
"""Random integers are in [0, 3), so that they are valid indices for most dimensions."""
_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)
_COMPLEX = (torch.complex64, torch.complex32)


@frozen(eq=False)
class Example:
    """An ATen graph and arguments of its sizes, strides and dtypes."""

    gm: GraphModule
    inputs: tuple[Any, ...]
    sizes: Mapping[str, int]
    """The values of the graph's size symbols, by name."""

    @classmethod
    def read(cls, text: str, seed: int = 0) -> "Example":
        """Read a graph's text and generate its arguments and constants.

        Integers are small, so that they may be indices, or zero if PyTorch rejects other values.
        Sizes are the graph's hints.

        Raises:
            ParseError: like `gyrator_lowering.fx_text.parse`.
        """
        gm = parse(text)
        sizes = {name: int(value) for name, value in _HINT.findall(text)}
        example = cls._random(gm, sizes, seed, _INTEGERS_BELOW)
        try:
            example.eager()
        except Exception:
            return cls._random(gm, sizes, seed, 1)
        return example

    @classmethod
    def _random(cls, gm: GraphModule, sizes: Mapping[str, int], seed: int, below: int) -> "Example":
        generator = torch.Generator().manual_seed(seed)
        copy = deepcopy(gm)
        for node in copy.graph.find_nodes(op="get_attr"):
            value = attrgetter(node.target)(copy)
            if isinstance(value, Tensor):
                setattr(copy, node.target, like(value, generator, below))
        values = (n.meta.get("val") for n in gm.graph.find_nodes(op="placeholder"))
        return cls(copy, tuple(like(value, generator, below) for value in values), sizes)

    @classmethod
    def of_sizes(cls, text: str, seed: int = 0) -> "Iterator[Example]":
        """Yield the graph with arguments of the sizes that it was traced with, and, if its sizes
        are symbolic, of other sizes that PyTorch accepts.

        Raises:
            ParseError: like `gyrator_lowering.fx_text.parse`.
        """
        yield cls.read(text, seed)
        for offset in (1, -1):
            other = _HINT.sub(partial(_with_offset, offset=offset), text)
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
        """Whether the graph generates random numbers, which differ between compilers."""
        return any(
            torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            for node in self.gm.graph.nodes
        )

    def arguments(self) -> list[Any]:
        """Return fresh copies of the arguments, which the graph may write to."""
        return [clone(value) for value in self.inputs]

    def eager(self) -> list[Any]:
        """Return the results of PyTorch's kernels, followed by the arguments after the run."""
        return run_eagerly(self.gm, self.arguments())

    def exact(self) -> list[Any] | None:
        """Return the results computed in float64; None if an op does not support that."""
        arguments = [_widened(clone(v)) for v in self.inputs]
        try:
            with torch.no_grad():
                return [*_Exact(self.gm).run(*arguments), *arguments]
        except Exception:  # ops may reject the dtype, or return another one
            return None


def _with_offset(fact: re.Match[str], offset: int) -> str:
    return f"{fact[1]} ~ {int(fact[2]) + offset}"


def run_eagerly(gm: GraphModule, arguments: Sequence[Any]) -> list[Any]:
    """Return a graph's results, followed by its arguments after the run."""
    with torch.no_grad():
        return [*Interpreter(gm).run(*arguments), *arguments]


def difference(ours: list[Any], expected: list[Any], example: Example) -> str:
    """Describe where results exceed the tolerance of eager mode and float64; empty if they do not.

    For a graph that generates random numbers, only dtypes and shapes are compared.
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
            return f"result {k}: {describe_difference(a, b)}"
    return ""


def like(value: Any, generator: torch.Generator, below: int) -> Any:
    """Return a tensor of this layout with random elements, or the hint of a size."""
    if isinstance(value, torch.SymInt | int):
        return hint(value)
    if not isinstance(value, Tensor):
        return value
    shape, strides = [[hint(n) for n in part] for part in (value.shape, value.stride())]
    span = 1 + sum((n - 1) * k for n, k in zip(shape, strides, strict=True))
    storage = _random(span if 0 not in shape else 0, value.dtype, generator, below)
    return storage.to(value.device).as_strided(shape, strides)


def hint(size: Any) -> int:
    """Return the value of a symbolic size in the example that the graph was traced with."""
    if isinstance(size, int):
        return size
    value = size.node.hint
    return _INTEGERS_BELOW - 1 if value is None else int(value)


def clone(value: Any) -> Any:
    """Return a copy of a tensor with the same strides; return other values unchanged."""
    if not isinstance(value, Tensor):
        return value
    original = value.untyped_storage()
    bytes_ = torch.empty(0, dtype=torch.uint8, device=value.device).set_(original).clone()
    storage = bytes_.view(value.dtype)
    return storage.as_strided(value.shape, value.stride(), value.storage_offset())


def _random(count: int, dtype: torch.dtype, generator: torch.Generator, below: int) -> Tensor:
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
    """Computes a graph in float64 instead of narrower dtypes."""

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return (
            tuple(_wide(a) if isinstance(a, torch.dtype) else a for a in args),
            {k: _wide(v) if isinstance(v, torch.dtype) else v for k, v in kwargs.items()},
        )

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _widened(super().get_attr(target, args, kwargs))
