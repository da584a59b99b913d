"""From the arguments of a call to what a program takes, and from what it gives to the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch.utils import _pytree as pytree

from gyrator_runtime.package.errors import wrong_call, wrong_input
from gyrator_runtime.package.manifest import Dim, Entry, Input

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@frozen(eq=False)
class Arguments:
    """How a caller gives the arguments of an entry point."""

    entry: Entry
    spec: Any
    """The `TreeSpec` of `(args, kwargs)`."""
    flat: bool
    """Whether every argument is one leaf, and none is given by name."""

    @classmethod
    def of(cls, entry: Entry) -> Arguments:
        """Read an entry point's signature."""
        leaves = entry.positional == len(entry.inputs) and not entry.keywords
        return cls(entry, pytree.treespec_loads(entry.in_spec), leaves)

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the leaves of the arguments. PackageError (GY-PACKAGE-006) where they are of
        another number or structure."""
        if self.flat and not kwargs and len(args) == len(self.entry.inputs):
            return list(args)
        ordered = self._ordered(args, kwargs)
        found, spec = pytree.tree_flatten(ordered)
        if spec != self.spec:
            raise self._wrong(f"the arguments have the structure {spec}")
        return found

    def _ordered(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments by place and by name as they were when it was compiled."""
        entry = self.entry
        names = (*entry.parameters[: entry.positional], *entry.keywords)
        if len(args) > len(names):
            raise self._wrong(f"{len(args)} arguments were given")
        given = dict(zip(names, args, strict=False)) if len(names) >= len(args) else {}
        twice = given.keys() & kwargs.keys()
        given |= kwargs
        if twice or given.keys() != set(names):
            missing = ", ".join(sorted(set(names) - given.keys()))
            strange = ", ".join(sorted(given.keys() - set(names)))
            said = (("given twice", ", ".join(sorted(twice))), ("missing", missing))
            told = [f"{what}: {who}" for what, who in (*said, ("unknown", strange)) if who]
            raise self._wrong("; ".join(told))
        placed = tuple(given[n] for n in names[: entry.positional])
        return placed, {n: given[n] for n in entry.keywords}

    def _wrong(self, why: str) -> Exception:
        expected = ", ".join(f"{i.name}: {i}" for i in self.entry.inputs)
        return wrong_call(self.entry.name, why, f"({expected})")


Check = Callable[[Any, dict[str, int]], None]
"""`check(leaf, sizes)`: raises PackageError; `sizes` are those that symbols stand for so far."""


def checks_of(entry: Entry) -> list[Check]:
    """Return what checks each leaf of the arguments (GY-PACKAGE-007)."""
    ranges = {s.name: (s.least, s.most) for s in entry.symbols}
    makers = {"tensor": _tensor_check, "integer": _integer_check, "constant": _constant_check}
    return [makers[i.kind](entry.name, i, ranges) for i in entry.inputs]


_Ranges = Mapping[str, tuple[int, int | None]]


def _tensor_check(entry: str, given: Input, ranges: _Ranges) -> Check:
    dtype, device = getattr(torch, given.dtype), torch.device(given.device)
    rank = len(given.shape)
    static = None
    if all(type(n) is int for n in given.shape):
        static = torch.Size(given.shape)  # type: ignore[arg-type]  # which mypy cannot see

    def check(leaf: Any, sizes: dict[str, int]) -> None:
        if type(leaf) not in _PLAIN or leaf.layout is not torch.strided:
            what = f"{leaf.layout} tensor" if type(leaf) in _PLAIN else type(leaf).__name__
            raise wrong_input(entry, given.name, f"is a {what}", str(given))
        if leaf.dtype is not dtype or leaf.device != device:
            raise wrong_input(entry, given.name, f"is {leaf.dtype} on {leaf.device}", str(given))
        if static is not None and leaf.shape == static:
            return
        if leaf.dim() != rank:
            raise wrong_input(entry, given.name, f"has sizes {list(leaf.shape)}", str(given))
        for n, (size, wanted) in enumerate(zip(leaf.shape, given.shape, strict=True)):
            why = _mismatch(size, wanted, sizes, ranges)
            if why:
                why = f"has sizes {list(leaf.shape)}: size {n} is {why}"
                raise wrong_input(entry, given.name, why, str(given))

    return check


def _integer_check(entry: str, given: Input, ranges: _Ranges) -> Check:
    def check(leaf: Any, sizes: dict[str, int]) -> None:
        if type(leaf) is not int:
            raise wrong_input(entry, given.name, f"is a {type(leaf).__name__}", str(given))
        why = _mismatch(leaf, given.shape[0], sizes, ranges)
        if why:
            raise wrong_input(entry, given.name, f"is {why}", str(given))

    return check


def _constant_check(entry: str, given: Input, ranges: _Ranges) -> Check:
    def check(leaf: Any, sizes: dict[str, int]) -> None:
        if type(leaf) is not type(given.value) or leaf != given.value:
            raise wrong_input(entry, given.name, f"is {leaf!r}", str(given))

    return check


def _mismatch(size: int, wanted: Dim | int, sizes: dict[str, int], ranges: _Ranges) -> str:
    """Return what is wrong with a size, or nothing; note what its symbol stands for."""
    if type(wanted) is int:
        return "" if size == wanted else f"{size}, not {wanted}"
    assert isinstance(wanted, Dim)
    number, rest = divmod(size - wanted.offset, wanted.factor)
    if rest:
        return f"{size}, which is no {wanted}"
    known = sizes.get(wanted.symbol)
    if known is not None:
        told = f"{size}, not {wanted} with {wanted.symbol} = {known}, as another argument has it"
        return "" if known == number else told
    least, most = ranges[wanted.symbol]
    if number < least or (most is not None and number > most):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        return f"{size}, and {wanted.symbol} must be {bounds}"
    sizes[wanted.symbol] = number
    return ""


@define(eq=False)
class Results:
    """How the results of a program become those of the call."""

    spec: Any
    count: int
    inputs: Sequence[tuple[int, int]]
    """(place among the results, place among all that the program takes) of inputs returned."""
    form: str = field(init=False)
    """`leaf`, `tuple` or `tree`."""

    def __attrs_post_init__(self) -> None:
        flat = self.spec.type is tuple and self.spec.num_children == self.spec.num_leaves
        plain = flat and pytree.tree_structure(tuple(range(self.count))) == self.spec
        self.form = "leaf" if self.spec.is_leaf() else "tuple" if plain else "tree"

    @classmethod
    def of(cls, entry: Entry) -> Results:
        """Read an entry point's signature."""
        inputs = [(k, o.place) for k, o in enumerate(entry.outputs) if o.kind == "input"]
        return cls(pytree.treespec_loads(entry.out_spec), len(entry.outputs), inputs)

    def of_values(self, values: Sequence[Any], given: Sequence[Any]) -> Any:
        """Return the results; `given` is what the program was given."""
        if self.inputs or len(values) != self.count:
            replaced = list(values[: self.count])
            for k, place in self.inputs:
                replaced[k] = given[place]
            values = replaced
        if self.form == "leaf":
            return values[0]
        if self.form == "tuple":
            return tuple(values)
        return pytree.tree_unflatten(list(values), self.spec)
