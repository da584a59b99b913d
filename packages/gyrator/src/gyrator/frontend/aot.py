"""From Dynamo to the compiler: AOTAutograd, the passes over the joint graph, and the
partitioner."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from attrs import asdict, evolve, field
from torch._dynamo.utils import (
    CompileEventLogger,
    dynamo_timed,
    flatten_graph_inputs,
    get_metrics_context,
)
from torch._guards import CompileContext, TracingContext, compile_context, detect_fake_mode

from gyrator.engine.context import GraphCompiler
from gyrator.engine.idle_options import warn_idle
from gyrator.frontend.direct import GraphFacts, callable_for, dependents, facts_of, protecting
from gyrator.frontend.double_backward import Replay, forward_mode, with_double_backward
from gyrator.frontend.draws import draws, repeat_without_states, save_draws
from gyrator.frontend.dynamo.attention_masks import open_fused_attention
from gyrator.frontend.dynamo.corrections import (
    correct_attention_sums,
    join_quantisation,
    keep_booleans,
    name_complex_dtypes,
    normalize_axes,
    share_memory,
)
from gyrator.frontend.dynamo.eager_only import eager_only
from gyrator.frontend.dynamo.eager_strides import strides_of_results, with_eager_strides
from gyrator.frontend.dynamo.graph import unwrapped
from gyrator.frontend.dynamo.recurrent import networks
from gyrator.frontend.freezing import (
    SharedConstants,
    frozen_inputs,
    or_eagerly,
    with_constants,
    zero_inputs,
)
from gyrator.frontend.gradients import compiles_autograd, resolving, within_bases
from gyrator.frontend.tracing import trace_powers
from gyrator.graphs.compiled import Boxed, CompiledGraph, PendingGraph, Phase, boxed, untraced
from gyrator.graphs.fallback import warn_fallback
from gyrator.graphs.graph_key import traced_bytes
from gyrator.options import Options
from gyrator.reports.records import GraphRecord, Stopwatch
from gyrator_ir.deadline import LateError
from gyrator_ir.define import define, frozen
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.modes import Numerics
from gyrator_lowering.folding import FROZEN, ZEROS, Folding
from gyrator_runtime.cache import Cache, CacheKey, make_key
from gyrator_runtime.collector import only_new_objects
from gyrator_runtime.typed_json import read

_FILE = "graph.json"
_NONE: frozenset[int] = frozenset()


@frozen(eq=False)
class Frontend:
    """Compiles Dynamo graphs into callables."""

    compiler: GraphCompiler
    options: Options
    cache: Cache
    constants: SharedConstants = field(factory=SharedConstants)

    def compile(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Trace a Dynamo graph to ATen, partition it for training, and compile the parts.

        A graph that is in the cache is not traced again.
        """
        if any(isinstance(x, list | tuple | dict) for x in inputs):
            return flatten_graph_inputs(gm, inputs, self._compile)
        return self._compile(gm, inputs)

    def _compile(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        plain = unwrapped(gm)
        normalize_axes(plain)
        name_complex_dtypes(plain)
        keep_booleans(plain)
        share_memory(plain)
        join_quantisation(plain)
        why = eager_only(plain)
        if why is not None:
            refusal = UnsupportedError(why)
            if self.options.strict:
                return untraced(_refusing(gm, refusal))
            return self._eagerly(gm, inputs, refusal)
        # Compiled autograd can only trace AOTAutograd's own autograd nodes.
        direct = not compiles_autograd()
        cacheable = direct and self.options.looks_up and isinstance(gm, torch.fx.GraphModule)
        frozen = frozen_inputs(plain, inputs) if self.options.freezing and plain is gm else _NONE
        zeros = zero_inputs(inputs, frozen)
        key = self._key(gm, inputs, frozen, zeros) if cacheable else None
        compiled = None if key is None else self.loaded(key, gm, "", inputs)
        saving = _saving()
        if saving and key is None and self.options.looks_up:
            # Graphs without a key, such as those with symbolic sizes, are stored only to be saved.
            key = make_key("graphs", {"saved": os.urandom(16)})
        if compiled is None:
            try:
                compiled = self._trace(gm, inputs, key, direct, frozen, zeros)
            except LateError as error:  # in a pass over the joint graph
                return self._eagerly(gm, inputs, error)
        if zeros and not self.options.strict:
            compiled = or_eagerly(compiled, gm)
        return (
            SavableGraph(compiled, self.options, self.cache, key) if saving else untraced(compiled)
        )

    def _eagerly(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], error: UnsupportedError
    ) -> Callable[..., Any]:
        """Return the user's graph after a warning; with `strict`, raise `error`."""
        if self.options.strict:
            raise error
        warn_fallback(error, "as written by the user")
        calls = len(unwrapped(gm).graph.nodes) - len(inputs)
        self.compiler.context.observe(GraphRecord("main", "eager", calls, fallback=str(error)))
        return untraced(gm)

    def _trace(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        key: CacheKey | None,
        direct: bool,
        frozen: frozenset[int],
        zeros: frozenset[int],
    ) -> Callable[..., Any]:
        plain = unwrapped(gm)
        calls = len(plain.graph.nodes) - len(inputs)
        devices = {x.device.type for x in inputs if isinstance(x, torch.Tensor)}
        self.compiler.context.prepare(devices, calls)
        strides = strides_of_results(plain)
        tracing = Tracing(self.compiler, self.options, strides, frozen, zeros, self.constants)
        compiled = tracing.run(gm, inputs)
        wrapped = plain is not gm  # which calls its replacement with a single list
        facts = tracing.facts(len(inputs)) if direct and not wrapped else None
        pending = (
            None if facts is None or facts.tangents is None else tracing.begin_early("backward")
        )
        tracing.finish()
        if facts is None:
            replay = Replay.of(gm, inputs, tracing.refusal, tracing.bases, tracing.reaches)
        else:
            replay = Replay.of(gm, inputs, facts.refusal)
        if facts is None:
            if wrapped:
                return compiled
            compiled = (
                with_double_backward(compiled, replay)
                if tracing.trained
                else forward_mode(compiled, gm)
            )
            compiled = protecting(compiled, tracing.written(len(inputs)), inputs)
            return self._faster(compiled, replay, None, inputs) if direct else compiled
        if facts.tangents is None:
            self._store(key, facts, tracing.front, None, tracing.folding)
            call = callable_for(facts, tracing.front.call, None, replay, inputs)
            return self._faster(call, replay, key, inputs)

        def compile_backward() -> Boxed:
            program = tracing.compile("backward") if pending is None else pending.finish()
            self._store(key, facts, tracing.front, program)
            return program.call

        back: Boxed = compile_backward() if _saving() else _LazyBackward(compile_backward)
        call = callable_for(facts, tracing.front.call, back, replay, inputs)
        return self._faster(call, replay, key, inputs)

    def _faster(
        self,
        compiled: Callable[..., Any],
        replay: Replay,
        key: CacheKey | None,
        inputs: Sequence[Any],
    ) -> Callable[..., Any]:
        """Return the compiled graph; with `eager_if_faster`, the faster one of it and the
        function that `replay` reruns."""
        options = self.options
        if not options.eager_if_faster or options.keeps_compiled or _saving():
            return compiled
        from gyrator.frontend.eager_if_faster import faster  # rarely used

        context, function = self.compiler.context, replay.function
        return faster(context, compiled, function, key, replay.refusal, inputs)

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
            constants = None if folding is None else folding.as_json()
            stored = {"facts": asdict(facts), "programs": keys, "folding": constants}
            self.cache.try_put(key, {_FILE: json.dumps(stored).encode()})

    def loaded(
        self, key: CacheKey, function: Callable[..., Any], refusal: str, inputs: Sequence[Any] = ()
    ) -> Callable[..., Any] | None:
        """Load the graph that is stored under a key; return None if there is none that is valid
        here.

        Args:
            key: the key of the graph.
            function: the graph itself, called for derivatives that programs do not provide.
            refusal: why `function` cannot be rerun for second-order gradients; empty if it can.
            inputs: the inputs of the graph.
        """
        entry = self.cache.get(key)
        if entry is None:
            return None
        phases: tuple[Phase, ...] = ("inference",)
        try:
            stored = json.loads(entry.read(_FILE))
            facts = read(GraphFacts, stored["facts"])
            if facts.tangents is not None:
                phases = ("forward", "backward")
            programs = list(zip(stored["programs"], phases, strict=True))
            constants = stored["folding"]
            folding = None if constants is None else Folding.from_json(constants)
        except Exception as error:
            self.cache.discard(key, f"{type(error).__name__}: {error}")
            return None
        runs: list[Boxed] = []
        for program, phase in programs:
            run = self.compiler.find(program, phase)
            if run is None:
                return None
            if folding is not None:
                runner = self.compiler.context.runner
                run = with_constants(folding, run, self.constants, runner)
            runs.append(run)
        devices = {x.device.type for x in inputs if isinstance(x, torch.Tensor)}
        warn_idle(self.options, self.compiler.context.targets, devices, phases[0])
        replay = Replay.of(function, inputs, facts.refusal or refusal)
        back = runs[1] if len(runs) > 1 else None
        call = callable_for(facts, runs[0], back, replay, inputs)
        return self._faster(call, replay, key, inputs)

    def _key(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        frozen: frozenset[int],
        zeros: frozenset[int],
    ) -> CacheKey | None:
        graph = traced_bytes(gm, inputs)
        if graph is None:
            return None
        fields = {
            "graph": graph,
            "known": repr((sorted(frozen), sorted(zeros))).encode(),
            "machine": self.compiler.context.machine({x.device.type for x in inputs}),
            **self.compiler.context.identity,
        }
        return make_key("graphs", fields)


@frozen(eq=False)
class SavableGraph:
    """A compiled graph that Dynamo or the user will save."""

    call: Callable[..., Any]
    options: Options
    cache: Cache
    key: CacheKey | None
    """The key of its cache entry; None if it cannot be cached."""

    def __call__(self, *args: Any) -> Any:
        """Call the graph."""
        return self.call(*args)


def _refusing(gm: torch.fx.GraphModule, error: UnsupportedError) -> Callable[..., Any]:
    """Return a function that raises what eager mode raises for the user's graph, else `error`."""

    def run(*args: Any) -> Any:
        gm(*args)
        raise error

    return run


def _saving() -> bool:
    """Return whether Dynamo will save the compiled graph (`aot_compile`)."""
    config = torch._functorch.config
    return bool(
        getattr(config, "bundled_autograd_cache", False)
        and getattr(config, "force_autograd_cache", False)
    )


def _without_autograd_cache() -> AbstractContextManager[object]:
    """Disable AOTAutograd's cache, which accepts only Inductor's compiled graphs."""
    if not _saving():
        return nullcontext()
    names = ("strict_autograd_cache", "bundled_autograd_cache", "force_autograd_cache")
    config: Any = torch._functorch.config
    patch: AbstractContextManager[object] = config.patch(dict.fromkeys(names, False))
    return patch


def _views_by_strides(inputs: Sequence[Any]) -> AbstractContextManager[object]:
    """If inputs share memory, make AOTAutograd create results that are views of them by strides.

    It would otherwise repeat the views of one input on the memory that it shares with others.
    """
    tensors = [x for x in inputs if isinstance(x, torch.Tensor) and x.layout is torch.strided]
    storages = {x.untyped_storage()._cdata for x in tensors}
    if len(storages) == len(tensors):
        return nullcontext()
    config: Any = torch._functorch.config
    patch: AbstractContextManager[object] = config.patch(view_replay_for_aliased_outputs=False)
    return patch


@define(eq=False)
class _LazyBackward:
    """A backward program that is compiled on its first call, since a step may never reach it."""

    compile: Callable[[], Boxed]
    context: CompileContext | None = field(factory=CompileContext.try_get)
    """The compile context of the frame, for PyTorch's logs and metrics."""
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
    """One run of AOTAutograd: its callbacks, and the graphs that they received."""

    compile_graph: GraphCompiler
    options: Options
    strides: Sequence[Any]
    """Eager's strides of each of the function's results; None if they are unknown."""
    frozen: frozenset[int] = _NONE
    """Indices of the function's inputs that are frozen: parameters and buffers."""
    zeros: frozenset[int] = _NONE
    """Indices of the frozen inputs that are integer tensors and all zero."""
    constants: SharedConstants = field(factory=SharedConstants)
    folding: Folding | None = None
    """Computes constants from the frozen inputs, if there are any."""
    graphs: dict[Phase, CompiledGraph] = field(factory=dict)
    modules: dict[Phase, torch.fx.GraphModule] = field(factory=dict)
    metadata: Any = None
    watch: Stopwatch | None = None
    """Timed the passes over the joint graph; passed on to the first graph that is compiled."""
    pending: PendingGraph | None = None
    """The compile of the forward graph, until its kernels are built."""
    random: bool = False
    """Whether the user's function generates random numbers."""

    def run(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Trace a graph, compile the resulting graphs, and return AOTAutograd's callable."""
        # Imported here because a warm start needs neither, and they take 0.4 s.
        from torch._functorch.aot_autograd import aot_module_simplified

        from gyrator_lowering.decompositions import (
            default_decompositions,
            edited,
            exact_decompositions,
            right_formulas,
            whole_ops,
        )

        bitwise = self.options.bitwise
        deterministic = torch.are_deterministic_algorithms_enabled()
        if not (bitwise or deterministic or self.options.batch_invariant):
            open_fused_attention(unwrapped(gm))
        table = exact_decompositions if bitwise else default_decompositions
        changes = self.compile_graph.context.decompositions
        decompositions = edited(table(self.compile_graph.context.rules), changes)
        mode = detect_fake_mode(inputs) if bitwise else None
        trace_powers()
        with (
            whole_ops() if bitwise else right_formulas(),
            nullcontext() if mode is None else with_eager_strides(mode),
            _without_autograd_cache(),
            _views_by_strides(inputs),
            networks(gm, inputs),
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
                self.random = draws(graph)
                self._prepare(graph, frozen=self._mark(graph))
            context = TracingContext.try_get()
            if phase != "backward" and context is not None:
                self.metadata = context.fw_metadata
                # Programs never overwrite saved tensors, so a graph may always be retained.
                self.metadata.bw_donated_idxs = []
            if phase == "backward":
                return self.compile(phase, graph).call
            if phase == "forward":
                return within_bases(self.begin_forward(graph), graph)
            return within_bases(self.compile(phase, graph).call, graph)

        return run

    def compile(self, phase: Phase, graph: torch.fx.GraphModule | None = None) -> CompiledGraph:
        """Compile a graph, by default the stored graph of the phase, and store the result."""
        graph = self.modules[phase] if graph is None else graph
        self.modules[phase] = graph
        watch, self.watch = self.watch, None
        split = self.split_constants(graph) if phase == "inference" else None
        if self.pending is not None:
            pending = self.compile_graph.begin(graph, phase, watch)
            self.finish()  # the forward graph, whose kernels were submitted earlier
            self.graphs[phase] = pending.finish()
        elif split is None:
            self.graphs[phase] = self._compiled(graph, phase, watch)
        else:
            self.folding, rest = split
            compiled = self._compiled(rest, phase, watch)
            runner = self.compile_graph.context.runner
            call = with_constants(self.folding, compiled.call, self.constants, runner)
            self.graphs[phase] = evolve(compiled, call=call)
        return self.graphs[phase]

    def _compiled(
        self, graph: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None
    ) -> CompiledGraph:
        if not self.in_background:
            return self.compile_graph.compile(graph, phase, watch)
        from gyrator.frontend.background import in_background  # rarely used

        return in_background(graph, lambda gm: self.compile_graph.begin(gm, phase, watch))

    def begin_forward(self, graph: torch.fx.GraphModule) -> Boxed:
        """Compile the forward graph, except for waiting for its kernels, which `finish` does."""
        self.modules["forward"] = graph
        if self.in_background:
            return self.compile("forward", graph).call
        watch, self.watch = self.watch, None
        self.pending = self.compile_graph.begin(graph, "forward", watch)

        @boxed
        def run(args: list[Any]) -> Sequence[Any]:
            return self.graphs["forward"].call(args)

        return run

    def finish(self) -> None:
        """Wait for the kernels of the forward graph, if there is one."""
        if self.pending is not None:
            self.graphs["forward"] = self.pending.finish()
            self.pending = None

    def begin_early(self, phase: Phase) -> PendingGraph | None:
        """Start compiling the graph of a later phase while kernels of the forward graph are
        being built; return None if they are not. Errors are raised when the result is requested."""
        if self.pending is None or not self.pending.is_building():
            return None
        with torch.no_grad(), torch._C._DisableAutocast():
            return self.compile_graph.begin(self.modules[phase], phase)

    def _mark(self, graph: torch.fx.GraphModule) -> bool:
        """Mark the frozen inputs; return whether there are any."""
        if not self.frozen:
            return False
        from torch._functorch._aot_autograd.descriptors import PlainAOTInput

        for node in graph.graph.find_nodes(op="placeholder"):
            descriptor = node.meta.get("desc")
            index = descriptor.idx if isinstance(descriptor, PlainAOTInput) else None
            node.meta[FROZEN], node.meta[ZEROS] = index in self.frozen, index in self.zeros
        return True

    def split_constants(
        self, graph: torch.fx.GraphModule
    ) -> tuple[Folding, torch.fx.GraphModule] | None:
        """Split a graph with frozen inputs into the computation of constants and the rest."""
        if not self.frozen:
            return None
        from gyrator_lowering.freezing import freeze

        return freeze(graph)

    def compile_backward(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        """Compile a backward graph, perhaps from within the autograd engine."""
        return untraced(resolving(untraced(self.compiler("backward"))(graph, inputs), graph))

    def partition(self, joint: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        """Choose the activations that the forward pass saves for the backward pass."""
        from torch._functorch.partitioners import default_partition

        from gyrator.frontend.partition import partition

        self.random = draws(joint)
        correct_attention_sums(joint)
        self._prepare(joint, recomputing=self.options.min_cut)
        save_draws(joint)
        cut = partition if self.options.min_cut else default_partition
        # The joint graph has been through common subexpression elimination. PyTorch's version
        # imports TorchInductor's lowerings, which takes a sixth of the time of a first training
        # step.
        with torch._functorch.config.patch(cse=False, graphsafe_rng_functionalization=False):
            forward, backward = cut(joint, inputs, **kwargs)
        repeat_without_states(forward, backward)
        self.modules["backward"] = backward
        return forward, backward

    def _prepare(
        self, graph: torch.fx.GraphModule, recomputing: bool = False, frozen: bool = False
    ) -> None:
        from gyrator_lowering.fx_passes import joint_pipeline
        from gyrator_lowering.options import LoweringOptions

        # Random ops become pure functions of a saved seed before the cut is chosen, so that a
        # recomputation in the backward pass generates the same numbers.
        options = LoweringOptions(
            fallback_random=self.options.fallback_random, numerics=Numerics(self.options.numerics)
        )
        targets = self.compile_graph.context.by_device
        outputs = _user_outputs(graph)
        strides = {k: self.strides[n] for k, n in outputs.items() if self.strides[n] is not None}
        libraries = self.compile_graph.libraries()
        packs = self.compile_graph.packs
        pipeline = joint_pipeline(
            options, targets, recomputing, strides, frozen, libraries, packs, _aliases(outputs)
        )
        self.watch = watch = self.compile_graph.context.stopwatch()
        with watch.stage("joint"):
            self.compile_graph.context.passes.apply(pipeline).run(graph, watch.tracer)

    @property
    def in_background(self) -> bool:
        """Whether kernels are built in the background; a graph that will be saved must be
        complete."""
        return self.options.build_in_background and not _saving()

    @property
    def front(self) -> CompiledGraph:
        """The compiled inference or forward graph."""
        return self.graphs.get("inference") or self.graphs["forward"]

    @property
    def trained(self) -> bool:
        """Whether the graph was partitioned for training."""
        return "forward" in self.graphs

    def written(self, count: int) -> Sequence[int]:
        """Return the indices of the function's `count` inputs that the graph itself writes; none
        if inputs that share memory are passed as one."""
        metadata = self.metadata
        if metadata is None:
            return ()
        attributes = len(metadata.input_info) - count  # of the module, which are passed first
        handled = metadata.mutated_graph_handled_indices
        return [k - attributes for k in handled if k >= attributes] if attributes >= 0 else ()

    @property
    def refusal(self) -> str:
        """Why rerunning the user's function would not give the same results; empty if it would."""
        metadata = self.metadata
        if self.random:
            return "it generates random numbers"
        if (
            metadata is None
            or (metadata.tokens and not _only_checks(self.modules.values()))
            or any(i.mutates_data or i.mutates_metadata for i in metadata.input_info)
        ):
            return "it has side effects, such as writing to its inputs"
        return ""

    @property
    def bases(self) -> tuple[int, ...]:
        """For each base that AOTAutograd returns beside the user's results, the index of a result
        that is a view of it."""
        infos = () if self.metadata is None else self.metadata.output_info
        views = ("alias_of_intermediate", "alias_of_intermediate_save_as_output")
        bases = {i.base_idx: k for k, i in enumerate(infos) if i.output_type.name in views}
        return tuple(bases[k] for k in sorted(bases))

    @property
    def reaches(self) -> dict[int, tuple[int, ...]]:
        """By result of AOTAutograd's function, the function's inputs whose gradients depend on the
        result's; empty if they are unknown."""
        if self.metadata is None or "backward" not in self.modules:
            return {}
        return _reaches(self.metadata, self.modules["backward"])

    def facts(self, inputs: int) -> GraphFacts | None:
        """Return the calling convention of the graphs, or None if AOTAutograd's wrapper is
        needed."""
        if any(map(_unwraps, self.modules.values())):
            return None
        if "inference" in self.modules:
            return facts_of(self.metadata, inputs, self.modules["inference"], None, self.refusal)
        if "forward" not in self.modules or "backward" not in self.modules:
            return None
        forward, backward = self.modules["forward"], self.modules["backward"]
        return facts_of(self.metadata, inputs, forward, backward, self.refusal)


def _only_checks(graphs: Iterable[torch.fx.GraphModule]) -> bool:
    """Return whether the only ordered side effects of some graphs are errors that they may raise,
    as those of singular matrices."""
    effects = torch.ops.higher_order.with_effects
    ordered = [
        node.args[1]
        for graph in graphs
        for node in graph.graph.find_nodes(op="call_function", target=effects)
    ]
    return bool(ordered) and set(ordered) <= {torch.ops.aten._linalg_check_errors.default}


def _unwraps(graph: torch.fx.GraphModule) -> bool:
    """Return whether inputs or results of AOTAutograd's graph are parts of tensor subclasses."""
    from torch._functorch._aot_autograd.descriptors import (
        SubclassGetAttrAOTInput,
        SubclassGetAttrAOTOutput,
    )

    inputs = [node.meta.get("desc") for node in graph.graph.find_nodes(op="placeholder")]
    described = (*inputs, *graph.graph.output_node().meta.get("desc", ()))
    kinds = (SubclassGetAttrAOTInput, SubclassGetAttrAOTOutput)
    return any(isinstance(value, kinds) for value in described)


def _reaches(metadata: Any, backward: torch.fx.GraphModule) -> dict[int, tuple[int, ...]]:
    """Return which gradients of inputs depend on the gradient of each result; empty if the inputs
    and results of AOTAutograd's backward graph are not those of the user's function."""
    from torch._functorch._aot_autograd.descriptors import (
        GradAOTOutput,
        IntermediateBaseAOTOutput,
        PlainAOTInput,
        PlainAOTOutput,
        TangentAOTInput,
    )

    nodes, positions = [], []
    bases = metadata.num_mutated_inp_runtime_indices + len(metadata.output_info)
    for node in backward.graph.find_nodes(op="placeholder"):
        described = node.meta.get("desc")
        if not isinstance(described, TangentAOTInput):
            continue
        match described.output:
            case PlainAOTOutput(idx=index):
                positions.append(metadata.num_mutated_inp_runtime_indices + index)
            case IntermediateBaseAOTOutput():
                positions.append(bases)
                bases += 1
            case _:
                return {}
        nodes.append(node)
    inputs: list[Any] = []
    for described in backward.graph.output_node().meta.get("desc", ()):
        source = described.grad_of if isinstance(described, GradAOTOutput) else None
        inputs.append(source.idx if isinstance(source, PlainAOTInput) else None)
    return {
        position: tuple(inputs[k] for k in reached if k < len(inputs) and inputs[k] is not None)
        for position, reached in zip(positions, dependents(nodes, backward), strict=True)
    }


def _user_outputs(graph: torch.fx.GraphModule) -> dict[int, int]:
    """Return which result of AOTAutograd's graph is which result of the user's function."""
    from torch._functorch._aot_autograd.descriptors import PlainAOTOutput

    described = enumerate(graph.graph.output_node().meta.get("desc", ()))
    return {k: output.idx for k, output in described if isinstance(output, PlainAOTOutput)}


def _aliases(outputs: Mapping[int, int]) -> dict[int, int]:
    """Return the input that a result of AOTAutograd's graph is a view of, both by index; `outputs`
    are from `_user_outputs`."""
    context = TracingContext.try_get()
    metadata: Any = None if context is None else context.fw_metadata
    if metadata is None:
        return {}
    infos = {k: metadata.output_info[n] for k, n in outputs.items()}
    return {
        k: len(metadata.tokens) + info.base_idx
        for k, info in infos.items()
        if info.output_type.name == "alias_of_input"
    }
