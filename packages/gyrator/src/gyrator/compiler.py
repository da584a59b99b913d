"""From an ATen graph to a callable, of the cache where it has one (`Engine.compile`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import evolve, frozen

from gyrator.compiled import Boxed, CompiledGraph, Phase
from gyrator.fallback import eager_graph, warn_fallback
from gyrator.graph_key import graph_bytes
from gyrator.product import product_hash
from gyrator.programs import StoredProgram, load_program
from gyrator.records import GraphRecord
from gyrator.setting import Setting, Stopwatch
from gyrator_ir.diagnostics import Diagnostic, GyratorError, UnsupportedError
from gyrator_runtime.cache import CacheKey, make_key


@frozen(kw_only=True, eq=False)
class Engine(Setting):
    """The compiler of ATen graphs for one choice of options. Keeps no state but its builders."""

    def compile(self, gm: torch.fx.GraphModule, phase: Phase) -> CompiledGraph:
        """Return a callable for the graph: compiled, or eager with a warning where that fails."""
        places = _hold_results(gm)
        compiled = self._compile_or_run(gm, phase)
        if not places:
            return compiled
        return CompiledGraph(_reading(compiled.call, places))

    def _compile_or_run(self, gm: torch.fx.GraphModule, phase: Phase) -> CompiledGraph:
        try:
            return self._compile(gm, phase)
        except Exception as error:
            if self.options.strict:
                raise
            warn_fallback(error, phase)
            calls = sum(n.op == "call_function" for n in gm.graph.nodes)
            self.observer(GraphRecord("main", phase, calls, fallback=str(error)))
            return CompiledGraph(eager_graph(gm))

    def find(self, key: str, phase: Phase) -> Boxed | None:
        """Return the program stored under the hex digest of a key, or None."""
        watch = Stopwatch()
        with watch.stage("load"):
            named = CacheKey("programs", key, {})
            stored = self._stored(named, None)
        if stored is None:
            return None
        self.observer(stored.record(phase, True, tuple(watch.seconds.items())))
        return stored.call

    def _compile(self, gm: torch.fx.GraphModule, phase: Phase) -> CompiledGraph:
        self._check_devices(gm)
        _check_negation(gm)
        watch = Stopwatch()
        with watch.stage("key"):
            key = self._key(gm)
        if self.options.cache:
            with watch.stage("load"):
                stored = self._stored(key, gm)
            if stored is not None:
                return self._finish(gm, key, stored, phase, watch, cached=True)
        from gyrator.pipeline import Pipeline  # the stages take 0.5 s to import

        stored = Pipeline(self).build(gm, key, phase, watch)
        return self._finish(gm, key, stored, phase, watch, cached=False)

    def _stored(self, key: CacheKey, gm: torch.fx.GraphModule | None) -> StoredProgram | None:
        """Return the stored program; None where there is none, or none that works here."""
        try:
            return load_program(self.cache, self.runner, key, gm, self.running())
        except Exception as error:  # whatever it is, compiling is still to be tried
            said = error.diagnostic.message if isinstance(error, GyratorError) else str(error)
            self.cache.discard(key, said or type(error).__name__)
            return None

    def _finish(
        self,
        gm: torch.fx.GraphModule,
        key: CacheKey,
        stored: StoredProgram,
        phase: Phase,
        watch: Stopwatch,
        cached: bool,
    ) -> CompiledGraph:
        record = stored.record(phase, cached, tuple(watch.seconds.items()))
        self.observer(evolve(record, fx_text=lambda: gm.print_readable(print_output=False)))
        return CompiledGraph(stored.call, None if stored.constants else key)

    def _check_devices(self, gm: torch.fx.GraphModule) -> None:
        for node in gm.graph.nodes:
            val = node.meta.get("val")
            if isinstance(val, torch.Tensor) and val.device.type not in self.targets:
                known = ", ".join(self.targets) or "none"
                raise UnsupportedError(
                    Diagnostic(
                        "GY-TARGET-003",
                        f"no target for device type {val.device.type!r}",
                        provenance=(f"%{node.name} = {node.target}",),
                        help=f"targets found: {known}; `gyrator doctor` shows what is installed",
                    )
                )

    def _key(self, gm: torch.fx.GraphModule) -> CacheKey:
        fields = {
            "graph": graph_bytes(gm),
            "compiler": self.identity,
            "deterministic": str(torch.are_deterministic_algorithms_enabled()).encode(),
            "torch": torch.__version__.encode(),
            "product": product_hash().encode(),
        }
        return make_key("programs", fields)


def _hold_results(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Let a graph return tensors where it returned run-time floats and conditions; return their
    places. Integers stay: programs return those."""
    (results,) = gm.graph.output_node().args
    if not isinstance(results, tuple | list):
        return ()
    places = tuple(
        place
        for place, result in enumerate(results)
        if isinstance(getattr(result, "meta", {}).get("val"), (torch.SymFloat, torch.SymBool))
    )
    if places:
        from gyrator_lowering.fx_passes import hold_results  # a warm start hardly ever needs it

        hold_results(gm, places)
    return places


def _reading(run: Boxed, places: tuple[int, ...]) -> Boxed:
    """Return a callable that reads the numbers out of those results that hold one."""

    def call(args: list[Any]) -> Sequence[Any]:
        results = list(run(args))
        for place in places:
            results[place] = results[place].item()
        return results

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
    return call


def _check_negation(gm: torch.fx.GraphModule) -> None:
    """Refuse inputs whose sign is still to be changed: kernels read the memory as it is."""
    for node in gm.graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and val.is_neg() and not val.is_complex():
            raise UnsupportedError(
                Diagnostic(
                    "GY-COMPILE-002",
                    f"the input {node.name} is a negated view (`is_neg`)",
                    provenance=(f"%{node.name} = {node.target}",),
                    help="pass `x.resolve_neg()` instead",
                )
            )
