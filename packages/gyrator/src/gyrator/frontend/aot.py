"""Between Dynamo and the compiler: AOTAutograd, the joint graph's passes, and the partitioner."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from attrs import define, evolve, field, frozen
from torch._dynamo.utils import (
    CompileEventLogger,
    dynamo_timed,
    flatten_graph_inputs,
    get_metrics_context,
)
from torch._guards import CompileContext, TracingContext, compile_context

from gyrator.engine.compiled import Begun, Boxed, CompiledGraph, GraphCompiler, Phase, untraced
from gyrator.frontend.background import in_background
from gyrator.frontend.direct import GraphFacts, callable_for, facts_of
from gyrator.frontend.double_backward import Replay, forward_mode, watched
from gyrator.frontend.dynamo_graph import unwrapped
from gyrator.frontend.eager_only import eager_only
from gyrator.frontend.eager_strides import strides_of_results
from gyrator.frontend.fallback import warn_fallback
from gyrator.frontend.freezing import (
    SharedConstants,
    known_inputs,
    or_eagerly,
    with_constants,
    zero_inputs,
)
from gyrator.frontend.gradients import compiles_autograd, resolving
from gyrator.frontend.graph_key import traced_bytes
from gyrator.frontend.mended import mend, mend_types
from gyrator.frontend.recurrent import differentiable
from gyrator.options import Options
from gyrator.reports.records import GraphRecord, Stopwatch
from gyrator_ir.deadline import LateError
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.modes import Numerics
from gyrator_lowering.folding import FROZEN, ZEROS, Folding
from gyrator_runtime.cache import Cache, CacheKey, make_key
from gyrator_runtime.collector import only_new_objects

_FILE = "graph.json"
_NONE: frozenset[int] = frozenset()


@frozen(eq=False)
class Frontend:
    """Turns Dynamo's graphs into callables."""

    compiler: GraphCompiler
    options: Options
    cache: Cache
    constants: SharedConstants = field(factory=SharedConstants)

    def compile(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Trace Dynamo's graph to ATen, split it for training, and compile the parts.

        A graph that was compiled before is not traced again.
        """
        if any(isinstance(x, list | tuple | dict) for x in inputs):
            return flatten_graph_inputs(gm, inputs, self._compile)
        return self._compile(gm, inputs)

    def _compile(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        plain = unwrapped(gm)
        mend(plain)
        why = eager_only(plain)
        if why is not None:
            return self._eagerly(gm, inputs, UnsupportedError(why))
        # Compiled autograd looks into AOTAutograd's own nodes, and into no other.
        direct = not compiles_autograd()
        known = direct and self.options.looks_up and isinstance(gm, torch.fx.GraphModule)
        places = known_inputs(plain, inputs) if self.options.freezing and plain is gm else _NONE
        zeros = zero_inputs(inputs, places)
        key = self._key(gm, inputs, places, zeros) if known else None
        compiled = None if key is None else self._find(key, gm, inputs)
        saving = _saving()
        if saving and key is None and self.options.looks_up:
            # It is not looked up, as one with symbolic sizes; what is stored is saved.
            key = make_key("graphs", {"saved": os.urandom(16)})
        if compiled is None:
            try:
                compiled = self._trace(gm, inputs, key, direct, places, zeros)
            except LateError as error:  # in a pass over the joint graph
                return self._eagerly(gm, inputs, error)
        if zeros and not self.options.strict:
            compiled = or_eagerly(compiled, gm)
        return Kept(compiled, self.options, self.cache, key) if saving else untraced(compiled)

    def _eagerly(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], error: UnsupportedError
    ) -> Callable[..., Any]:
        """Return the user's graph, after a warning; with `strict`, raise what is wrong with it."""
        if self.options.strict:
            raise error
        warn_fallback(error, "as the user wrote it")
        calls = len(unwrapped(gm).graph.nodes) - len(inputs)
        self.compiler.observe(GraphRecord("main", "eager", calls, fallback=str(error)))
        return untraced(gm)

    def _trace(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        key: CacheKey | None,
        direct: bool,
        places: frozenset[int],
        zeros: frozenset[int],
    ) -> Callable[..., Any]:
        plain = unwrapped(gm)
        calls = len(plain.graph.nodes) - len(inputs)
        self.compiler.prepare({x.device.type for x in inputs if isinstance(x, torch.Tensor)}, calls)
        strides = strides_of_results(plain)
        tracing = Tracing(self.compiler, self.options, strides, places, zeros, self.constants)
        compiled = tracing.run(gm, inputs)
        wrapped = plain is not gm  # and calls with one list what stands for it
        facts = tracing.facts(len(inputs)) if direct and not wrapped else None
        begun = None if facts is None or facts.tangents is None else tracing.meanwhile("backward")
        tracing.finish()
        replay = Replay.of(gm, inputs, tracing.refusal if facts is None else facts.refusal)
        if facts is None:
            if wrapped:
                return compiled
            return watched(compiled, replay) if tracing.trained else forward_mode(compiled, gm)
        if facts.tangents is None:
            self._store(key, facts, tracing.front, None, tracing.folding)
            return callable_for(facts, tracing.front.call, None, replay)

        def compile_backward() -> Boxed:
            made = tracing.compile("backward") if begun is None else begun.finish()
            self._store(key, facts, tracing.front, made)
            return made.call

        back: Boxed = compile_backward() if _saving() else _Lazily(compile_backward)
        return callable_for(facts, tracing.front.call, back, replay)

    def _store(
        self,
        key: CacheKey | None,
        facts: GraphFacts,
        front: CompiledGraph,
        back: CompiledGraph | None,
        folding: Folding | None = None,
    ) -> None:
        parts = [front] if back is None else [front, back]
        keys = [part.key.hex for part in parts if part.key is not None]
        if key is not None and len(keys) == len(parts):
            known = None if folding is None else folding.as_json()
            stored = {"facts": facts.as_json(), "programs": keys, "folding": known}
            self.cache.keep(key, {_FILE: json.dumps(stored).encode()})

    def _find(
        self, key: CacheKey, gm: torch.fx.GraphModule, inputs: Sequence[Any]
    ) -> Callable[..., Any] | None:
        return self.loaded(key, gm, "", inputs)

    def loaded(
        self,
        key: CacheKey,
        function: Callable[..., Any],
        refusal: str,
        inputs: Sequence[Any] = (),
    ) -> Callable[..., Any] | None:
        """Return the graph that is stored under a key; None where there is none that works here.

        Args:
            key: the graph's.
            function: the graph itself, which is called for derivatives that programs do not have.
            refusal: why it cannot be called for gradients of gradients; empty if it can.
            inputs: what it takes.
        """
        entry = self.cache.get(key)
        if entry is None:
            return None
        phases: tuple[Phase, ...] = ("inference",)
        try:
            stored = json.loads(entry.read(_FILE))
            facts = GraphFacts.from_json(stored["facts"])
            if facts.tangents is not None:
                phases = ("forward", "backward")
            programs = list(zip(stored["programs"], phases, strict=True))
            known = stored["folding"]
            folding = None if known is None else Folding.from_json(known)
        except Exception as error:
            self.cache.discard(key, f"{type(error).__name__}: {error}")
            return None
        found: list[Boxed] = []
        for program, phase in programs:
            run = self.compiler.find(program, phase)
            if run is None:
                return None
            found.append(run if folding is None else with_constants(folding, run, self.constants))
        replay = Replay.of(function, inputs, facts.refusal or refusal)
        return callable_for(facts, found[0], found[1] if len(found) > 1 else None, replay)

    def _key(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        places: frozenset[int],
        zeros: frozenset[int],
    ) -> CacheKey | None:
        graph = traced_bytes(gm, inputs)
        if graph is None:
            return None
        fields = {
            "graph": graph,
            "known": repr((sorted(places), sorted(zeros))).encode(),
            "machine": self.compiler.machine({x.device.type for x in inputs}),
            **self.compiler.identity,
        }
        return make_key("graphs", fields)


@frozen(eq=False)
class Kept:
    """A compiled graph that is to be saved."""

    call: Callable[..., Any]
    options: Options
    cache: Cache
    key: CacheKey | None
    """Of what the cache may hold of it; None for what it does not."""

    def __call__(self, *args: Any) -> Any:
        """Call it."""
        return self.call(*args)


def _saving() -> bool:
    """Whether Dynamo will save what becomes of the graph (`aot_compile`)."""
    config = torch._functorch.config
    return bool(
        getattr(config, "bundled_autograd_cache", False)
        and getattr(config, "force_autograd_cache", False)
    )


def _own_cache() -> AbstractContextManager[object]:
    """Keep AOTAutograd from storing what it makes of a graph, for its cache takes Inductor's."""
    if not _saving():
        return nullcontext()
    names = ("strict_autograd_cache", "bundled_autograd_cache", "force_autograd_cache")
    config: Any = torch._functorch.config
    patch: AbstractContextManager[object] = config.patch(dict.fromkeys(names, False))
    return patch


@define(eq=False)
class _Lazily:
    """A backward program that is compiled when it first runs, for a step may never come to it."""

    compile: Callable[[], Boxed]
    context: CompileContext | None = field(factory=CompileContext.try_get)
    """The frame that it belongs to, for PyTorch's logs and metrics."""
    _program: Boxed | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self._program is None:
            with (
                torch.no_grad(),
                torch._C._DisableAutocast(),
                only_new_objects(),
                compile_context(self.context),
                get_metrics_context(),
                dynamo_timed(
                    "gyrator.backward",
                    phase_name="entire_backward_compile",
                    log_pt2_compile_event=True,
                    dynamo_compile_column_us="backward_cumulative_compile_time_us",
                ),
            ):
                CompileEventLogger.compilation_metric(is_forward=False)
                self._program = self.compile()
        return self._program(args)


@define(eq=False)
class Tracing:
    """One run of AOTAutograd: its callbacks, and what they saw."""

    compile_graph: GraphCompiler
    options: Options
    strides: Sequence[Any]
    """Eager's strides of the function's results; None for one of which they are not known."""
    places: frozenset[int] = _NONE
    """The function's inputs that are known."""
    zeros: frozenset[int] = _NONE
    """Those of them that are integers and all zero."""
    constants: SharedConstants = field(factory=SharedConstants)
    folding: Folding | None = None
    """What computes constants of them, if anything does."""
    graphs: dict[Phase, CompiledGraph] = field(factory=dict)
    modules: dict[Phase, torch.fx.GraphModule] = field(factory=dict)
    metadata: Any = None
    watch: Stopwatch | None = None
    """What watched the passes over the joint graph, until a part of it is compiled."""
    begun: Begun | None = None
    """The forward graph, until its kernels have been waited for."""
    random: bool = False
    """Whether the user's function draws random numbers."""

    def run(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Trace a graph, compile what becomes of it, and return AOTAutograd's callable."""
        # Here, since a warm start needs neither: 0.4 s of imports.
        from torch._functorch.aot_autograd import aot_module_simplified

        from gyrator_lowering.decompositions import (
            default_decompositions,
            edited,
            exact_decompositions,
            whole_ops,
        )

        bitwise = self.options.bitwise
        table = exact_decompositions if bitwise else default_decompositions
        changes = self.compile_graph.decompositions
        decompositions = edited(table(self.compile_graph.rules), changes)
        with (
            whole_ops() if bitwise else nullcontext(),
            _own_cache(),
            differentiable(gm, inputs),
        ):
            compiled: Callable[..., Any] = aot_module_simplified(
                gm,
                inputs,
                fw_compiler=cast(Any, self.compiler("forward")),
                bw_compiler=cast(Any, self.compile_backward),
                inference_compiler=cast(Any, self.compiler("inference")),
                partition_fn=self.partition,
                decompositions=decompositions,
                keep_inference_input_mutations=True,
            )
        return compiled

    def compiler(self, phase: Phase) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Boxed]:
        """Return the callback for one phase."""

        def run(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Boxed:
            if phase == "inference":
                self._prepare(graph, frozen=self._mark(graph))
            context = TracingContext.try_get()
            if phase != "backward" and context is not None:
                self.metadata = context.fw_metadata
                # Programs write over no saved tensor: a graph may always be retained.
                self.metadata.bw_donated_idxs = []
            if phase == "forward":
                return self.begin_forward(graph)
            return self.compile(phase, graph).call

        return run

    def compile(self, phase: Phase, graph: torch.fx.GraphModule | None = None) -> CompiledGraph:
        """Compile one graph, or that which is known for a phase, and remember it."""
        graph = self.modules[phase] if graph is None else graph
        self.modules[phase] = graph
        watch, self.watch = self.watch, None
        found = self._apart(graph) if phase == "inference" else None
        if self.begun is not None:
            begun = self.compile_graph.begin(graph, phase, watch)
            self.finish()  # the forward graph, whose kernels were asked for before
            self.graphs[phase] = begun.finish()
        elif found is None:
            self.graphs[phase] = self._compiled(graph, phase, watch)
        else:
            self.folding, rest = found
            compiled = self._compiled(rest, phase, watch)
            call = with_constants(self.folding, compiled.call, self.constants)
            self.graphs[phase] = evolve(compiled, call=call)
        return self.graphs[phase]

    def _compiled(
        self, graph: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None
    ) -> CompiledGraph:
        if not self.in_background:
            return self.compile_graph.compile(graph, phase, watch)
        return in_background(graph, lambda gm: self.compile_graph.begin(gm, phase, watch))

    def begin_forward(self, graph: torch.fx.GraphModule) -> Boxed:
        """Compile the forward graph but for waiting for its kernels: `finish` does that."""
        self.modules["forward"] = graph
        if self.in_background:
            return self.compile("forward", graph).call
        watch, self.watch = self.watch, None
        self.begun = self.compile_graph.begin(graph, "forward", watch)

        def run(args: list[Any]) -> Sequence[Any]:
            return self.graphs["forward"].call(args)

        run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
        return run

    def finish(self) -> None:
        """Wait for the forward graph's kernels, if there is one."""
        if self.begun is not None:
            self.graphs["forward"] = self.begun.finish()
            self.begun = None

    def meanwhile(self, phase: Phase) -> Begun | None:
        """Begin with the graph of a later phase while kernels of the forward graph are being built;
        None if they are not. What fails is raised when that graph is asked for."""
        if self.begun is None or not self.begun.waits():
            return None
        with torch.no_grad(), torch._C._DisableAutocast():
            return self.compile_graph.begin(self.modules[phase], phase)

    def _mark(self, graph: torch.fx.GraphModule) -> bool:
        """Mark the inputs that are known; return whether there are any."""
        if not self.places:
            return False
        from torch._functorch._aot_autograd.descriptors import PlainAOTInput

        for node in graph.graph.find_nodes(op="placeholder"):
            given = node.meta.get("desc")
            place = given.idx if isinstance(given, PlainAOTInput) else None
            node.meta[FROZEN], node.meta[ZEROS] = place in self.places, place in self.zeros
        return True

    def _apart(self, graph: torch.fx.GraphModule) -> tuple[Folding, torch.fx.GraphModule] | None:
        """Return what computes constants, and the graph that takes them, if inputs are known."""
        if not self.places:
            return None
        from gyrator_lowering.freezing import freeze

        return freeze(graph)

    def compile_backward(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        """Compile a backward graph, perhaps from within the autograd engine."""
        return untraced(resolving(untraced(self.compiler("backward"))(graph, inputs), graph))

    def partition(self, joint: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        """Choose what the forward pass saves for the backward pass."""
        from torch._functorch.partitioners import (
            default_partition,
            min_cut_rematerialization_partition,
        )

        self.random = any(
            torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            for node in joint.graph.nodes
        )
        mend_types(joint)
        self._prepare(joint, recomputing=self.options.min_cut)
        cut = min_cut_rematerialization_partition if self.options.min_cut else default_partition
        # The joint graph has been through a pass for equal calls; torch's imports TorchInductor's
        # lowerings, a sixth of the time of a first training step.
        with torch._functorch.config.patch(cse=False):
            forward, backward = cut(joint, inputs, **kwargs)
        self.modules["backward"] = backward
        return forward, backward

    def _prepare(
        self, graph: torch.fx.GraphModule, recomputing: bool = False, frozen: bool = False
    ) -> None:
        from torch._functorch._aot_autograd.descriptors import PlainAOTOutput

        from gyrator_lowering.fx_passes import joint_pipeline
        from gyrator_lowering.options import LoweringOptions

        # Random ops become pure functions of a saved seed before the cut is chosen, so that a
        # recomputation in the backward pass draws the same numbers.
        options = LoweringOptions(
            fallback_random=self.options.fallback_random, numerics=Numerics(self.options.numerics)
        )
        targets = self.compile_graph.by_device
        described = graph.graph.output_node().meta.get("desc", ())
        strides = {
            place: self.strides[what.idx]
            for place, what in enumerate(described)
            if isinstance(what, PlainAOTOutput) and self.strides[what.idx] is not None
        }
        libraries = self.compile_graph.libraries()
        pipeline = joint_pipeline(options, targets, recomputing, strides, frozen, libraries)
        self.watch = watch = self.compile_graph.stopwatch()
        with watch.stage("joint"):
            self.compile_graph.passes.apply(pipeline).run(graph, watch.tracer)

    @property
    def in_background(self) -> bool:
        """Whether nothing waits for kernels; what is saved has to be whole."""
        return self.options.build_in_background and not _saving()

    @property
    def front(self) -> CompiledGraph:
        """The compiled inference or forward graph."""
        return self.graphs.get("inference") or self.graphs["forward"]

    @property
    def trained(self) -> bool:
        """Whether the graph was split for training."""
        return "forward" in self.graphs

    @property
    def refusal(self) -> str:
        """Why the user's function would not compute the same again; empty if it would."""
        metadata = self.metadata
        if self.random:
            return "it draws random numbers"
        if metadata is None or metadata.tokens or any(i.mutates_data for i in metadata.input_info):
            return "it has side effects, such as writing to its inputs"
        if metadata.num_outputs_aliased or metadata.num_intermediate_bases:
            return "its results share memory"
        return ""

    def facts(self, inputs: int) -> GraphFacts | None:
        """Return how the graphs are called, if AOTAutograd's own wrapper can be left out."""
        if "inference" in self.modules:
            return facts_of(self.metadata, inputs, self.modules["inference"], None, self.refusal)
        if "forward" not in self.modules or "backward" not in self.modules:
            return None
        forward, backward = self.modules["forward"], self.modules["backward"]
        return facts_of(self.metadata, inputs, forward, backward, self.refusal)
