"""A backend of `torch.compile` that compiles what lies between calls of some ops, piece by piece.

Each piece is compiled for ranges of sizes of a batch and, once more, for sizes that are said to be
common; a call takes the closest. What is compiled lies in a folder, a file a piece and size, under
the key of the model, the compiler and the machine: another process compiles nothing.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import define, field, frozen
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.passes.split_module import split_module

from gyrator import CompiledArtifact, Session

__all__ = ["Piece", "Piecewise"]

_ANY = 1 << 40
"""Larger than every batch."""


@frozen(eq=False)
class Piece:
    """A part of a graph, compiled for ranges of sizes of the batch, and for some sizes."""

    general: Mapping[int, CompiledArtifact]
    """By the largest size, ascending."""
    place: int | None
    """Of the argument that is the size; None where the piece does not take it."""
    common: Mapping[int, CompiledArtifact]

    def __call__(self, *args: Any) -> Any:
        """Call what is compiled for the size that is given."""
        size = 0 if self.place is None else args[self.place]
        found = self.common.get(size)
        if found is None:
            found = next(made for most, made in self.general.items() if size <= most)
        return found(*args)


@define(eq=False)
class Piecewise:
    """The backend: `torch.compile(model, backend=Piecewise(...), dynamic=True)`."""

    session: Session
    folder: Path
    ops: frozenset[Any]
    """Calls of these run as they are; pieces lie between them."""
    sizes: Sequence[int] = ()
    """Common sizes of the batch."""
    ranges: Sequence[int] = ()
    """Where a range ends and the next begins, ascending."""
    compiled: int = 0
    """How many files this process had to write."""
    pieces: list[Piece] = field(factory=list)

    def __call__(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Cut Dynamo's graph and compile its pieces."""
        fakes = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        whole = split_module(gm, gm, self._cuts(gm).__getitem__, keep_original_order=True)
        store = self.folder / self._key(gm, fakes)
        store.mkdir(parents=True, exist_ok=True)
        mode = next(x.fake_mode for x in fakes if isinstance(x, FakeTensor))
        with mode:
            _Compiling(whole, self, store).run(*fakes)
        return whole

    def _cuts(self, gm: GraphModule) -> dict[Node, int]:
        """Return the number of each node's part: those of odd numbers run as they are."""
        numbers: dict[Node, int] = {}
        part = 0
        for node in gm.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            own = node.target in self.ops
            part += own or part % 2
            part += own and part % 2 == 0
            numbers[node] = part
        return numbers

    def _key(self, gm: GraphModule, inputs: Sequence[Any]) -> str:
        """Return what names everything that the files depend on."""
        given = [(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x for x in inputs]
        sizes = f"{sorted(self.sizes)}{list(self.ranges)}"
        text = f"{gm.code}{given}{sizes}{self.session.key()}"
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def piece(self, name: str, store: Path, gm: GraphModule, inputs: Sequence[Any]) -> Piece:
        """Compile a piece, or load it."""
        places = [k for k, x in enumerate(inputs) if isinstance(x, torch.SymInt)]
        if not places:
            return Piece({_ANY: self._artifact(store / f"{name}.gyr", gm, inputs)}, None, {})
        least, general = 0, {}
        for most in (*self.ranges, _ANY):
            file = store / f"{name}-{least}-{most}.gyr"
            general[most] = self._artifact(file, gm, inputs, (least, most))
            least = most + 1
        common = {
            n: self._artifact(store / f"{name}-{n}.gyr", gm, list(_sized(inputs, n)))
            for n in self.sizes
        }
        return Piece(general, places[0], common)

    def _artifact(
        self,
        file: Path,
        gm: GraphModule,
        inputs: Sequence[Any],
        sizes: tuple[int, int] | None = None,
    ) -> CompiledArtifact:
        if file.exists():
            return self.session.load(file)
        made = self.session.compile(gm, inputs, sizes=sizes)
        made.save(file)
        self.compiled += 1
        return made


def _sized(inputs: Sequence[Any], size: int) -> Iterator[Any]:
    """Yield tensors and integers like these for a size of the batch."""
    for x in inputs:
        if isinstance(x, FakeTensor):
            shape, strides = ([_number(n, size) for n in each] for each in (x.shape, x.stride()))
            yield torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
        else:
            yield _number(x, size)


def _number(n: Any, size: int) -> Any:
    if not isinstance(n, torch.SymInt):
        return n
    expr = n.node.expr
    return int(expr.subs(dict.fromkeys(expr.free_symbols, size)))


class _Compiling(Interpreter):
    """Goes through a graph that is cut, and puts what is compiled in the place of its pieces."""

    def __init__(self, whole: GraphModule, backend: Piecewise, store: Path) -> None:
        super().__init__(whole)
        self.backend, self.store = backend, store

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        part: Any = self.fetch_attr(target)
        results = super().call_module(target, args, kwargs)
        if not any(n.target in self.backend.ops for n in part.graph.nodes):
            with torch._subclasses.fake_tensor.unset_fake_temporarily():
                made = self.backend.piece(target, self.store, part, args)
            self.backend.pieces.append(made)
            vars(self.module)["_modules"][target] = _Called(made)
        return results


class _Called(torch.nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.piece = piece

    def forward(self, *args: Any) -> Any:
        return self.piece(*args)
