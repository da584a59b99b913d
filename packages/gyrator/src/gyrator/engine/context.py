"""The settings of compilers of ATen graphs (options, tables, targets and cache), and the
interface of such a compiler."""

from __future__ import annotations

import contextlib
import math
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from attrs import evolve, field

from gyrator.config import Config
from gyrator.graphs.compiled import (
    NO_DECOMPOSITIONS,
    Boxed,
    CompiledGraph,
    Decompositions,
    PendingGraph,
    Phase,
)
from gyrator.graphs.parts import PartCompiler
from gyrator.options import Options
from gyrator.reports.logs import log_graph
from gyrator.reports.records import GraphRecord, Observer, Stopwatch, ignore_record
from gyrator.store.content_hash import (
    canonical,
    decompositions_hash,
    passes_hash,
    product_hash,
    rules_hash,
)
from gyrator.store.programs import LoadContext, begin_runner, host_runner
from gyrator.targets import ClosingLoader, KernelLoader, LoaderContext, TargetDefinition, WarmLoader
from gyrator.targets.vendor import named
from gyrator_ir.backend import WrapperBackend
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.passes import PassEdits, Tracer
from gyrator_ir.target import Target
from gyrator_runtime.cache import Cache
from gyrator_runtime.graphs import GraphMemory
from gyrator_runtime.native import Runner
from gyrator_runtime.progress import ProgressReporter, make_progress

if TYPE_CHECKING:
    from gyrator.wrappers.cpp import CppHost
    from gyrator_lowering.fx_passes import Libraries
    from gyrator_lowering.table import LoweringTable

_CALLS_A_KERNEL = 8
"""Minimum number of calls in a Dynamo graph per kernel that has to be built."""


@frozen(kw_only=True, eq=False)
class CompilerContext:
    """Options, tables, targets and cache; the open loaders are the only mutable state."""

    compiler: Callable[[CompilerContext], GraphCompiler]
    """Makes the compilers of `trial`."""
    options: Options
    config: Config
    rules: LoweringTable | None
    """None for the default table."""
    passes: PassEdits
    targets: Mapping[str, tuple[TargetDefinition, Target]]
    wrappers: Mapping[str, WrapperBackend]
    cache: Cache
    observer: Observer
    loaders: dict[Target, KernelLoader] = field(factory=dict)
    """The loaders opened so far."""
    decompositions: Decompositions = NO_DECOMPOSITIONS
    parts: PartCompiler | None = None
    """Compiles parts of every graph instead of Gyrator."""
    keeps_repros: bool = True
    """Whether a graph on which the compiler fails is written to disk."""
    memory: GraphMemory = field(factory=GraphMemory)
    """Memory shared by captured graphs."""
    complete: bool = False
    """Whether kernels must load in processes without a compiler: see `LoaderContext`."""

    def trial(self, **options: Any) -> GraphCompiler:
        """Return a compiler for graphs that are timed in this process, with other options. It
        raises what it cannot compile, and reports and measures nothing unless they say so."""
        quiet: dict[str, Any] = {
            "strict": True, "max_autotune": False, "autotune_seconds": 0, "freezing": False,
            "wrapper": "python", "debug_python": False, "memory_asserts": False, "fx_compiler": "",
            "device_graphs": False, "progress": False, "verify": "", "trace_dir": "",
        }  # fmt: skip
        changed = evolve(self.options, **(quiet | options))
        return self.compiler(evolve(self, options=changed, observer=ignore_record))

    @property
    def by_device(self) -> Mapping[str, Target]:
        """The targets by device type. Products of `f32` may use TF32 if torch's may. With
        `numerics="bitwise"`, the targets know which of ATen's bits kernels reproduce."""
        rounded = torch.get_float32_matmul_precision() != "highest"
        targets = {
            device: target if rounded else _exact(target)
            for device, (_, target) in self.targets.items()
        }
        if not self.options.bitwise:
            return targets
        return {
            device: _with_bits(self.targets[device][0], target)
            for device, target in targets.items()
        }

    @property
    def identity(self) -> dict[str, bytes]:
        """The fields of cache keys that determine the program generated for a graph."""
        targets = self.by_device
        languages = {d: target.kernels.content_hash for d, (target, _) in self.targets.items()}
        # Programs that the chosen language cannot express are in Python.
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
        """Return bytes that change whenever the choice of libraries on these devices may change."""
        definitions = (
            self.targets[device][0] for device in sorted(devices) if device in self.targets
        )
        return "\n\n".join(definition.machine() for definition in definitions).encode()

    @property
    def wrapper(self) -> WrapperBackend:
        """The host language of the options, or Python if this process cannot run that."""
        if self.options.wrapper == "cpp" and self._cpp() is None:
            return self.wrappers["python"]
        return self.wrappers[self.options.wrapper]

    def runner(self) -> Runner:
        """Return the runner of host programs in this process."""
        return host_runner(self.cache)

    def runner_is_building(self) -> bool:
        """Return whether `runner` would wait for the build that `prepare` started."""
        thread = begin_runner(self.cache)
        return thread is not None and thread.is_alive()

    def loader(self, target: Target) -> KernelLoader:
        """Return the loader that builds a target's kernels, opened on first use.

        Raises GyratorError if the target's compiler is missing.
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
        """Stop the worker processes of the loaders."""
        for loader in self.loaders.values():
            if isinstance(loader, ClosingLoader):
                loader.close()

    @property
    def seconds(self) -> float:
        """Time limit of one compiler call in seconds; infinite if the option is 0."""
        chosen = self.options.compile_seconds
        return chosen if chosen > 0 else math.inf

    def progress(self) -> ProgressReporter:
        """Return a reporter that shows the user the progress of builds."""
        return make_progress(sys.stderr) if self.options.progress else ProgressReporter()

    def stopwatch(self) -> Stopwatch:
        """Return a stopwatch for one compile."""
        texts = self.options.pass_texts or bool(self.options.trace_dir)
        return Stopwatch(tracer=Tracer(texts), limit=self.options.stage_seconds or math.inf)

    def prepare(self, devices: Iterable[str], calls: int) -> None:
        """Start the compiler processes that a graph with this many calls on these devices will
        need."""
        begin_runner(self.cache)
        for device in devices:
            if device not in self.targets:
                continue
            with contextlib.suppress(GyratorError):  # raised again if there is a kernel to build
                loader = self.loader(self.by_device[device])
                if isinstance(loader, WarmLoader):
                    loader.warm(-(-calls // _CALLS_A_KERNEL))

    def observe(self, record: GraphRecord) -> None:
        """Pass the record of a compiled graph to the logs and the observer."""
        log_graph(record)
        self.observer(record)

    def running(self) -> LoadContext:
        """Return the context in which loaded programs run."""
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
        if not self.options.fx_compiler or self.options.wrapper != "fx":
            return None
        from gyrator_wrapper_fx.load import find_compiler  # only FX host programs need it

        return find_compiler(self.options.fx_compiler)

    def _cpp(self) -> CppHost | None:
        from gyrator.wrappers.cpp import cpp_host  # only C++ host programs need it

        return cpp_host(self.cache)


class GraphCompiler(Protocol):
    """Compiles ATen graphs, or loads them from the cache."""

    @property
    def packs(self) -> bool:
        """Whether constants may be tensors in library-specific packed layouts."""
        ...

    @property
    def context(self) -> CompilerContext:
        """Its settings."""
        ...

    def libraries(self) -> Libraries | None:
        """Return the choice among libraries; None if no library is called."""
        ...

    def compile(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> CompiledGraph:
        """Return a callable for the graph: compiled, or eager with a warning. `watch` has timed
        the earlier steps."""
        ...

    def begin(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> PendingGraph:
        """Start compiling a graph, without waiting for kernel compilers. Errors are raised by
        `finish` of the result."""
        ...

    def find(self, key: str, phase: Phase) -> Boxed | None:
        """Return the program stored under the hex digest of a key, or None."""
        ...


def _exact(target: Target) -> Target:
    if not target.capabilities.tf32:
        return target
    return evolve(target, capabilities=evolve(target.capabilities, tf32=False))


def _with_bits(definition: TargetDefinition, target: Target) -> Target:
    with named(definition, "aten_bits"):
        bits = definition.aten_bits()
    return evolve(target, capabilities=evolve(target.capabilities, aten_bits=bits))
