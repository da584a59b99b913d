"""Cells of the test matrix, and the reasons why some do not run."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import product
from types import MappingProxyType
from typing import Literal

import torch
from attrs import field, frozen

from gyrator_conformance.models import Model

Shapes = Literal["static", "dynamic"]
Mode = Literal["inference", "training"]
Graphs = Literal["off", "on"]
Packages = Literal["off", "on", "standalone", "libtorch"]

DTYPES: Mapping[str, torch.dtype] = MappingProxyType({
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
})  # fmt: skip
"""Dtypes by their names on the command line and in reports."""


class Reason(StrEnum):
    """Why a cell does not run. The list is closed."""

    NO_GRADIENT = "no-gradient"
    EAGER_DTYPE = "eager-dtype"
    DTYPE = "dtype"
    WRAPPER = "wrapper"
    DYNAMIC = "dynamic"
    TRAINING = "training"
    MEMORY = "memory"
    LIBRARY = "library"
    GRAPHS = "graphs"
    EXPORT = "export"

    @property
    def meaning(self) -> str:
        """The reason in words."""
        return _MEANINGS[self]

    @property
    def mark(self) -> str:
        """The reason in a letter, for a narrow column."""
        return _MARKS[self]


_MEANINGS = {
    Reason.NO_GRADIENT: "the model has nothing to differentiate",
    Reason.EAGER_DTYPE: "eager execution lacks one of the operations in this element type",
    Reason.DTYPE: "the device has no such element type",
    Reason.WRAPPER: "the device cannot be driven from this host language",
    Reason.DYNAMIC: "the device takes programs of fixed sizes only",
    Reason.TRAINING: "the device is for inference only",
    Reason.MEMORY: "the model does not fit the device",
    Reason.LIBRARY: "the device, or the process, has no library call for one of the operations",
    Reason.GRAPHS: "the device cannot capture graphs of its work",
    Reason.EXPORT: "torch.export cannot export the model, or the device has no packages",
}

_MARKS = {
    Reason.NO_GRADIENT: "G",
    Reason.EAGER_DTYPE: "E",
    Reason.DTYPE: "D",
    Reason.WRAPPER: "W",
    Reason.DYNAMIC: "S",
    Reason.TRAINING: "T",
    Reason.MEMORY: "M",
    Reason.LIBRARY: "L",
    Reason.GRAPHS: "C",
    Reason.EXPORT: "X",
}


@frozen
class Excuse:
    """A limitation declared by a target. Empty fields match everything."""

    reason: Reason
    note: str
    """One sentence, for the report."""
    models: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()
    wrappers: frozenset[str] = frozenset()
    shapes: frozenset[str] = frozenset()
    modes: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    graphs: frozenset[str] = frozenset()
    package: frozenset[str] = frozenset()

    def covers(self, cell: "Cell") -> bool:
        """Return whether the excuse applies to a cell."""
        patterns = (
            (self.models, cell.model),
            (self.families, cell.family),
            (self.wrappers, cell.wrapper),
            (self.shapes, cell.shapes),
            (self.modes, cell.mode),
            (self.dtypes, cell.dtype),
            (self.graphs, cell.graphs),
            (self.package, cell.package),
        )
        return all(not allowed or value in allowed for allowed, value in patterns)


@frozen
class Cell:
    """One model on one target, in one form."""

    model: str
    family: str
    target: str
    wrapper: str
    shapes: Shapes
    mode: Mode
    dtype: str
    graphs: Graphs = "off"
    """Whether work is captured in device graphs and replayed."""
    package: Packages = "off"
    """Whether the model is exported, put into a package, and run by a process that loads it;
    `standalone`: by the C library without libtorch, `libtorch`: by the one with it, both in a
    process that does not import torch."""

    @property
    def column(self) -> tuple[str, ...]:
        """The column of the cell in the matrix: everything but the model."""
        form = (self.shapes, self.mode, self.dtype)
        return (self.target, self.host, *form)

    @property
    def host(self) -> str:
        """`python`, `python+graphs`, `python+package`, `python+standalone`, `python+libtorch`: the
        host language, whether graphs are replayed, and whether it is a package that runs."""
        graphs = ("graphs",) if self.graphs == "on" else ()
        named = "package" if self.package == "on" else self.package
        package = () if self.package == "off" else (named,)
        return "+".join((self.wrapper, *graphs, *package))

    @property
    def name(self) -> str:
        """`cpu/python/mlp/static/training/float32`: what `-k` looks at."""
        parts = (self.target, self.host, self.model, self.shapes, self.mode, self.dtype)
        return "/".join(parts)


@frozen
class Selection:
    """A selection of cells."""

    targets: tuple[str, ...]
    wrappers: tuple[str, ...]
    shapes: tuple[Shapes, ...] = ("static", "dynamic")
    modes: tuple[Mode, ...] = ("inference", "training")
    dtypes: tuple[str, ...] = tuple(DTYPES)
    graphs: tuple[Graphs, ...] = ("off",)
    package: tuple[Packages, ...] = ("off",)
    keyword: str = ""
    """An expression as for pytest's `-k`: words with `and`, `or`, `not` and brackets. A word
    matches a part of a cell's name or its family."""

    def cells(self, models: Iterable[Model]) -> Iterator[Cell]:
        """Return the cells of the models, target by target and model by model."""
        keyword = Keyword.read(self.keyword)
        listed = tuple(models)
        for target in self.targets:
            for wrapper, graphs, package in product(self.wrappers, self.graphs, self.package):
                for model in listed:
                    names = (model.name, model.family, target, wrapper)
                    for form in product(self.shapes, self.modes, self.dtypes):
                        cell = Cell(*names, *form, graphs, package)
                        if keyword.matches(f"{cell.name}/{cell.family}"):
                            yield cell


def excuse_of(cell: Cell, model: Model, declared: Sequence[Excuse]) -> Excuse | None:
    """Return why a cell does not run: a restriction of the model, or else an excuse of the
    target."""
    if cell.mode == "training" and not model.trains:
        return Excuse(Reason.NO_GRADIENT, Reason.NO_GRADIENT.meaning)
    if DTYPES[cell.dtype] not in model.dtypes:
        return Excuse(Reason.EAGER_DTYPE, f"eager lacks an operation in {cell.dtype}")
    if cell.package != "off" and cell.mode == "training":
        return Excuse(Reason.TRAINING, "packages are for inference")
    return next((e for e in declared if e.covers(cell)), None)


@frozen
class Keyword:
    """A parsed `-k` expression."""

    source: str = field(default="")
    tokens: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> "Keyword":
        """Parse an expression.

        Raises:
            ValueError: The expression is not well formed.
        """
        keyword = cls(text, tuple(re.findall(r"[()]|[^\s()]+", text)))
        keyword.matches("")
        return keyword

    def matches(self, name: str) -> bool:
        """Whether a name satisfies the expression; the empty one holds for all."""
        if not self.tokens:
            return True
        rest = list(self.tokens)
        result = self._either(rest, name)
        if rest:
            raise ValueError(f"cannot read {rest[0]!r} in the expression {self.source!r}")
        return result

    def _either(self, rest: list[str], name: str) -> bool:
        result = self._both(rest, name)
        while rest and rest[0] == "or":
            rest.pop(0)
            result = self._both(rest, name) or result
        return result

    def _both(self, rest: list[str], name: str) -> bool:
        result = self._one(rest, name)
        while rest and rest[0] == "and":
            rest.pop(0)
            result = self._one(rest, name) and result
        return result

    def _one(self, rest: list[str], name: str) -> bool:
        word = rest.pop(0) if rest else ""
        if word == "not":
            return not self._one(rest, name)
        if word == "(":
            result = self._either(rest, name)
            if not rest or rest.pop(0) != ")":
                raise ValueError(f"a bracket is not closed in the expression {self.source!r}")
            return result
        if word in ("", "and", "or", ")"):
            raise ValueError(f"a word is missing in the expression {self.source!r}")
        return word in name
