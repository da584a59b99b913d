"""From an ATen graph to a callable: every stage in order, on one screen (`Engine.compile`)."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from attrs import define, evolve, field, frozen

from gyrator.autotune import Variant, tune
from gyrator.compiled import Boxed, CompiledGraph, Phase
from gyrator.config import Config
from gyrator.fallback import eager_graph, warn_fallback
from gyrator.graph_key import graph_bytes
from gyrator.options import Options
from gyrator.product import canonical, product_hash, rules_hash
from gyrator.programs import (
    HOST,
    Running,
    StoredProgram,
    host_runner,
    load_program,
    store_program,
)
from gyrator.records import GraphRecord, Observer
from gyrator.summary import summarise
from gyrator.targets import Building, KernelLoader, LoaderContext, TargetDefinition
from gyrator.tracing import Trace
from gyrator.wrappers.cpp import TorchCppWrapper, calling, cpp_host, no_cpp
from gyrator_ir.backend import WrapperBackend
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.verify import verify as verify_host
from gyrator_ir.host.walk import programs
from gyrator_ir.kernel.nodes import Numerics
from gyrator_ir.kernel.verify import verify as verify_kernel
from gyrator_ir.loop.verify import verify as verify_loop
from gyrator_ir.source import Program, TranslationUnit
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes import PASSES, run_passes
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_lowering.table import LoweringTable
from gyrator_runtime.cache import Cache, CacheKey, make_key
from gyrator_runtime.native import Runner
from gyrator_runtime.progress import ProgressReporter, SilentProgress, make_progress
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_wrapper_fx.load import find_compiler


@define
class Stopwatch:
    """Seconds of each named stage."""

    seconds: dict[str, float] = field(factory=dict)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a `with` block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@frozen(kw_only=True, eq=False)
class Engine:
    """The compiler of ATen graphs for one choice of options. Keeps no state but its builders."""

    options: Options
    config: Config
    rules: LoweringTable
    targets: Mapping[str, tuple[TargetDefinition, Target]]
    wrappers: Mapping[str, WrapperBackend]
    cache: Cache
    observer: Observer
    _loaders: dict[Target, KernelLoader] = field(factory=dict)

    def compile(self, gm: torch.fx.GraphModule, phase: Phase) -> CompiledGraph:
        """Return a callable for the graph: compiled, or eager with a warning where that fails."""
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
            stored = load_program(self.cache, self._runner, named, None, self._running())
        if stored is None:
            return None
        self.observer(stored.record(phase, True, tuple(watch.seconds.items())))
        return stored.call

    @property
    def identity(self) -> bytes:
        """Bytes that differ where the same graph may become another program."""
        wrapper = self._wrapper
        parts = [repr(self.options.code_fields()), rules_hash(self.rules), wrapper.content_hash]
        for device, (definition, target) in self.targets.items():
            parts += [device, canonical(target), definition.kernels.content_hash]
        return "\n".join(parts).encode()

    def _compile(self, gm: torch.fx.GraphModule, phase: Phase) -> CompiledGraph:
        self._check_devices(gm)
        _check_negation(gm)
        watch = Stopwatch()
        with watch.stage("key"):
            key = self._key(gm)
        if self.options.cache:
            with watch.stage("load"):
                stored = load_program(self.cache, self._runner, key, gm, self._running())
            if stored is not None:
                return self._finish(gm, key, stored, phase, watch, cached=True)
        stored = self._build(gm, key, phase, watch)
        return self._finish(gm, key, stored, phase, watch, cached=False)

    def _build(
        self, gm: torch.fx.GraphModule, key: CacheKey, phase: Phase, watch: Stopwatch
    ) -> StoredProgram:
        targets = {device: target for device, (_, target) in self.targets.items()}
        trace = Trace.open(self.options.trace_dir, phase)
        trace.write("graph.py", lambda: gm.print_readable(print_output=False))
        with watch.stage("lower"):
            run_passes(gm, PASSES)
            program = verify_loop(lower(gm, self._lowering_options(), targets, self.rules))
        trace.ir("loop", program)
        with watch.stage("schedule"):
            planned = verify_kernel(schedule(program, self._scheduler_options(), targets))
        trace.ir("kernel", planned)
        with watch.stage("host"):
            host = verify_host(plan_host(planned, self._scheduler_options(), targets))
        trace.ir("host", host)
        with watch.stage("emit"):
            units = self._emit(host, targets)
        building = self._submit(host, units)
        with watch.stage("wrap"):
            wrapper, calls = self._wrap(host, building)
        for unit in (unit for part in units.values() for unit in part):
            trace.text(f"{unit.name}.{unit.language.replace('+', 'p')}", unit.text)
        trace.text("host.cpp" if wrapper.units else "host.py", wrapper.text)
        summary = summarise(gm, planned, host, units)
        # A program that had to be in Python for want of a compiler is not for other processes.
        fallen = isinstance(self._wrapper, TorchCppWrapper) and not wrapper.units
        with watch.stage("build"):
            return store_program(
                self.cache if self.options.cache and not fallen else None, self._runner,
                key, gm, wrapper, calls, units, building, summary, self._running(),
            )  # fmt: skip

    @property
    def _wrapper(self) -> WrapperBackend:
        """The host language asked for, or Python where this process cannot run that."""
        chosen = self.wrappers[self.options.wrapper]
        if isinstance(chosen, TorchCppWrapper) and cpp_host(self.cache) is None:
            return self.wrappers["python"]
        return chosen

    def _wrap(
        self, host: HostProgram, building: dict[str, Building]
    ) -> tuple[Program, Mapping[str, Any]]:
        """Return the host program; the units of a compiled one join what is being built."""
        emitted = self._wrapper.emit(host)
        if not emitted.units:
            return emitted, {}
        builder = cpp_host(self.cache)
        if builder is None or builder.toolchain is None:
            no_cpp("there is no C++ compiler")
            return self.wrappers["python"].emit(host), {}
        building[HOST] = builder.submit(
            emitted.units, self.cache, self.options.threads, self._progress()
        )
        return emitted, calling(host, emitted)

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

    def _runner(self) -> Runner:
        return host_runner(self.cache)

    def _emit(
        self, host: HostProgram, targets: Mapping[str, Target]
    ) -> dict[str, tuple[TranslationUnit, ...]]:
        units: dict[str, tuple[TranslationUnit, ...]] = {}
        for part in programs(host):
            for device in dict.fromkeys(k.device.type for k in part.kernels):
                definition, target = self.targets[device]
                kernels = tuple(k for k in part.kernels if k.device.type == device)
                for kernel in kernels:
                    if (refusal := definition.kernels.refuses(kernel, target)) is not None:
                        raise UnsupportedError(refusal)
                made = definition.kernels.emit(kernels, part.facts, part.origins, target)
                if part is not host:
                    made = tuple(evolve(u, name=f"{part.name}_{u.name}") for u in made)
                units[device] = (*units.get(device, ()), *made)
        return units

    def _submit(
        self, host: HostProgram, units: Mapping[str, tuple[TranslationUnit, ...]]
    ) -> dict[str, Building]:
        building: dict[str, Building] = {}
        for device, part in units.items():
            definition, target = self.targets[device]
            building[device] = self._loader(target).submit(part)
            if not self.options.max_autotune:
                continue
            kernels = tuple(k for k in host.kernels if k.device.type == device)
            variants = [Variant(part, building[device])]
            for other in definition.variants(target)[1:]:
                text = definition.kernels.emit(kernels, host.facts, host.origins, other)
                variants.append(Variant(text, self._loader(other).submit(text)))
            if len(variants) > 1:
                runner = host_runner(self.cache)
                interface = definition.device(target)
                building[device] = tune(host, variants, interface, device, runner)
        return building

    def _loader(self, target: Target) -> KernelLoader:
        if target not in self._loaders:
            definition, _ = self.targets[target.device]
            context = LoaderContext(
                cache=self.cache,
                progress=self._progress(),
                threads=self.options.threads,
            )
            self._loaders[target] = definition.loader(target, context)
        return self._loaders[target]

    def _progress(self) -> ProgressReporter:
        return make_progress(sys.stderr) if self.options.progress else SilentProgress()

    def _running(self) -> Running:
        loaders = {device: definition.load for device, (definition, _) in self.targets.items()}
        compiler = find_compiler(self.options.fx_compiler)
        return Running(self.options.timed, compiler, loaders, lambda: cpp_host(self.cache))

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
            "torch": torch.__version__.encode(),
            "product": product_hash().encode(),
        }
        return make_key("programs", fields)

    def _lowering_options(self) -> LoweringOptions:
        return LoweringOptions(fallback_random=self.options.fallback_random)

    def _scheduler_options(self) -> SchedulerOptions:
        options = self.options
        return SchedulerOptions(
            fusion=options.fusion,
            numerics=Numerics(options.numerics),
            size_asserts=options.size_asserts,
            nan_asserts=options.nan_asserts,
            profile=options.profile,
        )


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
