"""Graphs that PyTorch runs op by op while their kernels are being built."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen

from gyrator.engine.compiled import Begun, Boxed, CompiledGraph
from gyrator.frontend.fallback import eager_graph
from gyrator_runtime.collector import only_new_objects
from gyrator_runtime.host.outside import ALL, conform


def in_background(
    gm: torch.fx.GraphModule, begin: Callable[[torch.fx.GraphModule], Begun]
) -> CompiledGraph:
    """Return what `begin` makes of a graph, without waiting for its kernels.

    Until they are built, PyTorch runs the graph as it is here; `begin` may alter it. The results
    of both have the same sizes, strides and types. What is wrong with the graph is said by the
    first call that finds its kernels built.
    """
    meanwhile = _by_pytorch(_copy(gm))
    begun = begin(gm)
    if not begun.waits():
        return begun.finish()
    calls = _Meanwhile(begun, meanwhile)

    def run(args: list[Any]) -> Sequence[Any]:
        return calls.current()(args)

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
    return CompiledGraph(run)


@define(eq=False)
class _Meanwhile:
    """Calls PyTorch until a program is built, and the program from then on."""

    _begun: Begun | None
    _meanwhile: Boxed | None
    _program: Boxed | None = field(default=None, init=False)
    _process: int = field(factory=os.getpid, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def current(self) -> Boxed:
        """Return what a call now runs."""
        # Read first: another thread that finishes the program lets go of it.
        meanwhile = self._meanwhile
        if self._program is None:
            self._finish()
        run = self._program or meanwhile
        assert run is not None
        return run

    def _finish(self) -> None:
        """Take the program if it is built; in a process forked before that, wait for it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            begun = self._begun
            if begun is None or (self._process == os.getpid() and begun.waits()):
                return
            with torch.no_grad(), torch._C._DisableAutocast(), only_new_objects():
                self._program = begun.finish().call
            self._begun = self._meanwhile = None
        finally:
            self._lock.release()


def _by_pytorch(gm: torch.fx.GraphModule) -> Boxed:
    run, laid = eager_graph(gm), _Laid.like(gm)

    def call(args: list[Any]) -> Sequence[Any]:
        sizes = laid.sizes(args)
        with torch.no_grad(), torch._C._DisableAutocast():
            return laid.out(run(args), sizes)

    return call


@frozen(eq=False)
class _Laid:
    """How the results of a graph lie in memory."""

    symbols: Sequence[tuple[Any, int, int | None]]
    """Symbols of sizes, each with the place of an argument that is it, or has it on an axis."""
    results: Sequence[torch.Tensor | None]
    """Fake tensors; None for what is none, or lies in no strides."""

    @classmethod
    def like(cls, gm: torch.fx.GraphModule) -> "_Laid":
        """Read a graph's arguments and results."""
        symbols: list[tuple[Any, int, int | None]] = []
        for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
            val = node.meta.get("val")
            if isinstance(val, torch.SymInt):
                symbols.append((val.node.expr, place, None))
            elif isinstance(val, torch.Tensor):
                shape: Sequence[Any] = val.shape
                sized = [(d, n) for d, n in enumerate(shape) if isinstance(n, torch.SymInt)]
                symbols += [(n.node.expr, place, d) for d, n in sized]
        results: Any = gm.graph.output_node().args[0]
        return cls([s for s in symbols if s[0].is_Symbol], [_strided(r) for r in results])

    def sizes(self, args: list[Any]) -> Mapping[Any, int]:
        """Return the symbolic sizes in one call."""
        return {
            symbol: args[place] if axis is None else args[place].shape[axis]
            for symbol, place, axis in self.symbols
        }

    def out(self, given: Sequence[Any], sizes: Mapping[Any, int]) -> Sequence[Any]:
        """Return results as a program returns them: themselves, or copies in other strides."""
        return tuple(
            value if like is None else _conformed(value, like, sizes)
            for value, like in zip(given, self.results, strict=True)
        )


def _strided(result: Any) -> torch.Tensor | None:
    val = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
    return val if isinstance(val, torch.Tensor) and val.layout is torch.strided else None


def _conformed(given: torch.Tensor, like: torch.Tensor, sizes: Mapping[Any, int]) -> torch.Tensor:
    strides: list[int] = []
    stride: Any
    for stride in like.stride():
        known = stride if isinstance(stride, int) else stride.node.expr.xreplace(sizes)
        if not isinstance(known, int) and not known.is_Integer:  # of a size that the data decides
            return given
        strides.append(int(known))
    return conform(given, given.shape, strides, like.dtype, like.device, ALL, "", "")


def _copy(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta.update(gm.graph.output_node().meta)
    return torch.fx.GraphModule(gm, graph)
