"""Compiled programs in memory and in the cache: storing, loading and linking."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache as once
from operator import attrgetter
from subprocess import SubprocessError
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, field
from torch._subclasses.fake_tensor import unset_fake_temporarily

from gyrator.engine.device_graphs import NO_GRAPHS, GraphDevices, replayed
from gyrator.graphs.compiled import Boxed, boxed
from gyrator.reports.records import GraphRecord
from gyrator.store.manifest import Captured, ProgramManifest
from gyrator_ir.define import frozen
from gyrator_lowering.torch_bridge.random_ops import LIBRARY, register_ops
from gyrator_runtime.artifact import (
    NO_LOADERS,
    Artifact,
    LibraryLoader,
    load_artifact,
    save_artifact,
)
from gyrator_runtime.cache import Cache, CacheError, CacheKey
from gyrator_runtime.graphs import GraphMemory
from gyrator_runtime.heap import keep_freed_memory
from gyrator_runtime.host import with_current_device
from gyrator_runtime.native import KernelFunction, Plan, Runner, load_runner
from gyrator_runtime.native.load import runner_extension
from gyrator_runtime.plan.link import Linker, Run
from gyrator_runtime.plan.stored import parse
from gyrator_runtime.toolchain import ToolchainError, find_toolchain
from gyrator_runtime.triton.user import UserKernelLauncher, with_scratch
from gyrator_runtime.warn import warn

if TYPE_CHECKING:
    from gyrator.targets import Building
    from gyrator.wrappers.cpp import CppHost

HOST = ""
"""The key of the host program's units in builds by device type."""


@frozen(eq=False)
class LoadContext:
    """How a loaded program runs, independent of its content."""

    runner: Callable[[], Runner]
    """Returns the plan runner on demand; warns if there is no compiler."""
    timed: bool = False
    """Record the time of each launch."""
    debug_python: bool = False
    """Execute the Python text of programs instead of their plans."""
    memory_asserts: bool = False
    """Execute the text, and track its memory."""
    fx_compiler: Callable[[Any], Callable[..., Any]] | None = None
    """The compiler of the graphs of FX host programs."""
    loaders: Mapping[str, LibraryLoader] = NO_LOADERS
    """Loaders of stored kernels, by device type."""
    cpp: Callable[[], CppHost | None] = lambda: None
    """The caller of C++ host programs."""
    graphs: GraphDevices = NO_GRAPHS
    """Devices, by type, on which programs may be captured as graphs."""
    memory: GraphMemory = field(factory=GraphMemory)
    """The memory that those graphs share."""


@frozen(eq=False)
class Product:
    """The output of the compiler: a program without its built kernels."""

    host_text: str
    """The host program as readable text."""
    plan: str
    """The executable form of the host program: a `StoredPlan`, the Wrapper IR for an FX graph, or
    empty for C++."""
    manifest: ProgramManifest
    storable: bool = True
    """False for a program that is in Python only because there is no compiler; it is not stored."""
    levels: Mapping[str, Any] = field(factory=dict)
    """See `GraphRecord.levels`."""


@frozen(eq=False)
class StoredProgram:
    """A compiled graph, ready to run, and the facts stored with it."""

    call: Boxed
    manifest: ProgramManifest
    host_text: str
    timings: Callable[[], dict[str, tuple[int, int]]] | None
    constants: int
    """Number of tensors that it reads from the graph module."""

    def record(
        self, phase: str, cached: bool, seconds: tuple[tuple[str, float], ...]
    ) -> GraphRecord:
        """Describe this program for observers."""
        return GraphRecord(
            name="main",
            phase=phase,
            nodes=self.manifest.nodes,
            kernels=self.manifest.kernels,
            externs=self.manifest.externs,
            partitions=self.manifest.partitions,
            storages=self.manifest.storages,
            launches=self.manifest.launches,
            cached=cached,
            seconds=seconds,
            host_text=self.host_text,
            timings=self.timings,
        )


def store_program(
    cache: Cache | None,
    key: CacheKey,
    product: Product,
    building: Mapping[str, Building],
    gm: torch.fx.GraphModule,
    running: LoadContext,
) -> StoredProgram:
    """Wait for the kernels, store the program in the cache, and make it callable.

    `building` contains the kernel builds by device type, and a compiled host program under `HOST`.
    """
    addresses = {s: a for b in building.values() for s, a in b.addresses().items()}
    if cache is not None:
        libraries = tuple(
            evolve(lib, device=device) for device, b in building.items() for lib in b.libraries()
        )
        manifest = product.manifest.to_json()
        try:
            save_artifact(
                cache, key, Artifact(product.host_text, product.plan, libraries, manifest)
            )
        except CacheError as error:  # the program can run without being stored
            warn(error.diagnostic.code, error.diagnostic.message, error.diagnostic.help)
    return _load(product, addresses, gm, running)


def load_program(
    cache: Cache, key: CacheKey, gm: torch.fx.GraphModule | None, running: LoadContext
) -> StoredProgram | None:
    """Load the program stored under `key`, without running a pass or a compiler; None if there is
    none.

    `gm` provides the constants; None for a program without any.
    """
    artifact = load_artifact(cache, key, running.loaders)
    if artifact is None:
        return None
    manifest = ProgramManifest.from_json(artifact.manifest)
    product = Product(artifact.host_source, artifact.plan, manifest)
    return _load(product, artifact.symbols, gm, running)


def _load(
    product: Product,
    addresses: Mapping[str, KernelFunction],
    gm: torch.fx.GraphModule | None,
    running: LoadContext,
) -> StoredProgram:
    manifest = product.manifest
    if any(e.target.startswith(f"{LIBRARY}.") for e in manifest.externs):
        register_ops()  # takes 0.05 s, which only programs that call these ops pay
    linker = Linker(
        running.runner(),
        {k.name: k.loaded(addresses[k.symbol]) for k in manifest.built},
        {} if gm is None else {key: attribute(gm, key) for key in manifest.constants},
        {
            k.key: UserKernelLauncher(k.source, k.parameters, dict(k.settings))
            for k in manifest.user_kernels
        },
        timed=running.timed,
        device_graph=lambda name, plan: _part(plan, manifest.parts.get(name), running),
    )
    plan, launches = _linked(product, linker, addresses, running)
    timings = (lambda: _timings(launches)) if running.timed else None
    run = with_scratch(plan) if manifest.user_kernels else plan
    run = replayed(run, manifest.graph, running.graphs, running.memory)
    run = with_current_device(run, manifest.home)
    text, constants = product.host_text, len(linker.constants)
    return StoredProgram(_boxed(run), manifest, text, timings, constants)


def _linked(
    product: Product, linker: Linker, addresses: Mapping[str, Any], running: LoadContext
) -> tuple[Run, Sequence[tuple[str, Plan, int]]]:
    """Return a host program as a boxed callable, and its launches for timings."""
    manifest = product.manifest
    if manifest.compiled is not None:
        builder = running.cpp()
        if builder is None:
            raise RuntimeError("this process cannot call the stored C++ host program")
        from gyrator.wrappers.cpp import load  # only C++ host programs need the emitter

        plan: Plan = load(
            builder.caller,
            manifest.compiled,
            addresses,
            linker.kernels,
            tuple(linker.constants[key] for key in manifest.constants),
            linker.user_kernels,
            timed=running.timed,
        )
        return plan, [(name, plan, k) for k, (name, *_) in enumerate(manifest.compiled.kernels)]
    if manifest.language == "fx":
        from gyrator.wrappers.fx import load_graph  # only FX host programs need it

        return load_graph(product.plan, linker, running.fx_compiler), linker.launches
    if running.debug_python or running.memory_asserts:
        from gyrator_runtime.host.debug import load_text  # only for debugging

        if not running.memory_asserts:
            return load_text(product.host_text, linker), linker.launches
        from gyrator_runtime.host.memory_tracker import TrackingRuntime

        return load_text(product.host_text, linker, runtime=TrackingRuntime), linker.launches
    return linker.link(parse(product.plan)), linker.launches


def _part(plan: Run, facts: Captured | None, running: LoadContext) -> Run:
    """Return a partition that is captured, and runs with its device current."""
    captured = replayed(plan, facts, running.graphs, running.memory)
    return with_current_device(captured, None if facts is None else facts.index)


def _boxed(plan: Run) -> Boxed:
    @boxed
    def run(args: list[Any]) -> Sequence[Any]:
        return plan(args)  # type: ignore[no-any-return]  # a boxed plan returns a tuple

    return run


def attribute(gm: torch.fx.GraphModule, path: str) -> Any:
    """Return the attribute of a graph module under a dotted path; tensors are detached."""
    value = attrgetter(path)(gm)
    if not isinstance(value, torch.Tensor):
        return value
    # A graph may be compiled while AOTAutograd's fake mode is active, which rejects real tensors.
    with unset_fake_temporarily():
        return value.detach()


def _timings(launches: Iterable[tuple[str, Plan, int]]) -> dict[str, tuple[int, int]]:
    """Return the calls and total nanoseconds of each kernel."""
    result: dict[str, tuple[int, int]] = {}
    rows: dict[int, list[tuple[int, int, int]]] = {}
    for name, plan, row in launches:
        times = rows.setdefault(id(plan), plan.timings())
        calls, total = result.get(name, (0, 0))
        result[name] = (calls + times[row][0], total + times[row][1])
    return result


@once
def begin_runner(cache: Cache) -> Thread | None:
    """Start building the runner for `host_runner` if it is not in the cache, and return the thread
    that does so; errors are raised again by `host_runner`."""
    extension = runner_extension()
    if cache.get(extension.key()) is not None:
        return None

    def build() -> None:
        with contextlib.suppress(OSError, SubprocessError, CacheError, ToolchainError):
            extension.built(cache, find_toolchain(os.environ, cache))

    thread = Thread(target=build, name="gyrator-runner")
    thread.start()
    return thread


@once
def host_runner(cache: Cache) -> Runner:
    """Return the runner of host programs for this process: native if it can be built. Memory
    that calls free stays with the process."""
    keep_freed_memory()
    try:
        toolchain = find_toolchain(os.environ, cache)
    except ToolchainError:
        toolchain = None
    return load_runner(cache, toolchain)
