"""Conversion of a call's arguments to a program's inputs, and of its outputs to results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import field
from torch.utils import _pytree as pytree

from gyrator_ir.define import define, frozen
from gyrator_runtime.package.errors import wrong_call, wrong_input
from gyrator_runtime.package.manifest import Dim, Entry, Input

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@frozen(eq=False)
class Arguments:
    """The argument structure of an entry point."""

    entry: Entry
    spec: Any
    """The `TreeSpec` of `(args, kwargs)`."""
    flat: bool
    """Whether every argument is positional and a single leaf."""

    @classmethod
    def of(cls, entry: Entry) -> Arguments:
        """Return that of an entry point."""
        leaves = entry.positional == len(entry.inputs) and not entry.keywords
        return cls(entry, pytree.treespec_loads(entry.in_spec), leaves)

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the leaves of the arguments. PackageError (GY-PACKAGE-006) if their number or
        structure differs."""
        if self.flat and not kwargs and len(args) == len(self.entry.inputs):
            return list(args)
        ordered = self._ordered(args, kwargs)
        leaves, spec = pytree.tree_flatten(ordered)
        if spec != self.spec:
            leaves, spec = pytree.tree_flatten(_in_order(ordered, self.spec))
        if spec != self.spec:
            names = (*self.entry.parameters[: self.entry.positional], *self.entry.keywords)
            raise self._wrong(_difference(names, _children(spec), _children(self.spec)))
        return leaves

    def _ordered(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, positional or by name as in the compile."""
        entry = self.entry
        names = (*entry.parameters[: entry.positional], *entry.keywords)
        if len(args) > len(names):
            raise self._wrong(f"{len(args)} arguments were passed")
        by_name = dict(zip(names, args, strict=False)) if len(names) >= len(args) else {}
        twice = by_name.keys() & kwargs.keys()
        by_name |= kwargs
        if twice or by_name.keys() != set(names):
            missing = ", ".join(sorted(set(names) - by_name.keys()))
            strange = ", ".join(sorted(by_name.keys() - set(names)))
            problems = (("given twice", ", ".join(sorted(twice))), ("missing", missing))
            messages = [
                f"{problem}: {arguments}"
                for problem, arguments in (*problems, ("unknown", strange))
                if arguments
            ]
            raise self._wrong("; ".join(messages))
        placed = tuple(by_name[n] for n in names[: entry.positional])
        return placed, {n: by_name[n] for n in entry.keywords}

    def _wrong(self, why: str) -> Exception:
        expected = ", ".join(f"{i.name}: {i}" for i in self.entry.inputs)
        return wrong_call(self.entry.name, why, f"({expected})")


def _in_order(value: Any, spec: Any) -> Any:
    """Return a value whose dicts have their keys in the order of a structure, like the modules of
    `torch.export`."""
    if type(value) is not spec.type:
        return value
    if spec.type is dict and value.keys() == set(spec.context):
        each = zip(spec.context, spec.children(), strict=True)
        return {key: _in_order(value[key], child) for key, child in each}
    if spec.type in (tuple, list) and len(value) == spec.num_children:
        return spec.type(map(_in_order, value, spec.children()))
    return value


def _children(spec: Any) -> list[Any]:
    """Return the structure of each argument, of that of `(args, kwargs)`."""
    return [argument for part in spec.children() for argument in part.children()]


def _difference(names: Sequence[str], passed: Sequence[Any], expected: Sequence[Any]) -> str:
    """Return how the first of some values that differs in structure differs."""
    both = zip(names, passed, expected, strict=True)
    name, a, b = next((name, a, b) for name, a, b in both if a != b)
    if (a.type, a.context, a.num_children) != (b.type, b.context, b.num_children):
        return f"the argument {name} is {_kind(a)}, not {_kind(b)}"
    return _difference([f"{name}[{key!r}]" for key in _keys(a)], a.children(), b.children())


def _keys(spec: Any) -> Sequence[Any]:
    """Return the keys, or positions, of the parts of a structure."""
    return spec.context if spec.type in (dict, OrderedDict) else range(spec.num_children)


def _kind(spec: Any) -> str:
    """Return the outermost level of a structure as text."""
    if spec.is_leaf():
        return "a single value"
    keys = _keys(spec)
    parts = keys.stop if isinstance(keys, range) else ", ".join(map(repr, keys))
    return f"{spec.type.__name__}[{parts}]"


Check = Callable[[Any, dict[str, int]], None]
"""`check(leaf, sizes)`: raises PackageError. `sizes` has the values of symbols bound so far."""


def checks_of(entry: Entry) -> list[Check]:
    """Return the check of each leaf of the arguments (GY-PACKAGE-007)."""
    ranges = {s.name: (s.least, s.most) for s in entry.symbols}
    makers = {"tensor": _tensor_check, "integer": _integer_check, "constant": _constant_check}
    return [makers[i.kind](entry.name, i, ranges) for i in entry.inputs]


_Ranges = Mapping[str, tuple[int, int | None]]


def _tensor_check(entry: str, spec: Input, ranges: _Ranges) -> Check:
    dtype, device = getattr(torch, spec.dtype), torch.device(spec.device)
    rank = len(spec.shape)
    static = None
    if all(type(n) is int for n in spec.shape):
        static = torch.Size(spec.shape)  # type: ignore[arg-type]  # which mypy cannot see

    def check(leaf: Any, sizes: dict[str, int]) -> None:
        if type(leaf) not in _PLAIN or leaf.layout is not torch.strided:
            kind = f"{leaf.layout} tensor" if type(leaf) in _PLAIN else type(leaf).__name__
            raise wrong_input(entry, spec.name, f"is a {kind}", str(spec))
        if leaf.dtype is not dtype or leaf.device != device:
            raise wrong_input(entry, spec.name, f"is {leaf.dtype} on {leaf.device}", str(spec))
        if static is not None and leaf.shape == static:
            return
        if leaf.dim() != rank:
            raise wrong_input(entry, spec.name, f"has sizes {list(leaf.shape)}", str(spec))
        for n, (size, dim) in enumerate(zip(leaf.shape, spec.shape, strict=True)):
            why = _mismatch(size, dim, sizes, ranges)
            if why:
                why = f"has sizes {list(leaf.shape)}: size {n} is {why}"
                raise wrong_input(entry, spec.name, why, str(spec))

    return check


def _integer_check(entry: str, spec: Input, ranges: _Ranges) -> Check:
    def check(leaf: Any, sizes: dict[str, int]) -> None:
        if type(leaf) is not int:
            raise wrong_input(entry, spec.name, f"is a {type(leaf).__name__}", str(spec))
        why = _mismatch(leaf, spec.shape[0], sizes, ranges)
        if why:
            raise wrong_input(entry, spec.name, f"is {why}", str(spec))

    return check


def _constant_check(entry: str, spec: Input, ranges: _Ranges) -> Check:
    def check(leaf: Any, sizes: dict[str, int]) -> None:
        if type(leaf) is not type(spec.value) or leaf != spec.value:
            raise wrong_input(entry, spec.name, f"is {leaf!r}", str(spec))

    return check


def _mismatch(size: int, dim: Dim | int, sizes: dict[str, int], ranges: _Ranges) -> str:
    """Return why a size does not match, or an empty string, and bind its symbol."""
    if type(dim) is int:
        return "" if size == dim else f"{size}, not {dim}"
    assert isinstance(dim, Dim)
    number, rest = divmod(size - dim.offset, dim.factor)
    if rest:
        return f"{size}, which is no {dim}"
    earlier = sizes.get(dim.symbol)
    if earlier is not None:
        message = f"{size}, not {dim} with {dim.symbol} = {earlier}, as another argument has it"
        return "" if earlier == number else message
    least, most = ranges[dim.symbol]
    if number < least or (most is not None and number > most):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        return f"{size}, and {dim.symbol} must be {bounds}"
    sizes[dim.symbol] = number
    return ""


@define(eq=False)
class Results:
    """The result structure of an entry point."""

    spec: Any
    count: int
    inputs: Sequence[tuple[int, int]]
    """(index of the result, index of the program's input) for inputs that are returned."""
    form: str = field(init=False)
    """`leaf`, `tuple` or `tree`."""

    def __attrs_post_init__(self) -> None:
        flat = self.spec.type is tuple and self.spec.num_children == self.spec.num_leaves
        plain = flat and pytree.tree_structure(tuple(range(self.count))) == self.spec
        self.form = "leaf" if self.spec.is_leaf() else "tuple" if plain else "tree"

    @classmethod
    def of(cls, entry: Entry) -> Results:
        """Return that of an entry point."""
        inputs = [(k, o.place) for k, o in enumerate(entry.outputs) if o.kind == "input"]
        return cls(pytree.treespec_loads(entry.out_spec), len(entry.outputs), inputs)

    def of_values(self, values: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Return the results of the call. `arguments` are the program's inputs."""
        if self.inputs or len(values) != self.count:
            replaced = list(values[: self.count])
            for k, place in self.inputs:
                replaced[k] = arguments[place]
            values = replaced
        if self.form == "leaf":
            return values[0]
        if self.form == "tuple":
            return tuple(values)
        return pytree.tree_unflatten(list(values), self.spec)
