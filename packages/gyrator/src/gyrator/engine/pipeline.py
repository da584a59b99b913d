"""Every stage in order, on one screen (`Stages.product`): from an ATen graph to a program."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from attrs import evolve

from gyrator.autotune.kernels import (
    Budget,
    Choose,
    Memory,
    Variant,
    alternative,
    elsewhere,
    first,
    most_candidates,
    tune,
)
from gyrator.autotune.library import LibraryChoice
from gyrator.engine.context import CompilerContext
from gyrator.engine.emission import Tiling, late_refusals, refusals, tiled_of, units_of
from gyrator.engine.verification import verified
from gyrator.engine.wrapping import host_language, plan_of, wrapped
from gyrator.graphs.compiled import LIVING, Phase
from gyrator.graphs.graph_key import fills_empty
from gyrator.graphs.snapshot import Snapshot
from gyrator.reports.records import Stopwatch
from gyrator.reports.tracing import Trace
from gyrator.repro.script import GRAPH, SCRIPT, script
from gyrator.store.programs import Product, StoredProgram, store_program
from gyrator.store.summary import summarise
from gyrator.targets import Building, PartialBuilding
from gyrator.targets.vendor import VendorBuilding, named, ours
from gyrator_ir.backend import KernelBackend, TemplateBackend, TilingBackend
from gyrator_ir.deadline import NEVER, Deadline, LateError
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic, RefusedError, UnsupportedError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.host.walk import programs
from gyrator_ir.kernel.nodes import Numerics, Schedule, TemplateKernel
from gyrator_ir.kernel.verify import verify as verify_kernel
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.loop.verify import verify as verify_loop
from gyrator_ir.passes import Pipeline, Tracer
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram
from gyrator_lowering.default import default_table
from gyrator_lowering.fx_passes import FX, PadProducts, fx_pipeline
from gyrator_lowering.generated_products import generated_products
from gyrator_lowering.options import NO_CALLS, LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_runtime.build import BuildError
from gyrator_runtime.cache import CacheKey
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule


@frozen(eq=False)
class Stages:
    """The stages that compile a graph that is not in the cache."""

    context: CompilerContext

    def stored(
        self,
        gm: torch.fx.GraphModule,
        key: CacheKey,
        product: Product,
        building: Mapping[str, Building],
        watch: Stopwatch,
    ) -> StoredProgram:
        """Wait for the builds of a graph's program, and store the program under `key`.

        Raises:
            RefusedError: if some of its kernels cannot be built.
        """
        with watch.stage("build"):
            try:
                return store_program(
                    self.context.cache if self.context.options.cache and product.storable else None,
                    key, product, building, gm, self.context.running(),
                )  # fmt: skip
            except BuildError as error:
                nodes = [] if self.context.options.strict else _not_built(gm, product, building)
                if not nodes:
                    raise
                raise RefusedError(dict.fromkeys(nodes, error.diagnostic)) from error

    def product(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch
    ) -> tuple[Product, dict[str, Building]]:
        """Compile the graph; return the program and its builds by device type: see
        `store_program`."""
        trace = Trace.open(self.context.options.trace_dir, phase)
        trace.write(GRAPH, lambda: FX.show(gm))
        trace.write(SCRIPT, lambda: script(self.context.options))
        budget = Budget(self.context.options.autotune_seconds)
        try:
            planned, host, units = self._programs(gm, phase, budget, watch, trace)
        finally:
            trace.passes(watch.tracer.steps)
        building = self._submit(host, units, budget)
        with watch.stage("wrap"):
            language = host_language(self.context, units)
            wrapper, compiled = wrapped(self.context, language, host, building)
            plan = plan_of(wrapper, host)
        for unit in (unit for part in units.values() for unit in part):
            trace.text(f"{unit.name}.{unit.language.replace('+', 'p')}", unit.text)
        trace.text("host.cpp" if wrapper.units else "host.py", wrapper.text)
        runs: dict[str, str] = {}
        if self.context.options.verify:
            with watch.stage("build"):
                for part in building.values():
                    part.addresses()
            with watch.stage("verify"):
                runs = verified(host, units, building, self.context, trace.folder)
        manifest = summarise(gm, planned, host, units, wrapper, compiled, runs)
        fallen = language.name == "cpp" and not wrapper.units
        levels = {"fx": gm, **trace.programs}
        return Product(wrapper.text, plan, manifest, not fallen, levels), building

    def _programs(
        self, gm: torch.fx.GraphModule, phase: Phase, budget: Budget, watch: Stopwatch, trace: Trace
    ) -> tuple[Schedule, HostProgram, dict[str, tuple[TranslationUnit, ...]]]:
        """Return the graph's schedule and host program, and the text of its kernels."""
        options = self.scheduler_options()
        if phase == "backward":
            options = evolve(options, released=_saved(gm))
        called: dict[str, str] = {}
        with watch.stage("lower"):
            passes = self.prepare(gm, budget, watch.tracer)
            lowering = self.lowering_options(gm, budget, passes)
        trace.write("fx_passes.gy", lambda: FX.show(gm))
        for final in (False, True):
            with watch.stage("lower"):
                program = self.lowered(gm, lowering, called, watch.tracer.deadline)
            trace.ir(program)
            with watch.stage("schedule"):
                planned = self.scheduled(program, options, watch.tracer)
            trace.ir(planned)
            with watch.stage("host"):
                host = self.hosted(planned, options)
            trace.ir(host)
            with watch.stage("emit"):
                units, refused = self._emit(host, watch.tracer, trace)
            if refused and (final or refused.keys() <= called.keys()):
                raise RefusedError(refused)
            called |= {name: f"{why.code}: {why.message}" for name, why in refused.items()}
            if not refused:
                if final or not (self.context.options.max_autotune and self._calls_libraries()):
                    break
                from gyrator.autotune.single_ops import faster_in_aten  # rarely used

                faster = faster_in_aten(host, gm, self.context, budget)
                if not faster:
                    break
                called |= faster
        return planned, host, units

    def prepare(
        self, gm: torch.fx.GraphModule, budget: Budget, tracer: Tracer | None = None
    ) -> Pipeline[torch.fx.GraphModule]:
        """Run the passes over an ATen graph before lowering, in place; return them.

        If one raises an error, the graph, which then runs in eager mode, is as it was before.
        """
        pipeline = self.context.passes.apply(self.graph_passes(budget))
        before = Snapshot.of(gm.graph)
        try:
            pipeline.run(gm, tracer)
        except Exception:
            gm.graph = before.restored()
            raise
        return pipeline

    def graph_passes(self, budget: Budget) -> Pipeline[torch.fx.GraphModule]:
        """Return the passes over an ATen graph before lowering, without a user's edits."""
        exact = self.context.options.bitwise
        targets = self.context.by_device
        kernels = {} if exact or self.context.options.batch_invariant else targets
        if exact or not self._calls_libraries():
            return fx_pipeline(exact=exact, kernels=kernels)
        return fx_pipeline(targets, LibraryChoice(self.context, budget), kernels=kernels)

    def lowered(
        self,
        gm: torch.fx.GraphModule,
        lowering: LoweringOptions,
        called: Mapping[str, str] = NO_CALLS,
        deadline: Deadline = NEVER,
    ) -> LoopProgram:
        """Lower a graph after its passes; nodes in `called` are left to ATen."""
        rules = default_table() if self.context.rules is None else self.context.rules
        options = evolve(lowering, called=called)
        return verify_loop(lower(gm, options, self.context.by_device, rules, deadline))

    def scheduled(
        self, program: LoopProgram, options: SchedulerOptions, tracer: Tracer | None = None
    ) -> Schedule:
        """Run the Loop IR passes, fuse the program into kernels, and run the Kernel IR passes."""
        targets = self.context.by_device
        return verify_kernel(schedule(program, options, targets, tracer, self.refused_template))

    def hosted(self, planned: Schedule, options: SchedulerOptions) -> HostProgram:
        """Return the host program of a schedule."""
        return verify_host(plan_host(planned, options, self.context.by_device))

    def kernels(self, host: HostProgram) -> dict[str, tuple[TranslationUnit, ...]]:
        """Return the text of all kernels by device type.

        Raises:
            RefusedError: if a kernel language refuses some.
        """
        units, refused = self._emit(host)
        if refused:
            raise RefusedError(refused)
        return units

    def verify(self, host: HostProgram, folder: Path | None = None) -> dict[str, str]:
        """Build the kernels of a host program and compare each with its IR; see `verified`."""
        units = self.kernels(host)
        building = self._submit(host, units, Budget(self.context.options.autotune_seconds))
        return verified(host, units, building, self.context, folder)

    def _calls_libraries(self) -> bool:
        options = self.context.options
        return options.extern_kernels != "none" and not options.batch_invariant

    def _extern_kernels(self) -> str:
        options = self.context.options
        if options.bitwise:
            return "library"
        return "none" if options.batch_invariant else options.extern_kernels

    def refused_template(self, kernel: TemplateKernel) -> str:
        """Return why the kernel language of a template's device refuses it, or an empty string."""
        definition, target = self.context.targets[kernel.device.type]
        if not isinstance(definition.kernels, TemplateBackend):
            return f"{target.kernel_backend} kernels have no templates"
        refusal = definition.kernels.refuses_template(kernel, target)
        return "" if refusal is None else refusal.message

    def tiled(self, host: HostProgram, tracer: Tracer | None = None) -> list[TileProgram]:
        """Return the tiled kernels of a host program, one program for each part and device whose
        language emits from Tile IR."""
        tiled: list[TileProgram] = []
        tiling = Tiling(self.context.passes, tracer)
        for part in programs(host):
            for device in dict.fromkeys(k.device.type for k in part.kernels):
                definition, target = self.context.targets[device]
                if isinstance(definition.kernels, TilingBackend):
                    tiled.append(tiled_of(part, definition.kernels, target, tiling))
        return tiled

    def printed(self, program: TileProgram) -> tuple[TranslationUnit, ...]:
        """Emit the tiled kernels of one device.

        Raises:
            UnsupportedError: GY-OPT-003, for a device whose language does not emit from Tile IR.
        """
        device = program.device
        entry = self.context.targets.get(device.type)
        if entry is None or not isinstance(entry[0].kernels, TilingBackend):
            message = f"no kernel language of {device} emits tiled kernels"
            raise UnsupportedError.of("GY-OPT-003", message, help="see `gyrator doctor`")
        return entry[0].kernels.emit_tiled(program, entry[1])

    def _emit(
        self, host: HostProgram, tracer: Tracer | None = None, trace: Trace | None = None
    ) -> tuple[dict[str, tuple[TranslationUnit, ...]], dict[str, Diagnostic]]:
        """Return the text of all kernels by device type, and the FX nodes whose kernels are
        refused.

        If any are refused, the text is incomplete.
        """
        trace = Trace() if trace is None else trace
        targets = self.context.by_device
        units: dict[str, tuple[TranslationUnit, ...]] = {}
        refused: dict[str, Diagnostic] = {}
        for part in programs(host):
            devices = dict.fromkeys(k.device.type for k in part.kernels)
            for device in devices:
                (definition, _), target = self.context.targets[device], targets[device]
                if self.context.options.batch_invariant:
                    _check_order(target)
                suffix = [part.name] * (part is not host) + [device] * (len(devices) > 1)
                observe = partial(trace.ir, part="_".join(suffix))
                tiling = Tiling(self.context.passes, tracer, observe)
                if tracer is not None:
                    tracer.deadline.check(f"kernels of {part.name}")
                with named(definition, "emit"):
                    text, nodes = _written(part, definition.kernels, target, tiling)
                refused |= nodes
                if part is not host:
                    text = tuple(evolve(u, name=f"{part.name}_{u.name}") for u in text)
                units[device] = (*units.get(device, ()), *text)
        return units, refused

    def _submit(
        self, host: HostProgram, units: Mapping[str, tuple[TranslationUnit, ...]], budget: Budget
    ) -> dict[str, Building]:
        options = self.context.options
        if options.max_autotune and not options.batch_invariant:
            return {d: self._tuned(d, host, part, budget) for d, part in units.items()}
        loaders = {device: self.context.loader(self.context.targets[device][1]) for device in units}
        building: dict[str, Building] = {}
        for device, part in units.items():
            definition, _ = self.context.targets[device]
            with named(definition, "submit"):
                build = loaders[device].submit(part)
            if not ours(definition):
                build = VendorBuilding(definition, build, part)
            building[device] = build
        return building

    def _tuned(
        self, device: str, host: HostProgram, units: tuple[TranslationUnit, ...], budget: Budget
    ) -> Building:
        """Build the fastest variant of each kernel."""
        definition, target = self.context.targets[device]
        language, loader = definition.kernels, self.context.loader(target)
        tiled = None
        if isinstance(language, TilingBackend):
            tiled = tiled_of(host, language, target, Tiling(self.context.passes))
        by = (loader.identity, language.content_hash, target.arch, definition.machine())
        memory = Memory(self.context.cache, repr(by).encode(), host)
        results = {} if tiled is None else memory.winners(tiled)

        def variant(of: Target, choose: Choose, more: Sequence[TranslationUnit] = ()) -> Variant:
            written: list[TileProgram] = []

            def chosen(program: TileProgram) -> TileProgram:
                written.append(choose(program))
                return written[0]

            text = units_of(host, language, of, Tiling(self.context.passes, choose=chosen))
            own = {u.name for u in text}
            text = (*text, *(u for u in more if u.name not in own))  # the units of subprograms
            program = written[0] if written else None
            return Variant(of.arch, program, text, self.context.loader(of).submit(text))

        variants = [variant(target, first(results, target.arch), units)]
        if budget.left:  # measuring matrix products may have used it up
            others = definition.variants(target)[1:]
            variants += [variant(other, elsewhere(results, other.arch)) for other in others]
            count = 0 if tiled is None else most_candidates(tiled, results)
            variants += [variant(target, alternative(results, n)) for n in range(1, count)]
        variants = [v for v in variants if v.units]
        if len(variants) == 1:
            return variants[0].building
        runner, interface = self.context.runner(), definition.device(target)
        tuned = tune(host, variants, interface, device, runner, budget, results)
        if tiled is not None:
            memory.add(tiled, tuned.measured)
        return tuned

    def lowering_options(
        self, gm: torch.fx.GraphModule, budget: Budget, passes: Pipeline[torch.fx.GraphModule]
    ) -> LoweringOptions:
        """Return the lowering options for a graph over which these passes have run."""
        options = self.context.options
        generated: frozenset[str] = frozenset()
        if self._calls_libraries() and not options.bitwise:
            padding = passes.table.get(PadProducts.name)
            if isinstance(padding, PadProducts):
                generated = padding.left_to_kernels(gm)
            generated |= generated_products(gm, self.context.by_device)
            if options.max_autotune:
                from gyrator.autotune.matmuls import faster_in_kernels  # rarely used

                generated |= faster_in_kernels(gm, self.context, budget)
        return LoweringOptions(
            fallback_random=options.fallback_random,
            extern_kernels=self._extern_kernels(),
            generated=generated,
            numerics=Numerics(options.numerics),
            deterministic=(
                options.bitwise
                or options.batch_invariant
                or torch.are_deterministic_algorithms_enabled()
            ),
            fills_empty=fills_empty(),
            strict=options.strict,
        )

    def scheduler_options(self) -> SchedulerOptions:
        """Return the scheduler options, which are the same for every graph."""
        options = self.context.options
        return SchedulerOptions(
            fusion=options.fusion,
            inline=options.inline,
            device_graphs=options.device_graphs,
            graph_parts=options.wrapper == "python",
            numerics=Numerics(options.numerics),
            size_asserts=options.size_asserts,
            nan_asserts=options.nan_asserts,
            profile=options.profile,
            passes=self.context.passes,
        )


def _saved(gm: torch.fx.GraphModule) -> tuple[str, ...]:
    """Return the tensors that a forward pass computed and saved for this backward pass. Those that
    it was given itself, its results, and the gradients of these are the caller's."""
    parameters = gm.graph.find_nodes(op="placeholder")
    tensors = (n.name for n in parameters if isinstance(n.meta.get("val"), torch.Tensor))
    return tuple(n for n in tensors if not n.startswith(("primals_", "tangents_", LIVING)))


def _written(
    part: HostProgram, language: KernelBackend, target: Target, tiling: Tiling
) -> tuple[tuple[TranslationUnit, ...], dict[str, Diagnostic]]:
    """Emit a program's kernels, or return the nodes whose kernels the language refuses."""
    try:
        refused = refusals(part, language, target)
        return (() if refused else units_of(part, language, target, tiling)), refused
    except LateError:
        raise
    except UnsupportedError:  # the language refuses some kernels only on emission
        refused = late_refusals(part, language, target, tiling)
        if not refused:
            raise
        return (), refused


def _not_built(
    gm: torch.fx.GraphModule, product: Product, building: Mapping[str, Building]
) -> list[str]:
    """Return the graph's nodes whose kernels cannot be built; none if no kernel can."""
    partial = [build for build in building.values() if isinstance(build, PartialBuilding)]
    if len(partial) < len(building):
        return []
    symbols = {symbol for build in partial for symbol in build.within(math.inf)}
    lost = {k.name for k in product.manifest.built if k.symbol not in symbols}
    if len(lost) == len(product.manifest.built):
        return []
    nodes = {node for k in product.manifest.kernels if k.name in lost for node in k.nodes}
    return [node.name for node in gm.graph.nodes if node.name in nodes]


def _check_order(target: Target) -> None:
    """Raise UnsupportedError if a kernel's accumulation order may depend on the number of rows."""
    if not target.capabilities.ordered_reductions:
        raise UnsupportedError.of(
            "GY-OPTION-004",
            f"{target.kernel_backend} kernels do not support numerics='batch_invariant'",
            help="the mode needs a target with `ordered_reductions`, such as the CPU's",
        )
