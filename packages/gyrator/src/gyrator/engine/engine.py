"""From an ATen graph to a callable, loaded from the cache if possible (`Engine.compile`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from attrs import asdict, evolve
from torch._dynamo.debug_utils import AccuracyError
from torch._subclasses.fake_tensor import unset_fake_temporarily

from gyrator.engine.context import CompilerContext
from gyrator.engine.idle_options import warn_idle
from gyrator.graphs.boundary import plain_boundary
from gyrator.graphs.compiled import Boxed, CompiledGraph, PendingGraph, Phase
from gyrator.graphs.fallback import eager_graph, warn_fallback
from gyrator.graphs.graph_key import fills_empty, graph_bytes
from gyrator.graphs.nan import naming_op
from gyrator.graphs.parts import PartCompiler, PartError
from gyrator.reports.records import ExternRecord, GraphRecord, Stopwatch
from gyrator.store.programs import StoredProgram, load_program
from gyrator.targets import PollableBuilding
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import (
    Diagnostic,
    GyratorError,
    RefusedError,
    UnsupportedError,
    VerificationError,
)
from gyrator_runtime.build import BuildError
from gyrator_runtime.cache import Cache, CacheKey, make_key
from gyrator_runtime.typed_json import read
from gyrator_runtime.warn import warn

if TYPE_CHECKING:
    from gyrator.targets import TargetDefinition
    from gyrator_ir.target import Target
    from gyrator_lowering.fx_passes import Libraries

_DEPTH = 3
"""How many times a piece of a graph may be split again for nodes refused in its own compile."""
_PIECES = "pieces"
_TRANSIENT = ("GY-COMPILE-003", "GY-BUILD-002", "GY-BUILD-003")
"""Codes of errors that may not recur with more time or memory."""
_FX_COMPILER = ("GY-FX-004", "GY-FX-005")
"""Codes of errors of the graph compiler that the user chose."""
_ACCURACY_LEVEL = 4
"""PyTorch's repro level that compares results."""
_WARNED = ("GY-LOWER-030", "GY-LOWER-031")
"""Codes of ATen calls that are unexpected and reported to the user."""


@frozen(eq=False)
class Engine:
    """Compiles ATen graphs with one set of options. Its only state is in the context."""

    context: CompilerContext
    packs: bool = True
    """Whether constants may be tensors in library-specific packed layouts."""
    in_bytes: bool = True
    """Whether libraries may multiply quantised tensors as integers."""

    def compile(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> CompiledGraph:
        """Return a callable for the graph. Nodes that cannot be compiled run in eager PyTorch;
        if none can, the whole graph does, with a warning."""
        return self.begin(gm, phase, watch).finish()

    def begin(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> PendingGraph:
        """Start compiling a graph, without waiting for kernel compilers. `finish` of the result
        waits, warns, raises and reports."""
        watch = watch or self.context.stopwatch()
        warn_idle(self.context.options, self.context.targets, _devices(gm), phase)
        if self.context.parts is not None:
            return _Pending(partial(self._parted, gm, phase, watch, self.context.parts))
        return self._begin_adapted(gm, phase, _DEPTH, watch)

    def _parted(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch, parts: PartCompiler
    ) -> CompiledGraph:
        """Compile the parts that another compiler supports with it, and the rest with Gyrator."""
        from gyrator.graphs.pieces import Piece, conforming, costs, cut, glue

        def compile_piece(piece: Piece) -> Boxed:
            return self._adapted(piece.module, phase, _DEPTH, watch).call

        def compile_part(piece: Piece) -> Boxed:
            if not piece.compiled or not costs(piece):
                return compile_piece(piece)
            try:
                return conforming(piece, parts.call(piece))
            except PartError as error:
                if self.context.options.strict:
                    raise
                failure = error.diagnostic
                warn(failure.code, f"{failure.message}; Gyrator compiles it instead", failure.help)
                return compile_piece(piece)

        pieces = cut(gm, parts.refused(gm))
        if not any(piece.compiled and costs(piece) for piece in pieces):
            return self._adapted(gm, phase, _DEPTH, watch)
        return CompiledGraph(glue(gm, pieces, [compile_part(piece) for piece in pieces]))

    def _adapted(
        self, gm: torch.fx.GraphModule, phase: Phase, depth: int, watch: Stopwatch
    ) -> CompiledGraph:
        return self._begin_adapted(gm, phase, depth, watch).finish()

    def _begin_adapted(
        self, gm: torch.fx.GraphModule, phase: Phase, depth: int, watch: Stopwatch
    ) -> PendingGraph:
        adapt = plain_boundary(gm)
        try:
            if _repros_enabled() and torch._dynamo.config.repro_level >= _ACCURACY_LEVEL:
                self._check_results(gm)
            pending = self._begin(gm, phase, depth, watch)
        except Exception as error:
            pending = _Pending(partial(_raise, error))

        def finished() -> CompiledGraph:
            try:
                compiled = pending.finish()
            except Exception as error:
                compiled = self._by_eager(gm, phase, error)
            return compiled if adapt is None else CompiledGraph(adapt(compiled.call))

        return _Pending(finished, pending.is_building)

    def _by_eager(self, gm: torch.fx.GraphModule, phase: Phase, error: Exception) -> CompiledGraph:
        """Run a graph that could not be compiled in eager PyTorch, with a warning; raise
        verification errors, and all errors with `strict`."""
        path = self._repro(gm, error)
        hint = f"run `python {path}` to reproduce it without the model" if path is not None else ""
        if self.context.options.strict or isinstance(error, VerificationError | AccuracyError):
            if path is not None:
                from gyrator.repro.script import MINIFIER

                error.add_note(hint)
                # PyTorch's message about a failed backend refers to this path.
                vars(error)["minifier_path"] = path.with_name(MINIFIER)
            raise error
        warn_fallback(error, phase, hint)
        calls = sum(n.op == "call_function" for n in gm.graph.nodes)
        self.context.observe(GraphRecord("main", phase, calls, fallback=str(error)))
        return CompiledGraph(eager_graph(gm))

    def _repro(self, gm: torch.fx.GraphModule, error: Exception) -> Path | None:
        """Save a graph on which the compiler itself failed; return the path of the script that
        reproduces it, or that of the first graph with the same error."""
        expected = isinstance(error, GyratorError) and not isinstance(error, BuildError)
        if (expected and not _repros_enabled()) or not self.context.keeps_repros:
            return None
        from gyrator.repro.script import first_repro

        with contextlib.suppress(Exception):  # must not hide the original error
            return first_repro(str(error), gm, self.context.options)
        return None

    def _check_results(self, gm: torch.fx.GraphModule) -> None:
        """Raise AccuracyError if a graph's results on random arguments differ from eager mode's:
        `TORCHDYNAMO_REPRO_LEVEL=4`."""
        if not self.context.keeps_repros:
            return
        from gyrator.repro.example import Example, difference
        from gyrator_lowering.fx_text import show

        options = evolve(self.context.options, cache=False, trace_dir="", progress=False)
        engine = Engine(evolve(self.context, options=options, keeps_repros=False))
        with torch._guards.tracing(None), unset_fake_temporarily():
            example = Example.read(show(gm))
            expected, arguments = example.eager(), example.arguments()
            results = engine.compile(deepcopy(example.gm), "inference").call(list(arguments))
            mismatch = difference([*results, *arguments], expected, example)
        if mismatch:
            raise AccuracyError(f"results differ from eager mode's: {mismatch}")

    def find(self, key: str, phase: Phase) -> Boxed | None:
        """Return the program stored under the hex digest of a key, or None."""
        watch = Stopwatch()
        try:
            with watch.stage("load"):
                stored = self._stored(CacheKey("programs", key, {}), None)
        except GyratorError:  # the caller compiles the graph, which reports it
            return None
        if stored is None:
            return None
        record = stored.record(phase, True, tuple(watch.seconds.items()))
        self.report(record.externs)
        self.context.observe(record)
        return stored.call

    def libraries(self) -> Libraries | None:
        """Return the choice among libraries; None if no library is called."""
        from gyrator.autotune.kernels import Budget
        from gyrator.autotune.library import LibraryChoice, available

        options = self.context.options
        called = options.extern_kernels != "none" and not options.batch_invariant
        if options.bitwise or not called or not available():
            return None
        return LibraryChoice(self.context, Budget(options.autotune_seconds), self.in_bytes)

    def _begin(
        self, gm: torch.fx.GraphModule, phase: Phase, depth: int, watch: Stopwatch
    ) -> PendingGraph:
        self.check(gm)
        with watch.stage("key"):
            key = self._key(gm)
        refused: Mapping[str, Diagnostic] | None = None
        if self.context.options.looks_up:
            with watch.stage("load"):
                stored = self._stored(key, gm)
                refused = None if stored is not None else self._refused_before(gm, key)
            if stored is not None:
                record = stored.record(phase, True, tuple(watch.seconds.items()))
                record = evolve(record, passes=tuple(watch.tracer.steps), levels={"fx": gm})
                return _Pending(partial(self._finish, key, stored, record))
        if (other := self._substitute()) is not None:
            return other._begin(gm, phase, depth, watch)
        from gyrator.engine.pipeline import Stages  # the stages take 0.5 s to import

        if refused is not None:
            return _Pending(partial(self._in_pieces, gm, phase, RefusedError(refused), depth))
        stages = Stages(self.context)
        try:
            product, building = stages.product(gm, phase, watch)
        except RefusedError as error:
            return _Pending(partial(self._without, gm, key, phase, error, depth))

        def finished() -> CompiledGraph:
            try:
                stored = stages.stored(gm, key, product, building, watch)
            except RefusedError as error:
                return self._without(gm, key, phase, error, depth)
            record = stored.record(phase, False, tuple(watch.seconds.items()))
            if self.context.options.cache:
                record = evolve(record, missed=partial(self.context.cache.nearest, key, "graph"))
            record = evolve(record, passes=tuple(watch.tracer.steps), levels=product.levels)
            return self._finish(key, stored, record)

        def is_building() -> bool:
            return self.context.runner_is_building() or not all(map(_is_built, building.values()))

        return _Pending(finished, is_building)

    def _substitute(self) -> Engine | None:
        """Return the engine with the targets that take the place of those that cannot compile on
        this machine; None if there are none."""
        others: dict[str, tuple[TargetDefinition, Target]] = {}
        for device, (definition, target) in self.context.targets.items():
            if definition.instead is None or definition.name in self.context.config.targets:
                continue
            try:
                self.context.loader(target)
            except GyratorError as error:
                other = definition.instead(error)
                bound = None if other is None else other.probe(self.context.config)
                if other is not None and bound is not None:
                    others[device] = (other, bound)
        if not others:
            return None
        targets = {**self.context.targets, **others}
        return evolve(self, context=evolve(self.context, targets=targets))

    def _without(
        self, gm: torch.fx.GraphModule, key: CacheKey, phase: Phase, error: RefusedError, depth: int
    ) -> CompiledGraph:
        """Run `_in_pieces`, and cache the refused nodes unless the refusals are transient."""
        transient = any(why.code in _TRANSIENT for why in error.nodes.values())
        if self.context.options.cache and not transient:
            _store_refused(self.context.cache, key, gm, error.nodes)
        return self._in_pieces(gm, phase, error, depth)

    def _stored(self, key: CacheKey, gm: torch.fx.GraphModule | None) -> StoredProgram | None:
        """Return the stored program; None if there is none that is valid here. Raises errors of
        the user's graph compiler, which are no fault of the program."""
        try:
            return load_program(self.context.cache, key, gm, self.context.running())
        except Exception as error:  # any failure to load is recovered by compiling
            if isinstance(error, GyratorError) and error.diagnostic.code in _FX_COMPILER:
                raise
            message = error.diagnostic.message if isinstance(error, GyratorError) else str(error)
            self.context.cache.discard(key, message or type(error).__name__)
            return None

    def _in_pieces(
        self, gm: torch.fx.GraphModule, phase: Phase, error: RefusedError, depth: int
    ) -> CompiledGraph:
        """Compile the graph around the refused nodes, which PyTorch runs."""
        if self.context.options.strict or not depth:
            raise error
        from gyrator.graphs.pieces import by_pytorch, cut, glue, record  # rarely used

        pieces = cut(gm, error.nodes)
        nodes = [n for n in gm.graph.nodes if n.op == "call_function" and n.name in error.nodes]
        reason = error.diagnostic
        if reason.code in _TRANSIENT:
            message = f"PyTorch runs part of a graph ({phase}): {reason.message}"
            warn(reason.code, message, reason.help)
        externs = tuple(record(n, error.nodes[n.name]) for n in nodes)
        self.context.observe(GraphRecord("main", phase, len(nodes), externs=externs))
        calls = [
            self._adapted(piece.module, phase, depth - 1, self.context.stopwatch()).call
            if piece.compiled
            else by_pytorch(piece)
            for piece in pieces
        ]
        return CompiledGraph(glue(gm, pieces, calls))

    def _refused_before(
        self, gm: torch.fx.GraphModule, key: CacheKey
    ) -> Mapping[str, Diagnostic] | None:
        """Return the refused nodes stored by `_store_refused`, if any, after running the passes
        over the graph."""
        entry = self.context.cache.get(CacheKey(_PIECES, key.hex, {}))
        if entry is None:
            return None
        from gyrator.autotune.kernels import Budget
        from gyrator.engine.pipeline import Stages

        Stages(self.context).prepare(gm, Budget(self.context.options.autotune_seconds))
        nodes = list(gm.graph.nodes)
        rows = json.loads(entry.read(_PIECES))
        return {nodes[k].name: read(Diagnostic, why) for k, why in rows}

    def _finish(self, key: CacheKey, stored: StoredProgram, record: GraphRecord) -> CompiledGraph:
        self.report(record.externs)
        self.context.observe(record)
        named = self.context.options.nan_asserts
        call = naming_op(stored.call, record.levels["fx"]) if named else stored.call
        return CompiledGraph(call, None if stored.constants else key)

    def check(self, gm: torch.fx.GraphModule) -> None:
        """Raise UnsupportedError (GY-TARGET-003) for a graph whose tensors are all on devices
        without a target."""
        devices = _devices(gm)
        if devices and not devices.keys() & self.context.targets.keys():
            device, node = next(iter(devices.items()))
            names = ", ".join(self.context.targets) or "none"
            raise UnsupportedError.of(
                "GY-TARGET-003",
                f"no target for device type {device!r}",
                provenance=(f"%{node.name} = {node.target}",),
                help=f"installed targets: {names}; see `gyrator doctor`",
            )

    def report(self, externs: Iterable[ExternRecord]) -> None:
        """Warn of ATen calls that should have been kernels; with `strict`, raise refusals."""
        for extern in externs:
            code, colon, message = extern.reason.partition(": ")
            if not colon or not code.startswith("GY-"):
                continue
            if self.context.options.strict:
                raise UnsupportedError.of(code, message, provenance=(extern.source,))
            if code in _WARNED:
                warn(code, message, "`gyrator.explain` lists all ATen calls")

    def _key(self, gm: torch.fx.GraphModule) -> CacheKey:
        fields = {
            "graph": graph_bytes(gm),
            "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()).encode(),
            "fills empty": str(fills_empty()).encode(),
            "machine": self.context.machine(_product_devices(gm)),
            **self.context.identity,
        }
        return make_key("programs", fields)


def _store_refused(
    cache: Cache, key: CacheKey, gm: torch.fx.GraphModule, refused: Mapping[str, Diagnostic]
) -> None:
    """Store which nodes of a graph are refused, after the passes have run over it."""
    nodes = [(k, n.name) for k, n in enumerate(gm.graph.nodes) if n.name in refused]
    rows = [[k, asdict(refused[name])] for k, name in nodes]
    cache.put(CacheKey(_PIECES, key.hex, {}), {_PIECES: json.dumps(rows).encode()})


@frozen(eq=False)
class _Pending:
    """A graph whose kernels may still be being built."""

    finish: Callable[[], CompiledGraph]
    is_building: Callable[[], bool] = lambda: False


def _raise(error: Exception) -> NoReturn:
    raise error


def _is_built(building: object) -> bool:
    """Return whether a build has finished, as far as its loader reports that."""
    return not isinstance(building, PollableBuilding) or building.done()


def _repros_enabled() -> bool:
    """Return whether `TORCHDYNAMO_REPRO_AFTER=aot` requests a repro of every failure."""
    return bool(torch._dynamo.config.repro_after == "aot")


def _devices(gm: torch.fx.GraphModule) -> dict[str, torch.fx.Node]:
    """Return the device types of a graph's tensors, each with one of its nodes."""
    tensors = [n for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return {n.meta["val"].device.type: n for n in tensors}


def _product_devices(gm: torch.fx.GraphModule) -> set[str]:
    """Return the device types with matrix products whose library may be chosen by measurement."""
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    values = (n.meta["val"] for n in gm.graph.nodes if n.target in products)
    return {val.device.type for val in values if val.dtype == torch.float32}
