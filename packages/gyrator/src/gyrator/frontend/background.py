"""Graphs that PyTorch runs op by op while their kernels are being built."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import field

from gyrator.graphs.compiled import Boxed, CompiledGraph, PendingGraph, boxed
from gyrator.graphs.fallback import eager_graph
from gyrator_ir.define import define, frozen
from gyrator_lowering.torch_bridge.graphs import graph_results
from gyrator_runtime.collector import only_new_objects
from gyrator_runtime.host.outside import ALL, conform


def in_background(
    gm: torch.fx.GraphModule, begin: Callable[[torch.fx.GraphModule], PendingGraph]
) -> CompiledGraph:
    """Compile a graph with `begin`, without waiting for its kernels.

    Until they are built, PyTorch runs a copy of the graph, since `begin` may modify it. Both give
    results of the same sizes, strides and dtypes. Build errors are raised by the first call after
    the builds have ended.
    """
    eager = _eager_run(_copy(gm))
    pending = begin(gm)
    if not pending.is_building():
        return pending.finish()
    calls = _BackgroundBuild(pending, eager)

    @boxed
    def run(args: list[Any]) -> Sequence[Any]:
        return calls.current()(args)

    return CompiledGraph(run)


@define(eq=False)
class _BackgroundBuild:
    """Runs PyTorch until the program is built, and the program from then on."""

    _pending: PendingGraph | None
    _eager: Boxed | None
    _program: Boxed | None = field(default=None, init=False)
    _process: int = field(factory=os.getpid, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def current(self) -> Boxed:
        """Return the callable for the next call."""
        # Read first: another thread may finish the program and clear this attribute.
        eager = self._eager
        if self._program is None:
            self._finish()
        run = self._program or eager
        assert run is not None
        return run

    def _finish(self) -> None:
        """Take over the program if it is built; in a process forked before that, wait for it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            pending = self._pending
            if pending is None or (self._process == os.getpid() and pending.is_building()):
                return
            with torch.no_grad(), torch._C._DisableAutocast(), only_new_objects():
                self._program = pending.finish().call
            self._pending = self._eager = None
        finally:
            self._lock.release()


def _eager_run(gm: torch.fx.GraphModule) -> Boxed:
    run, layouts = eager_graph(gm), _ResultLayouts.like(gm)

    def call(args: list[Any]) -> Sequence[Any]:
        sizes = layouts.sizes(args)
        with torch.no_grad(), torch._C._DisableAutocast():
            return layouts.out(run(args), sizes)

    return call


@frozen(eq=False)
class _ResultLayouts:
    """Memory layouts of the results of a graph."""

    symbols: Sequence[tuple[Any, int, int | None]]
    """Size symbols, each with the index of the argument that is its value, or that has it as the
    size of an axis."""
    results: Sequence[torch.Tensor | None]
    """Fake tensors; None for a result that is not a strided tensor."""

    @classmethod
    def like(cls, gm: torch.fx.GraphModule) -> "_ResultLayouts":
        """Read the arguments and results of a graph."""
        symbols: list[tuple[Any, int, int | None]] = []
        for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
            val = node.meta.get("val")
            if isinstance(val, torch.SymInt):
                symbols.append((val.node.expr, index, None))
            elif isinstance(val, torch.Tensor):
                shape: Sequence[Any] = val.shape
                sized = [(d, n) for d, n in enumerate(shape) if isinstance(n, torch.SymInt)]
                symbols += [(n.node.expr, index, d) for d, n in sized]
        strided = [_strided(r) for r in graph_results(gm)]
        return cls([s for s in symbols if s[0].is_Symbol], strided)

    def sizes(self, args: list[Any]) -> Mapping[Any, int]:
        """Return the values of the size symbols in one call."""
        return {
            symbol: args[index] if axis is None else args[index].shape[axis]
            for symbol, index, axis in self.symbols
        }

    def out(self, results: Sequence[Any], sizes: Mapping[Any, int]) -> Sequence[Any]:
        """Return results in the layouts that a program returns, copied if their strides differ."""
        return tuple(
            value if like is None else _conformed(value, like, sizes)
            for value, like in zip(results, self.results, strict=True)
        )


def _strided(result: Any) -> torch.Tensor | None:
    val = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
    return val if isinstance(val, torch.Tensor) and val.layout is torch.strided else None


def _conformed(result: torch.Tensor, like: torch.Tensor, sizes: Mapping[Any, int]) -> torch.Tensor:
    strides: list[int] = []
    stride: Any
    for stride in like.stride():
        value = stride if isinstance(stride, int) else stride.node.expr.xreplace(sizes)
        if not isinstance(value, int) and not value.is_Integer:  # depends on a data-dependent size
            return result
        strides.append(int(value))
    return conform(result, result.shape, strides, like.dtype, like.device, ALL, "", "")


def _copy(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta.update(gm.graph.output_node().meta)
    return torch.fx.GraphModule(gm, graph)
