"""What one compiler of ATen graphs works with, whether it loads programs or makes them."""

from __future__ import annotations

import contextlib
import math
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, field, frozen

from gyrator.config import Config
from gyrator.engine.compiled import NO_DECOMPOSITIONS, Decompositions
from gyrator.engine.parts import PartCompiler
from gyrator.options import Options
from gyrator.reports.logs import log_graph
from gyrator.reports.records import GraphRecord, Observer, Stopwatch
from gyrator.store.content_hash import (
    canonical,
    decompositions_hash,
    passes_hash,
    product_hash,
    rules_hash,
)
from gyrator.store.programs import LoadContext, begin_runner, host_runner
from gyrator.targets import (
    ClosingLoader,
    KernelLoader,
    LoaderContext,
    TargetDefinition,
    WarmLoader,
)
from gyrator.targets.vendor import named
from gyrator_ir.backend import WrapperBackend
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.passes import PassEdits, Tracer
from gyrator_ir.target import Target
from gyrator_runtime.cache import Cache
from gyrator_runtime.graphs import GraphMemory
from gyrator_runtime.native import Runner
from gyrator_runtime.progress import ProgressReporter, SilentProgress, make_progress

if TYPE_CHECKING:
    from gyrator.wrappers.cpp import CppHost
    from gyrator_lowering.table import LoweringTable

_CALLS_A_KERNEL = 8
"""Calls of Dynamo's graph for a kernel that has to be built, at the least."""


@frozen(kw_only=True, eq=False)
class CompilerContext:
    """Options, tables, targets and cache; opened loaders are the only state."""

    options: Options
    config: Config
    rules: LoweringTable | None
    """None for the table that we ship."""
    passes: PassEdits
    targets: Mapping[str, tuple[TargetDefinition, Target]]
    wrappers: Mapping[str, WrapperBackend]
    cache: Cache
    observer: Observer
    loaders: dict[Target, KernelLoader] = field(factory=dict)
    """Those opened so far."""
    decompositions: Decompositions = NO_DECOMPOSITIONS
    parts: PartCompiler | None = None
    """What compiles a part of every graph in our place."""
    keeps_repros: bool = True
    """Whether a graph on which the compiler fails is written to a folder."""
    memory: GraphMemory = field(factory=GraphMemory)
    """What captured graphs share."""
    complete: bool = False
    """Whether kernels are for processes that have no compiler: see `LoaderContext`."""

    @property
    def by_device(self) -> Mapping[str, Target]:
        """The targets by device type. Products of `f32` are rounded to TF32 if torch's are."""
        rounded = torch.get_float32_matmul_precision() != "highest"
        return {
            device: target if rounded else _exact(target)
            for device, (_, target) in self.targets.items()
        }

    @property
    def identity(self) -> dict[str, bytes]:
        """Fields of cache keys that differ where the same graph may become another program."""
        targets = self.by_device
        languages = {d: what.kernels.content_hash for d, (what, _) in self.targets.items()}
        # A program that the language asked for cannot express is in Python.
        hosts = [self.wrapper, self.wrappers["python"]]
        fields = {
            "options": repr(self.options.code_fields()),
            "passes": passes_hash(self.passes),
            "rules": "ours" if self.rules is None else rules_hash(self.rules),
            "decompositions": decompositions_hash(self.decompositions),
            "parts": "" if self.parts is None else self.parts.identity,
            "host language": repr([(h.name, h.content_hash) for h in hosts]),
            "targets": "\n".join(f"{d} {canonical(target)}" for d, target in targets.items()),
            "kernel languages": repr(languages),
            "processor": platform.machine(),
            "compiler": product_hash(),
            "torch": torch.__version__,
        }
        return {name: text.encode() for name, text in fields.items()}

    def machine(self, devices: Iterable[str]) -> bytes:
        """Return bytes that differ where other libraries may be quicker on these devices."""
        known = (self.targets[device][0] for device in sorted(devices) if device in self.targets)
        return "\n\n".join(definition.machine() for definition in known).encode()

    @property
    def wrapper(self) -> WrapperBackend:
        """The host language asked for, or Python where this process cannot run that."""
        if self.options.wrapper == "cpp" and self._cpp() is None:
            return self.wrappers["python"]
        return self.wrappers[self.options.wrapper]

    def runner(self) -> Runner:
        """Return what runs host programs in this process."""
        return host_runner(self.cache)

    def loader(self, target: Target) -> KernelLoader:
        """Return what builds a target's kernels, opened at the first call.

        GyratorError where the target's compiler is missing.
        """
        if target not in self.loaders:
            definition, _ = self.targets[target.device]
            context = LoaderContext(
                cache=self.cache,
                progress=self.progress(),
                threads=self.options.threads,
                seconds=self.seconds,
                complete=self.complete,
            )
            with named(definition, "loader"):
                self.loaders[target] = definition.loader(target, context)
        return self.loaders[target]

    def close_loaders(self) -> None:
        """End the processes that loaders keep for further kernels."""
        for loader in self.loaders.values():
            if isinstance(loader, ClosingLoader):
                loader.close()

    @property
    def seconds(self) -> float:
        """How long one call of a compiler may take."""
        chosen = self.options.compile_seconds
        return chosen if chosen > 0 else math.inf

    def progress(self) -> ProgressReporter:
        """Return what tells the user how far a build is."""
        return make_progress(sys.stderr) if self.options.progress else SilentProgress()

    def stopwatch(self) -> Stopwatch:
        """Return what watches one compile."""
        texts = self.options.pass_texts or bool(self.options.trace_dir)
        return Stopwatch(tracer=Tracer(texts), limit=self.options.stage_seconds or math.inf)

    def prepare(self, devices: Iterable[str], calls: int) -> None:
        """Start the compilers that a graph of so many calls on these devices will need."""
        begin_runner(self.cache)
        for device in devices:
            if device not in self.targets:
                continue
            with contextlib.suppress(GyratorError):  # is raised again where there is a kernel
                loader = self.loader(self.targets[device][1])
                if isinstance(loader, WarmLoader):
                    loader.warm(-(-calls // _CALLS_A_KERNEL))

    def observe(self, record: GraphRecord) -> None:
        """Tell the logs and the observer of a compiled graph."""
        log_graph(record)
        self.observer(record)

    def running(self) -> LoadContext:
        """Return how loaded programs run."""
        loaders = {device: definition.load for device, (definition, _) in self.targets.items()}
        graphs = {
            device: partial(definition.device, target)
            for device, (definition, target) in self.targets.items()
            if self.options.device_graphs
        }
        return LoadContext(
            self.runner,
            timed=self.options.timed,
            debug_python=self.options.debug_python,
            memory_asserts=self.options.memory_asserts,
            fx_compiler=self._fx_compiler(),
            loaders=loaders,
            cpp=self._cpp,
            graphs=graphs,
            memory=self.memory,
        )

    def _fx_compiler(self) -> Callable[..., Any] | None:
        if not self.options.fx_compiler:
            return None
        from gyrator_wrapper_fx.load import find_compiler  # FX host programs alone need it

        return find_compiler(self.options.fx_compiler)

    def _cpp(self) -> CppHost | None:
        from gyrator.wrappers.cpp import cpp_host  # C++ host programs alone need it

        return cpp_host(self.cache)


def _exact(target: Target) -> Target:
    if not target.capabilities.tf32:
        return target
    return evolve(target, capabilities=evolve(target.capabilities, tf32=False))
