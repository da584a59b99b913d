"""Every stage in order, on one screen (`Stages.product`): from an ATen graph to a program."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from attrs import evolve, frozen

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
from gyrator.autotune.matmuls import faster_in_kernels
from gyrator.engine.compiled import Phase
from gyrator.engine.context import CompilerContext
from gyrator.engine.emission import Tiling, late_refusals, refusals, tiled_of, units_of
from gyrator.engine.verification import verified
from gyrator.engine.wrapping import host_language, plan_of, wrapped
from gyrator.frontend.graph_key import fills_empty
from gyrator.reports.records import Stopwatch
from gyrator.reports.tracing import Trace
from gyrator.repro.script import GRAPH, SCRIPT, script
from gyrator.store.programs import Product, StoredProgram, store_program
from gyrator.store.summary import summarise
from gyrator.targets import Building, PartialBuilding
from gyrator.targets.vendor import VendorBuilding, named, ours
from gyrator_ir.backend import KernelBackend, TemplateBackend, TilingBackend
from gyrator_ir.deadline import NEVER, Deadline, LateError
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
from gyrator_lowering.options import NO_CALLS, LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_lowering.thin_products import thin_products
from gyrator_runtime.build import BuildError
from gyrator_runtime.cache import CacheKey
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule


@frozen(eq=False)
class Stages:
    """What is done with a graph that the cache does not hold."""

    setting: CompilerContext

    def stored(
        self,
        gm: torch.fx.GraphModule,
        key: CacheKey,
        product: Product,
        building: Mapping[str, Building],
        watch: Stopwatch,
    ) -> StoredProgram:
        """Wait for what is being built for a graph's program, and store it under `key`.

        Raises:
            RefusedError: where some of its kernels cannot be built.
        """
        with watch.stage("build"):
            try:
                return store_program(
                    self.setting.cache if self.setting.options.cache and product.lasting else None,
                    key, product, building, gm, self.setting.running(),
                )  # fmt: skip
            except BuildError as error:
                nodes = [] if self.setting.options.strict else _not_built(gm, product, building)
                if not nodes:
                    raise
                raise RefusedError(dict.fromkeys(nodes, error.diagnostic)) from error

    def product(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch
    ) -> tuple[Product, dict[str, Building]]:
        """Compile the graph; return the program, and what is being built for it: see
        `store_program`."""
        trace = Trace.open(self.setting.options.trace_dir, phase)
        trace.write(GRAPH, lambda: FX.show(gm))
        trace.write(SCRIPT, lambda: script(self.setting.options))
        budget = Budget(self.setting.options.autotune_seconds)
        try:
            planned, host, units = self._programs(gm, budget, watch, trace)
        finally:
            trace.passes(watch.tracer.steps)
        building = self._submit(host, units, budget)
        with watch.stage("wrap"):
            language = host_language(self.setting, units)
            wrapper, compiled = wrapped(self.setting, language, host, building)
            plan = plan_of(wrapper, host)
        for unit in (unit for part in units.values() for unit in part):
            trace.text(f"{unit.name}.{unit.language.replace('+', 'p')}", unit.text)
        trace.text("host.cpp" if wrapper.units else "host.py", wrapper.text)
        runs: dict[str, str] = {}
        if self.setting.options.verify:
            with watch.stage("build"):
                for part in building.values():
                    part.addresses()
            with watch.stage("verify"):
                runs = verified(host, units, building, self.setting, trace.folder)
        manifest = summarise(gm, planned, host, units, wrapper, compiled, runs)
        fallen = language.name == "cpp" and not wrapper.units
        levels = {"fx": gm, **trace.programs}
        return Product(wrapper.text, plan, manifest, not fallen, levels), building

    def _programs(
        self, gm: torch.fx.GraphModule, budget: Budget, watch: Stopwatch, trace: Trace
    ) -> tuple[Schedule, HostProgram, dict[str, tuple[TranslationUnit, ...]]]:
        """Return what the levels make of the graph, and the text of the kernels."""
        targets = self.setting.by_device
        options = self.scheduler_options()
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
                units, refused = self._emit(host, targets, watch.tracer, trace)
            if not refused:
                break
            if final or refused.keys() <= called.keys():
                raise RefusedError(refused)
            called |= {name: f"{why.code}: {why.message}" for name, why in refused.items()}
        return planned, host, units

    def prepare(
        self, gm: torch.fx.GraphModule, budget: Budget, tracer: Tracer | None = None
    ) -> Pipeline[torch.fx.GraphModule]:
        """Run the passes over an ATen graph that come before lowering, in place; return them."""
        pipeline = self.setting.passes.apply(self.graph_passes(budget))
        pipeline.run(gm, tracer)
        return pipeline

    def graph_passes(self, budget: Budget) -> Pipeline[torch.fx.GraphModule]:
        """Return the passes over an ATen graph before lowering, without a user's edits."""
        exact = self.setting.options.bitwise
        here = self.setting.by_device
        kernels = {} if exact or self.setting.options.batch_invariant else here
        if exact or not self._calls_libraries():
            return fx_pipeline(exact=exact, kernels=kernels)
        return fx_pipeline(here, LibraryChoice(self.setting, budget), kernels=kernels)

    def lowered(
        self,
        gm: torch.fx.GraphModule,
        lowering: LoweringOptions,
        called: Mapping[str, str] = NO_CALLS,
        deadline: Deadline = NEVER,
    ) -> LoopProgram:
        """Lower a graph on which the passes have run; nodes in `called` are left to ATen."""
        rules = default_table() if self.setting.rules is None else self.setting.rules
        options = evolve(lowering, called=called)
        return verify_loop(lower(gm, options, self.setting.by_device, rules, deadline))

    def scheduled(
        self, program: LoopProgram, options: SchedulerOptions, tracer: Tracer | None = None
    ) -> Schedule:
        """Run the passes over a program, make kernels of it, and run the passes over those."""
        targets = self.setting.by_device
        return verify_kernel(schedule(program, options, targets, tracer, self.refused_template))

    def hosted(self, planned: Schedule, options: SchedulerOptions) -> HostProgram:
        """Return the host program."""
        return verify_host(plan_host(planned, options, self.setting.by_device))

    def kernels(self, host: HostProgram) -> dict[str, tuple[TranslationUnit, ...]]:
        """Return the text of all kernels by device type.

        Raises:
            RefusedError: where a kernel language refuses some.
        """
        units, refused = self._emit(host, self.setting.by_device)
        if refused:
            raise RefusedError(refused)
        return units

    def verify(self, host: HostProgram, folder: Path | None = None) -> dict[str, str]:
        """Build the kernels of a host program and run each beside its IR; see `verified`."""
        units = self.kernels(host)
        building = self._submit(host, units, Budget(self.setting.options.autotune_seconds))
        return verified(host, units, building, self.setting, folder)

    def _calls_libraries(self) -> bool:
        options = self.setting.options
        return options.extern_kernels != "none" and not options.batch_invariant

    def _extern_kernels(self) -> str:
        options = self.setting.options
        if options.bitwise:
            return "library"
        return "none" if options.batch_invariant else options.extern_kernels

    def refused_template(self, kernel: TemplateKernel) -> str:
        """Return why the kernel language of a template's device refuses it, or an empty text."""
        definition, target = self.setting.targets[kernel.device.type]
        if not isinstance(definition.kernels, TemplateBackend):
            return f"kernels in {target.kernel_backend} have no templates"
        said = definition.kernels.refuses_template(kernel, target)
        return "" if said is None else said.message

    def tiled(self, host: HostProgram, tracer: Tracer | None = None) -> list[TileProgram]:
        """Return the kernels of a host program as the passes tile them, a program for each part and
        device whose language prints Tile IR."""
        found: list[TileProgram] = []
        tiling = Tiling(self.setting.passes, tracer)
        for part in programs(host):
            for device in dict.fromkeys(k.device.type for k in part.kernels):
                definition, target = self.setting.targets[device]
                if isinstance(definition.kernels, TilingBackend):
                    found.append(tiled_of(part, definition.kernels, target, tiling))
        return found

    def printed(self, program: TileProgram) -> tuple[TranslationUnit, ...]:
        """Return the text of tiled kernels of one device.

        Raises:
            UnsupportedError: GY-OPT-003, for a device whose language does not print Tile IR.
        """
        device = program.device
        found = self.setting.targets.get(device.type)
        if found is None or not isinstance(found[0].kernels, TilingBackend):
            said = f"no kernel language of {device} prints tiled kernels"
            raise UnsupportedError.of("GY-OPT-003", said, help="see `gyrator doctor`")
        return found[0].kernels.emit_tiled(program, found[1])

    def _emit(
        self,
        host: HostProgram,
        targets: Mapping[str, Target],
        tracer: Tracer | None = None,
        trace: Trace | None = None,
    ) -> tuple[dict[str, tuple[TranslationUnit, ...]], dict[str, Diagnostic]]:
        """Return the text of all kernels by device type, and which FX nodes' kernels are refused.

        Where any is, the text is not complete.
        """
        trace = Trace() if trace is None else trace
        units: dict[str, tuple[TranslationUnit, ...]] = {}
        refused: dict[str, Diagnostic] = {}
        for part in programs(host):
            devices = dict.fromkeys(k.device.type for k in part.kernels)
            for device in devices:
                (definition, _), target = self.setting.targets[device], targets[device]
                if self.setting.options.batch_invariant:
                    _check_order(target)
                place = [part.name] * (part is not host) + [device] * (len(devices) > 1)
                seen = partial(trace.ir, part="_".join(place))
                tiling = Tiling(self.setting.passes, tracer, seen)
                if tracer is not None:
                    tracer.deadline.check(f"kernels of {part.name}")
                with named(definition, "emit"):
                    made, found = _written(part, definition.kernels, target, tiling)
                refused |= found
                if part is not host:
                    made = tuple(evolve(u, name=f"{part.name}_{u.name}") for u in made)
                units[device] = (*units.get(device, ()), *made)
        return units, refused

    def _submit(
        self, host: HostProgram, units: Mapping[str, tuple[TranslationUnit, ...]], budget: Budget
    ) -> dict[str, Building]:
        options = self.setting.options
        if options.max_autotune and not options.batch_invariant:
            return {d: self._tuned(d, host, part, budget) for d, part in units.items()}
        loaders = {device: self.setting.loader(self.setting.targets[device][1]) for device in units}
        building: dict[str, Building] = {}
        for device, part in units.items():
            definition, _ = self.setting.targets[device]
            with named(definition, "submit"):
                made = loaders[device].submit(part)
            building[device] = made if ours(definition) else VendorBuilding(definition, made, part)
        return building

    def _tuned(
        self, device: str, host: HostProgram, units: tuple[TranslationUnit, ...], budget: Budget
    ) -> Building:
        """Return what is built of the quickest text of each kernel."""
        definition, target = self.setting.targets[device]
        language, loader = definition.kernels, self.setting.loader(target)
        tiled = None
        if isinstance(language, TilingBackend):
            tiled = tiled_of(host, language, target, Tiling(self.setting.passes))
        by = (loader.identity, language.content_hash, target.arch, definition.machine())
        memory = Memory(self.setting.cache, repr(by).encode(), host)
        known = {} if tiled is None else memory.known(tiled)

        def variant(of: Target, choose: Choose, more: Sequence[TranslationUnit] = ()) -> Variant:
            written: list[TileProgram] = []

            def chosen(program: TileProgram) -> TileProgram:
                written.append(choose(program))
                return written[0]

            text = units_of(host, language, of, Tiling(self.setting.passes, choose=chosen))
            own = {u.name for u in text}
            text = (*text, *(u for u in more if u.name not in own))  # those of subprograms
            program = written[0] if written else None
            return Variant(of.arch, program, text, self.setting.loader(of).submit(text))

        variants = [variant(target, first(known, target.arch), units)]
        if budget.left:  # products may have taken it
            others = definition.variants(target)[1:]
            variants += [variant(other, elsewhere(known, other.arch)) for other in others]
            count = 0 if tiled is None else most_candidates(tiled, known)
            variants += [variant(target, alternative(known, n)) for n in range(1, count)]
        variants = [v for v in variants if v.units]
        if len(variants) == 1:
            return variants[0].building
        runner, interface = self.setting.runner(), definition.device(target)
        found = tune(host, variants, interface, device, runner, budget, known)
        if tiled is not None:
            memory.add(tiled, found.measured)
        return found

    def lowering_options(
        self, gm: torch.fx.GraphModule, budget: Budget, passes: Pipeline[torch.fx.GraphModule]
    ) -> LoweringOptions:
        """Return lowering's options for a graph on which these passes have run."""
        options = self.setting.options
        generated: frozenset[str] = frozenset()
        if self._calls_libraries() and not options.bitwise:
            padding = passes.table.get(PadProducts.name)
            if isinstance(padding, PadProducts):
                generated = padding.left_to_kernels(gm)
            generated |= thin_products(gm, self.setting.by_device)
            if options.max_autotune:
                generated |= faster_in_kernels(gm, self.setting, budget)
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
        """Return the scheduler's options, which hold for every graph."""
        options = self.setting.options
        return SchedulerOptions(
            fusion=options.fusion,
            inline=options.inline,
            device_graphs=options.device_graphs,
            graph_parts=options.wrapper == "python",
            numerics=Numerics(options.numerics),
            size_asserts=options.size_asserts,
            nan_asserts=options.nan_asserts,
            profile=options.profile,
            passes=self.setting.passes,
        )


def _written(
    part: HostProgram, language: KernelBackend, target: Target, tiling: Tiling
) -> tuple[tuple[TranslationUnit, ...], dict[str, Diagnostic]]:
    """Return the text of a program's kernels, or which nodes' kernels the language refuses."""
    try:
        found = refusals(part, language, target)
        return (() if found else units_of(part, language, target, tiling)), found
    except LateError:
        raise
    except UnsupportedError:  # only once it writes the text does the language know
        found = late_refusals(part, language, target, tiling)
        if not found:
            raise
        return (), found


def _not_built(
    gm: torch.fx.GraphModule, product: Product, building: Mapping[str, Building]
) -> list[str]:
    """Return the graph's nodes whose kernels cannot be built; none where no kernel can."""
    partial = [made for made in building.values() if isinstance(made, PartialBuilding)]
    if len(partial) < len(building):
        return []
    found = {symbol for made in partial for symbol in made.within(math.inf)}
    lost = {k.name for k in product.manifest.built if k.symbol not in found}
    if len(lost) == len(product.manifest.built):
        return []
    nodes = {node for k in product.manifest.kernels if k.name in lost for node in k.nodes}
    return [node.name for node in gm.graph.nodes if node.name in nodes]


def _check_order(target: Target) -> None:
    """Raise UnsupportedError where the number of rows may change the order of a kernel's sums."""
    if not target.capabilities.ordered_reductions:
        raise UnsupportedError.of(
            "GY-OPTION-004",
            f"kernels in {target.kernel_backend} do not keep numerics='batch_invariant'",
            help="the mode needs a target that has `ordered_reductions`, as the CPU's has",
        )
