"""Every stage in order, on one screen (`Pipeline.build`): an ATen graph to a stored program."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, frozen

from gyrator.autotune import Budget, Memory, Variant, alternatives, tune
from gyrator.compiled import Phase
from gyrator.device_graphs import stored
from gyrator.emission import late_refusals, refusals, units_of
from gyrator.library_choice import LibraryChoice
from gyrator.products import quicker_in_kernels
from gyrator.programs import HOST, StoredProgram, store_program
from gyrator.setting import Setting, Stopwatch
from gyrator.summary import summarise
from gyrator.targets import Building
from gyrator.tracing import Trace
from gyrator.verification import verified
from gyrator.wrappers.cpp import calling, cpp_host, no_cpp
from gyrator_ir.backend import TemplateBackend, WrapperBackend
from gyrator_ir.diagnostics import Diagnostic, RefusedError, UnsupportedError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.host.walk import programs, user_kernels
from gyrator_ir.kernel.nodes import Numerics, TemplateKernel
from gyrator_ir.kernel.verify import verify as verify_kernel
from gyrator_ir.loop.verify import verify as verify_loop
from gyrator_ir.source import Program, TranslationUnit
from gyrator_ir.target import Target
from gyrator_lowering.default import default_table
from gyrator_lowering.fx_passes import PASSES, kernel_products, passes_for, run_passes
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_runtime.cache import CacheKey
from gyrator_runtime.warn import warn
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule


@frozen(eq=False)
class Pipeline:
    """What is done with a graph that the cache does not hold."""

    setting: Setting

    def build(
        self, gm: torch.fx.GraphModule, key: CacheKey, phase: Phase, watch: Stopwatch
    ) -> StoredProgram:
        """Compile the graph and store it under `key`."""
        targets = self.setting.by_device
        rules = default_table() if self.setting.rules is None else self.setting.rules
        trace = Trace.open(self.setting.options.trace_dir, phase)
        trace.write("graph.py", lambda: gm.print_readable(print_output=False))
        budget = Budget(self.setting.options.autotune_seconds)
        called: dict[str, str] = {}
        with watch.stage("lower"):
            self.prepare(gm, budget)
            lowering = self._lowering_options(gm, budget)
        options = self._scheduler_options()
        for final in (False, True):
            with watch.stage("lower"):
                program = verify_loop(lower(gm, evolve(lowering, called=called), targets, rules))
            trace.ir("loop", program)
            with watch.stage("schedule"):
                refuses = self._refused_template
                planned = verify_kernel(schedule(program, options, targets, refuses=refuses))
            trace.ir("kernel", planned)
            with watch.stage("host"):
                host = verify_host(plan_host(planned, options, targets))
            trace.ir("host", host)
            with watch.stage("emit"):
                units, refused = self._emit(host, targets)
            if not refused:
                break
            if final or refused.keys() <= called.keys():
                raise RefusedError(refused)
            called |= {name: f"{why.code}: {why.message}" for name, why in refused.items()}
        building = self._submit(host, units, budget)
        with watch.stage("wrap"):
            language = self._language(units)
            wrapper, calls = self._wrap(language, host, building)
        for unit in (unit for part in units.values() for unit in part):
            trace.text(f"{unit.name}.{unit.language.replace('+', 'p')}", unit.text)
        trace.text("host.cpp" if wrapper.units else "host.py", wrapper.text)
        summary = summarise(gm, planned, host, units) | stored(host)
        if self.setting.options.verify:
            with watch.stage("build"):
                for part in building.values():
                    part.addresses()
            with watch.stage("verify"):
                runs = verified(host, units, building, self.setting, trace.folder)
            for row in summary["kernels"]:
                row["verified"] = runs[row["name"]]
        # A program that had to be in Python for want of a compiler is not for other processes.
        fallen = language.name == "cpp" and not wrapper.units
        with watch.stage("build"):
            return store_program(
                self.setting.cache if self.setting.options.cache and not fallen else None,
                self.setting.runner, key, gm, wrapper, calls, units, building, summary,
                user_kernels(host), self.setting.running(),
            )  # fmt: skip

    def prepare(self, gm: torch.fx.GraphModule, budget: Budget) -> None:
        """Run the passes over an ATen graph that come before lowering, in place."""
        passes = PASSES
        if self._calls_libraries():
            passes = passes_for(self.setting.by_device, LibraryChoice(self.setting, budget))
        run_passes(gm, passes)

    def verify(self, host: HostProgram, folder: Path | None = None) -> dict[str, str]:
        """Build the kernels of a host program and run each beside its IR; see `verified`."""
        units, refused = self._emit(host, self.setting.by_device)
        if refused:
            raise RefusedError(refused)
        building = self._submit(host, units, Budget(self.setting.options.autotune_seconds))
        return verified(host, units, building, self.setting, folder)

    def _calls_libraries(self) -> bool:
        return self.setting.options.extern_kernels != "none"

    def _language(self, devices: Iterable[str]) -> WrapperBackend:
        """Return the host language asked for, or Python where that cannot drive a device's kernels.

        Python drives every device.
        """
        chosen = self.setting.wrapper
        for device in devices:
            _, target = self.setting.targets[device]
            if chosen.name not in target.wrapper_backends:
                warn(
                    "GY-WRAPPER-002",
                    f"kernels of {device} cannot be driven by a host program in {chosen.name!r}; "
                    "this one is in Python",
                    f"{device} takes: {', '.join(target.wrapper_backends)}",
                )
                return self.setting.wrappers["python"]
        return chosen

    def _wrap(
        self, language: WrapperBackend, host: HostProgram, building: dict[str, Building]
    ) -> tuple[Program, Mapping[str, Any]]:
        """Return the host program; the units of a compiled one join what is being built."""
        try:
            emitted = language.emit(host)
        except UnsupportedError as error:
            why = error.diagnostic
            warn(why.code, f"{why.message}; the host program is in Python", why.help)
            return self.setting.wrappers["python"].emit(host), {}
        if not emitted.units:
            return emitted, {}
        builder = cpp_host(self.setting.cache)
        if builder is None or builder.toolchain is None:
            no_cpp("there is no C++ compiler")
            return self.setting.wrappers["python"].emit(host), {}
        setting = self.setting
        building[HOST] = builder.submit(
            emitted.units,
            setting.cache,
            setting.options.threads,
            setting.progress(),
            setting.seconds,
        )
        return emitted, calling(host, emitted)

    def _refused_template(self, kernel: TemplateKernel) -> str:
        """Return why the kernel language of a template's device refuses it, or an empty text."""
        definition, target = self.setting.targets[kernel.device.type]
        if not isinstance(definition.kernels, TemplateBackend):
            return f"kernels in {target.kernel_backend} have no templates"
        said = definition.kernels.refuses_template(kernel, target)
        return "" if said is None else said.message

    def _emit(
        self, host: HostProgram, targets: Mapping[str, Target]
    ) -> tuple[dict[str, tuple[TranslationUnit, ...]], dict[str, Diagnostic]]:
        """Return the text of all kernels by device type, and which FX nodes' kernels are refused.

        Where any is, the text is not complete.
        """
        units: dict[str, tuple[TranslationUnit, ...]] = {}
        refused: dict[str, Diagnostic] = {}
        for part in programs(host):
            for device in dict.fromkeys(k.device.type for k in part.kernels):
                (definition, _), target = self.setting.targets[device], targets[device]
                try:
                    found = refusals(part, definition.kernels, target)
                    made = () if found else units_of(part, definition.kernels, target)
                except UnsupportedError:  # only once it writes the text does the language know
                    found = late_refusals(part, definition.kernels, target)
                    if not found:
                        raise
                    made = ()
                refused |= found
                if part is not host:
                    made = tuple(evolve(u, name=f"{part.name}_{u.name}") for u in made)
                units[device] = (*units.get(device, ()), *made)
        return units, refused

    def _submit(
        self, host: HostProgram, units: Mapping[str, tuple[TranslationUnit, ...]], budget: Budget
    ) -> dict[str, Building]:
        building: dict[str, Building] = {}
        for device, part in units.items():
            definition, target = self.setting.targets[device]
            loader = self.setting.loader(target)
            if not self.setting.options.max_autotune:
                building[device] = loader.submit(part)
                continue
            memory = Memory(self.setting.cache, loader.identity, host)
            part = memory.applied(part)
            if not budget.left:  # products took it
                building[device] = loader.submit(part)
                continue
            variants = [Variant(part, loader.submit(part))]
            others = definition.variants(target)[1:]
            for other in others:
                text = units_of(host, definition.kernels, other)
                variants.append(Variant(text, self.setting.loader(other).submit(text)))
            variants += [Variant(more, loader.submit(more)) for more in alternatives(part)]
            building[device] = variants[0].building
            if len(variants) > 1:
                runner = self.setting.runner()
                interface = definition.device(target)
                chosen = tune(host, variants, interface, device, runner, budget)
                if not others:
                    memory.add(chosen)
                building[device] = chosen
        return building

    def _lowering_options(self, gm: torch.fx.GraphModule, budget: Budget) -> LoweringOptions:
        options = self.setting.options
        generated: frozenset[str] = frozenset()
        if self._calls_libraries():
            generated = kernel_products(gm, self.setting.by_device)
            if options.max_autotune:
                generated |= quicker_in_kernels(gm, self.setting, budget)
        return LoweringOptions(
            fallback_random=options.fallback_random,
            extern_kernels=options.extern_kernels,
            generated=generated,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            strict=options.strict,
        )

    def _scheduler_options(self) -> SchedulerOptions:
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
        )
