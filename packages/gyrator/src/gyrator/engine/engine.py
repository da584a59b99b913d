"""From an ATen graph to a callable, of the cache where it has one (`Engine.compile`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from attrs import asdict, evolve, frozen
from torch._dynamo.debug_utils import AccuracyError
from torch._subclasses.fake_tensor import unset_fake_temporarily

from gyrator.engine.compiled import Begun, Boxed, CompiledGraph, Phase
from gyrator.engine.context import CompilerContext
from gyrator.engine.idle_options import warn_idle
from gyrator.engine.nan import naming_op
from gyrator.engine.parts import PartCompiler, PartError
from gyrator.frontend.boundary import plain_boundary
from gyrator.frontend.fallback import eager_graph, warn_fallback
from gyrator.frontend.graph_key import fills_empty, graph_bytes
from gyrator.reports.records import ExternRecord, GraphRecord, Stopwatch
from gyrator.store.programs import StoredProgram, load_program
from gyrator.targets import AskedBuilding
from gyrator_ir.diagnostics import (
    Diagnostic,
    GyratorError,
    RefusedError,
    UnsupportedError,
    VerificationError,
)
from gyrator_runtime.build import BuildError
from gyrator_runtime.cache import Cache, CacheKey, make_key
from gyrator_runtime.warn import warn

if TYPE_CHECKING:
    from gyrator_lowering.fx_passes import Libraries

_DEPTH = 3
"""How often a piece of a graph may be cut again, for what only its own compile shows."""
_PIECES = "pieces"
_PASSING = ("GY-COMPILE-003", "GY-BUILD-002", "GY-BUILD-003")
"""Codes of what another try, on a machine with more time and memory, may not meet."""
_ACCURACY = 4
"""Of PyTorch's levels of repros, the one that compares results."""
_WARNED = ("GY-LOWER-030", "GY-LOWER-031")
"""Codes of calls of ATen that a user would not expect."""


@frozen(kw_only=True, eq=False)
class Engine(CompilerContext):
    """The compiler of ATen graphs for one choice of options. Keeps no state but its builders."""

    def compile(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> CompiledGraph:
        """Return a callable for the graph. PyTorch runs what of it cannot be compiled, and all of
        it, with a warning, where nothing can."""
        return self.begin(gm, phase, watch).finish()

    def begin(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> Begun:
        """Do what `compile` does, but for waiting for the compilers of kernels. `finish` warns,
        raises and reports."""
        watch = watch or self.stopwatch()
        warn_idle(self.options, self.targets, _devices(gm), phase)
        if self.parts is not None:
            return _Begun(partial(self._parted, gm, phase, watch, self.parts))
        return self._begin_adapted(gm, phase, _DEPTH, watch)

    def _parted(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch, parts: PartCompiler
    ) -> CompiledGraph:
        """Let another compiler have its parts of a graph, and compile what is around them."""
        from gyrator.engine.pieces import Piece, as_said, costs, cut, glue

        def ours(piece: Piece) -> Boxed:
            return self._adapted(piece.module, phase, _DEPTH, watch).call

        def compiled(piece: Piece) -> Boxed:
            if not piece.compiled or not costs(piece):
                return ours(piece)
            try:
                return as_said(piece, parts.call(piece))
            except PartError as error:
                if self.options.strict:
                    raise
                said = error.diagnostic
                warn(said.code, f"{said.message}; Gyrator compiles it", said.help)
                return ours(piece)

        pieces = cut(gm, parts.refused(gm))
        if not any(piece.compiled and costs(piece) for piece in pieces):
            return self._adapted(gm, phase, _DEPTH, watch)
        return CompiledGraph(glue(gm, pieces, [compiled(piece) for piece in pieces]))

    def _adapted(
        self, gm: torch.fx.GraphModule, phase: Phase, depth: int, watch: Stopwatch
    ) -> CompiledGraph:
        return self._begin_adapted(gm, phase, depth, watch).finish()

    def _begin_adapted(
        self, gm: torch.fx.GraphModule, phase: Phase, depth: int, watch: Stopwatch
    ) -> Begun:
        adapt = plain_boundary(gm)
        begun: Begun
        try:
            if _repros_asked() and torch._dynamo.config.repro_level >= _ACCURACY:
                self._check_results(gm)
            begun = self._begin(gm, phase, depth, watch)
        except Exception as error:
            begun = _Failed(error)

        def finished() -> CompiledGraph:
            try:
                compiled = begun.finish()
            except Exception as error:
                compiled = self._by_eager(gm, phase, error)
            return compiled if adapt is None else CompiledGraph(adapt(compiled.call))

        return _Begun(finished, begun.waits)

    def _by_eager(self, gm: torch.fx.GraphModule, phase: Phase, error: Exception) -> CompiledGraph:
        """Let PyTorch run a graph that could not be compiled, with a warning; raise the error where
        it is to be seen."""
        path = self._repro(gm, error)
        shown = f"`python {path}` shows it without the model" if path is not None else ""
        if self.options.strict or isinstance(error, VerificationError | AccuracyError):
            if path is not None:
                from gyrator.repro.script import MINIFIER

                error.add_note(shown)
                # PyTorch's message about a backend that failed names what is under this.
                vars(error)["minifier_path"] = path.with_name(MINIFIER)
            raise error
        warn_fallback(error, phase, shown)
        calls = sum(n.op == "call_function" for n in gm.graph.nodes)
        self.observe(GraphRecord("main", phase, calls, fallback=str(error)))
        return CompiledGraph(eager_graph(gm))

    def _repro(self, gm: torch.fx.GraphModule, error: Exception) -> Path | None:
        """Keep a graph on which the compiler itself failed; return the script that shows it, or
        that of the first graph with which it failed alike."""
        known = isinstance(error, GyratorError) and not isinstance(error, BuildError)
        if (known and not _repros_asked()) or not self.keeps_repros:
            return None
        from gyrator.repro.script import first_repro

        with contextlib.suppress(Exception):  # nothing may hide the error itself
            return first_repro(str(error), gm, self.options)
        return None

    def _check_results(self, gm: torch.fx.GraphModule) -> None:
        """Raise AccuracyError where random arguments of a graph's sizes give other results than in
        eager mode: `TORCHDYNAMO_REPRO_LEVEL=4`."""
        if not self.keeps_repros:
            return
        from gyrator.repro.example import Example, difference
        from gyrator_lowering.fx_text import show

        options = evolve(self.options, cache=False, trace_dir="", progress=False)
        engine = evolve(self, options=options, keeps_repros=False)
        with torch._guards.tracing(None), unset_fake_temporarily():
            example = Example.read(show(gm))
            expected, given = example.eager(), example.arguments()
            results = engine.compile(deepcopy(example.gm), "inference").call(list(given))
            found = difference([*results, *given], expected, example)
        if found:
            raise AccuracyError(f"results differ from eager mode's: {found}")

    def find(self, key: str, phase: Phase) -> Boxed | None:
        """Return the program stored under the hex digest of a key, or None."""
        watch = Stopwatch()
        with watch.stage("load"):
            named = CacheKey("programs", key, {})
            stored = self._stored(named, None)
        if stored is None:
            return None
        record = stored.record(phase, True, tuple(watch.seconds.items()))
        self.report(record.externs)
        self.observe(record)
        return stored.call

    def libraries(self) -> Libraries | None:
        """Return what knows the libraries that are called; None where none is."""
        from gyrator.autotune.kernels import Budget
        from gyrator.autotune.library import LibraryChoice, available

        options = self.options
        called = options.extern_kernels != "none" and not options.batch_invariant
        if options.bitwise or not called or not available():
            return None
        return LibraryChoice(self, Budget(self.options.autotune_seconds))

    def _begin(self, gm: torch.fx.GraphModule, phase: Phase, depth: int, watch: Stopwatch) -> Begun:
        self.check(gm)
        with watch.stage("key"):
            key = self._key(gm)
        refused: Mapping[str, Diagnostic] | None = None
        if self.options.looks_up:
            with watch.stage("load"):
                stored = self._stored(key, gm)
                refused = None if stored is not None else self._refused_before(gm, key)
            if stored is not None:
                record = stored.record(phase, True, tuple(watch.seconds.items()))
                record = evolve(record, passes=tuple(watch.tracer.steps), levels={"fx": gm})
                return _Begun(partial(self._finish, key, stored, record))
        from gyrator.engine.pipeline import Stages  # the stages take 0.5 s to import

        if refused is not None:
            return _Begun(partial(self._in_pieces, gm, phase, RefusedError(refused), depth))
        stages = Stages(self)
        try:
            product, building = stages.product(gm, phase, watch)
        except RefusedError as error:
            return _Begun(partial(self._without, gm, key, phase, error, depth))

        def finished() -> CompiledGraph:
            try:
                stored = stages.stored(gm, key, product, building, watch)
            except RefusedError as error:
                return self._without(gm, key, phase, error, depth)
            record = stored.record(phase, False, tuple(watch.seconds.items()))
            if self.options.cache:
                record = evolve(record, missed=partial(self.cache.nearest, key, "graph"))
            record = evolve(record, passes=tuple(watch.tracer.steps), levels=product.levels)
            return self._finish(key, stored, record)

        return _Begun(finished, lambda: not all(map(_built, building.values())))

    def _without(
        self, gm: torch.fx.GraphModule, key: CacheKey, phase: Phase, error: RefusedError, depth: int
    ) -> CompiledGraph:
        """Do `_in_pieces`, and remember what is refused, unless another try may take it."""
        passing = any(why.code in _PASSING for why in error.nodes.values())
        if self.options.cache and not passing:
            _keep_refused(self.cache, key, gm, error.nodes)
        return self._in_pieces(gm, phase, error, depth)

    def _stored(self, key: CacheKey, gm: torch.fx.GraphModule | None) -> StoredProgram | None:
        """Return the stored program; None where there is none, or none that works here."""
        try:
            return load_program(self.cache, key, gm, self.running())
        except Exception as error:  # whatever it is, compiling is still to be tried
            said = error.diagnostic.message if isinstance(error, GyratorError) else str(error)
            self.cache.discard(key, said or type(error).__name__)
            return None

    def _in_pieces(
        self, gm: torch.fx.GraphModule, phase: Phase, error: RefusedError, depth: int
    ) -> CompiledGraph:
        """Compile what surrounds refused nodes, which PyTorch runs."""
        if self.options.strict or not depth:
            raise error
        from gyrator.engine.pieces import by_pytorch, cut, glue, record  # hardly ever needed

        pieces = cut(gm, error.nodes)
        nodes = [n for n in gm.graph.nodes if n.op == "call_function" and n.name in error.nodes]
        said = error.diagnostic
        if said.code in _PASSING:
            warn(said.code, f"PyTorch runs a part of a graph ({phase}): {said.message}", said.help)
        externs = tuple(record(n, error.nodes[n.name]) for n in nodes)
        self.observe(GraphRecord("main", phase, len(nodes), externs=externs))
        calls = [
            self._adapted(piece.module, phase, depth - 1, self.stopwatch()).call
            if piece.compiled
            else by_pytorch(piece)
            for piece in pieces
        ]
        return CompiledGraph(glue(gm, pieces, calls))

    def _refused_before(
        self, gm: torch.fx.GraphModule, key: CacheKey
    ) -> Mapping[str, Diagnostic] | None:
        """Return what `_keep_refused` stored, if it did, after the passes over the graph."""
        entry = self.cache.get(CacheKey(_PIECES, key.hex, {}))
        if entry is None:
            return None
        from gyrator.autotune.kernels import Budget
        from gyrator.engine.pipeline import Stages

        Stages(self).prepare(gm, Budget(self.options.autotune_seconds))
        nodes = list(gm.graph.nodes)
        rows = json.loads(entry.read(_PIECES))
        return {
            nodes[k].name: Diagnostic(**why | {"provenance": tuple(why["provenance"])})
            for k, why in rows
        }

    def _finish(self, key: CacheKey, stored: StoredProgram, record: GraphRecord) -> CompiledGraph:
        self.report(record.externs)
        self.observe(record)
        named = self.options.nan_asserts
        call = naming_op(stored.call, record.levels["fx"]) if named else stored.call
        return CompiledGraph(call, None if stored.constants else key)

    def check(self, gm: torch.fx.GraphModule) -> None:
        """Raise UnsupportedError for a graph that can only run as it is."""
        self._check_devices(gm)

    def report(self, externs: Iterable[ExternRecord]) -> None:
        """Warn of calls that should have been kernels; with `strict`, raise what was refused."""
        for extern in externs:
            code, colon, message = extern.reason.partition(": ")
            if not colon or not code.startswith("GY-"):
                continue
            if self.options.strict:
                raise UnsupportedError.of(code, message, provenance=(extern.source,))
            if code in _WARNED:
                warn(code, message, "`gyrator.explain` lists all calls of ATen")

    def _check_devices(self, gm: torch.fx.GraphModule) -> None:
        """Refuse a graph all of whose tensors lie where no target is."""
        devices = _devices(gm)
        if devices and not devices.keys() & self.targets.keys():
            device, node = next(iter(devices.items()))
            known = ", ".join(self.targets) or "none"
            raise UnsupportedError.of(
                "GY-TARGET-003",
                f"no target for device type {device!r}",
                provenance=(f"%{node.name} = {node.target}",),
                help=f"targets found: {known}; `gyrator doctor` shows what is installed",
            )

    def _key(self, gm: torch.fx.GraphModule) -> CacheKey:
        fields = {
            "graph": graph_bytes(gm),
            "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()).encode(),
            "fills empty": str(fills_empty()).encode(),
            "machine": self.machine(_product_devices(gm)),
            **self.identity,
        }
        return make_key("programs", fields)


def _keep_refused(
    cache: Cache, key: CacheKey, gm: torch.fx.GraphModule, refused: Mapping[str, Diagnostic]
) -> None:
    """Store which nodes of a graph, which the passes have seen, are refused."""
    nodes = [(k, n.name) for k, n in enumerate(gm.graph.nodes) if n.name in refused]
    rows = [[k, asdict(refused[name])] for k, name in nodes]
    cache.put(CacheKey(_PIECES, key.hex, {}), {_PIECES: json.dumps(rows).encode()})


def _nothing_waits() -> bool:
    return False


@frozen(eq=False)
class _Begun:
    """A graph whose kernels may still be being built."""

    finish: Callable[[], CompiledGraph]
    waits: Callable[[], bool] = _nothing_waits


@frozen(eq=False)
class _Failed:
    """A graph whose stages have failed."""

    error: Exception

    def waits(self) -> bool:
        return False

    def finish(self) -> CompiledGraph:
        raise self.error


def _built(building: object) -> bool:
    """Whether what is being built is at hand, as far as its loader tells."""
    return not isinstance(building, AskedBuilding) or building.done()


def _repros_asked() -> bool:
    """Whether `TORCHDYNAMO_REPRO_AFTER=aot` asks for a repro of whatever fails."""
    return bool(torch._dynamo.config.repro_after == "aot")


def _devices(gm: torch.fx.GraphModule) -> dict[str, torch.fx.Node]:
    """Return the types of the devices of a graph's tensors, each with a node that has one."""
    tensors = [n for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return {n.meta["val"].device.type: n for n in tensors}


def _product_devices(gm: torch.fx.GraphModule) -> set[str]:
    """Return where a graph has products whose library may be chosen by measuring."""
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    found = (n.meta["val"] for n in gm.graph.nodes if n.target in products)
    return {val.device.type for val in found if val.dtype == torch.float32}
