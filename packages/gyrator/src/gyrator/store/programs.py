"""Programs in memory and in the cache: what a compile leaves, and how it becomes a callable."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache as once
from subprocess import SubprocessError
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, field, frozen
from torch._subclasses.fake_tensor import unset_fake_temporarily

from gyrator.engine.compiled import Boxed
from gyrator.engine.device_graphs import NO_GRAPHS, GraphDevices, replayed
from gyrator.reports.records import GraphRecord
from gyrator.store.manifest import Captured, ProgramManifest
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
"""Among what is being built, by device type: the units of the host program."""


@frozen(eq=False)
class LoadContext:
    """How a loaded program runs; no part of what it is."""

    runner: Callable[[], Runner]
    """Asked when there is a plan to run: without a compiler it warns."""
    timed: bool = False
    """Keep the time of each launch."""
    debug_python: bool = False
    """Execute the text of programs in Python, in place of their plans."""
    memory_asserts: bool = False
    """Execute the text, and follow its memory."""
    fx_compiler: Callable[[Any], Callable[..., Any]] | None = None
    """What takes the graph of an FX host program."""
    loaders: Mapping[str, LibraryLoader] = NO_LOADERS
    """How stored kernels become functions, by device type."""
    cpp: Callable[[], CppHost | None] = lambda: None
    """What calls C++ host programs."""
    graphs: GraphDevices = NO_GRAPHS
    """Devices, by type, whose graphs may stand for programs."""
    memory: GraphMemory = field(factory=GraphMemory)
    """What those graphs share."""


@frozen(eq=False)
class Product:
    """What a compile gives: a program but for its kernels."""

    host_text: str
    """The host program for people."""
    plan: str
    """The host program as it runs: a `StoredPlan`, the Wrapper IR of one that is an FX graph, or
    nothing for one in C++."""
    manifest: ProgramManifest
    lasting: bool = True
    """False for one that is in Python for want of a compiler: it is not for other processes."""
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
    """Number of tensors that it took from the graph module."""

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
    """Wait for the kernels, put the program into the cache, and make it callable.

    `building` has kernels by device type, and under `HOST` a compiled host program.
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
        except CacheError as error:  # it runs all the same
            warn(error.diagnostic.code, error.diagnostic.message, error.diagnostic.help)
    return _load(product, addresses, gm, running)


def load_program(
    cache: Cache, key: CacheKey, gm: torch.fx.GraphModule | None, running: LoadContext
) -> StoredProgram | None:
    """Return the program stored under `key`, or None: no pass and no compiler runs.

    `gm` provides the constants; None for a program without any.
    """
    found = load_artifact(cache, key, running.loaders)
    if found is None:
        return None
    manifest = ProgramManifest.from_json(found.manifest)
    product = Product(found.host_source, found.plan, manifest)
    return _load(product, found.symbols, gm, running)


def _load(
    product: Product,
    addresses: Mapping[str, KernelFunction],
    gm: torch.fx.GraphModule | None,
    running: LoadContext,
) -> StoredProgram:
    manifest = product.manifest
    if any(e.target.startswith(f"{LIBRARY}.") for e in manifest.externs):
        register_ops()  # 0.05 s, of which a program without random numbers pays nothing
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
    called = with_scratch(plan) if manifest.user_kernels else plan
    called = replayed(called, manifest.graph, running.graphs, running.memory)
    called = with_current_device(called, manifest.home)
    text, constants = product.host_text, len(linker.constants)
    return StoredProgram(_boxed(called), manifest, text, timings, constants)


def _linked(
    product: Product, linker: Linker, addresses: Mapping[str, Any], running: LoadContext
) -> tuple[Run, Sequence[tuple[str, Plan, int]]]:
    """Return a host program as a callable of one list, and its launches with their timings."""
    manifest = product.manifest
    if manifest.compiled is not None:
        builder = running.cpp()
        if builder is None:
            raise RuntimeError("a C++ host program was stored that this process cannot call")
        from gyrator.wrappers.cpp import load  # C++ host programs alone need the emitter

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
        from gyrator.wrappers.fx import load_graph  # FX host programs alone need it

        return load_graph(product.plan, linker, running.fx_compiler), linker.launches
    if running.debug_python or running.memory_asserts:
        from gyrator_runtime.host.debug import load_text  # for people who look

        if not running.memory_asserts:
            return load_text(product.host_text, linker), linker.launches
        from gyrator_runtime.host.memory_tracker import TrackingRuntime

        return load_text(product.host_text, linker, runtime=TrackingRuntime), linker.launches
    return linker.link(parse(product.plan)), linker.launches


def _part(plan: Run, facts: Captured | None, running: LoadContext) -> Run:
    """Return a partition that is captured with its device current, whichever the program's is."""
    captured = replayed(plan, facts, running.graphs, running.memory)
    return with_current_device(captured, None if facts is None else facts.index)


def _boxed(plan: Run) -> Boxed:
    def run(args: list[Any]) -> Sequence[Any]:
        return plan(args)  # type: ignore[no-any-return]  # a boxed plan returns a tuple

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
    return run


def attribute(gm: torch.fx.GraphModule, path: str) -> Any:
    """Return what a graph module has under a dotted path; a tensor without its gradients."""
    found: Any = gm
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, torch.Tensor):
        return found
    # A graph may be compiled while AOTAutograd's fake mode is on, which refuses real tensors.
    with unset_fake_temporarily():
        return found.detach()


def _timings(launches: Iterable[tuple[str, Plan, int]]) -> dict[str, tuple[int, int]]:
    """Return calls and total nanoseconds of each kernel."""
    result: dict[str, tuple[int, int]] = {}
    rows: dict[int, list[tuple[int, int, int]]] = {}
    for name, plan, row in launches:
        times = rows.setdefault(id(plan), plan.timings())
        calls, total = result.get(name, (0, 0))
        result[name] = (calls + times[row][0], total + times[row][1])
    return result


@once
def begin_runner(cache: Cache) -> None:
    """Start to build what `host_runner` will ask for, if the cache lacks it; what fails there fails
    again when it is asked for."""
    extension = runner_extension()
    if cache.get(extension.key()) is not None:
        return

    def build() -> None:
        with contextlib.suppress(OSError, SubprocessError, CacheError, ToolchainError):
            extension.built(cache, find_toolchain(os.environ, cache))

    Thread(target=build, name="gyrator-runner").start()


@once
def host_runner(cache: Cache) -> Runner:
    """Return the runner of host programs for this process: native if it can be built. What their
    calls give back stays with the process."""
    keep_freed_memory()
    try:
        toolchain = find_toolchain(os.environ, cache)
    except ToolchainError:
        toolchain = None
    return load_runner(cache, toolchain)
