"""Programs in memory and in the cache: what a compile leaves, and how it becomes a callable."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache as once
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, field, frozen
from torch._subclasses.fake_tensor import unset_fake_temporarily

from gyrator.compiled import Boxed
from gyrator.device_graphs import NO_GRAPHS, GraphDevices, replayed
from gyrator.records import GraphRecord, extern_records, kernel_records, partition_records
from gyrator_lowering.random_ops import LIBRARY, register_ops
from gyrator_runtime.artifact import (
    NO_LOADERS,
    Artifact,
    LibraryLoader,
    load_artifact,
    save_artifact,
)
from gyrator_runtime.cache import Cache, CacheError, CacheKey
from gyrator_runtime.graphs import GraphMemory
from gyrator_runtime.host import at_home
from gyrator_runtime.native import KernelFunction, Plan, Runner, load_runner
from gyrator_runtime.record import HostRuntime, LoadedKernel
from gyrator_runtime.toolchain import ToolchainError, find_toolchain
from gyrator_runtime.triton.user import UserKernelLauncher, with_scratch
from gyrator_runtime.warn import warn

if TYPE_CHECKING:
    from gyrator.targets import Building
    from gyrator.wrappers.cpp import Checks, CppHost
    from gyrator_ir.loop.nodes import UserKernel
    from gyrator_ir.source import Program, TranslationUnit

HOST = ""
"""Among what is being built, by device type: the units of the host program."""
_EXCEPTIONS: Mapping[str, type[BaseException]] = {
    kind.__name__: kind for kind in (IndexError, RuntimeError)
}
"""By the values of `gyrator_ir.source.Failure`."""


@frozen(eq=False)
class Running:
    """How a loaded program runs; no part of what it is."""

    timed: bool = False
    """Keep the time of each launch."""
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
class StoredProgram:
    """A compiled graph, ready to run, and the facts stored with it."""

    call: Boxed
    summary: Mapping[str, Any]
    host_text: str
    timings: Callable[[], dict[str, tuple[int, int]]] | None
    constants: int
    """Number of tensors that it took from the graph module."""

    def record(
        self, phase: str, cached: bool, seconds: tuple[tuple[str, float], ...]
    ) -> GraphRecord:
        """Describe this program for observers."""
        return GraphRecord(
            name=self.summary.get("name", "main"),
            phase=phase,
            nodes=self.summary["nodes"],
            kernels=kernel_records(self.summary),
            externs=extern_records(self.summary),
            partitions=partition_records(self.summary),
            launches=self.summary["launches"],
            cached=cached,
            seconds=seconds,
            host_text=self.host_text,
            timings=self.timings,
        )


def store_program(
    cache: Cache | None,
    runner: Callable[[], Runner],
    key: CacheKey,
    gm: torch.fx.GraphModule,
    wrapper: Program,
    calls: Mapping[str, Any],
    units: Mapping[str, Sequence[TranslationUnit]],
    building: Mapping[str, Building],
    summary: Mapping[str, Any],
    user_kernels: Sequence[UserKernel],
    running: Running,
) -> StoredProgram:
    """Wait for the kernels, put the program into the cache, and make it callable.

    `runner` is asked for when there is a program to run: without a compiler it warns. `calls` says
    how a compiled host program is called, which `building` has under `HOST`.
    """
    addresses = {s: a for b in building.values() for s, a in b.addresses().items()}
    metadata = {
        "summary": dict(summary),
        "kernels": _kernel_rows(units),
        "constants": list(wrapper.constants),
        "entry": wrapper.entry,
        "calls": dict(calls),
        "user_kernels": [[k.key, k.source, k.parameters, k.settings] for k in user_kernels],
    }
    if cache is not None:
        libraries = tuple(
            evolve(lib, device=device) for device, b in building.items() for lib in b.libraries()
        )
        try:
            save_artifact(cache, key, Artifact(wrapper.text, libraries, metadata))
        except CacheError as error:  # it runs all the same
            warn(error.diagnostic.code, error.diagnostic.message, error.diagnostic.help)
    return _load(wrapper.text, addresses, metadata, runner, gm, running)


def load_program(
    cache: Cache,
    runner: Callable[[], Runner],
    key: CacheKey,
    gm: torch.fx.GraphModule | None,
    running: Running,
) -> StoredProgram | None:
    """Return the program stored under `key`, or None: no pass and no compiler runs.

    `gm` provides the constants; None for a program without any.
    """
    found = load_artifact(cache, key, running.loaders)
    if found is None:
        return None
    return _load(found.host_source, found.symbols, found.metadata, runner, gm, running)


def _load(
    text: str,
    addresses: Mapping[str, KernelFunction],
    metadata: Mapping[str, Any],
    runner: Callable[[], Runner],
    gm: torch.fx.GraphModule | None,
    running: Running,
) -> StoredProgram:
    kernels = {
        row["name"]: LoadedKernel(row["name"], addresses[row["symbol"]], _checks(row))
        for row in metadata["kernels"]
    }
    if any(row["target"].startswith(f"{LIBRARY}.") for row in metadata["summary"]["externs"]):
        register_ops()  # 0.05 s, of which a program without random numbers pays nothing
    keys = metadata["constants"]
    constants = {} if gm is None else {key: _attribute(gm, key) for key in keys}
    users = _launchers(metadata["user_kernels"])
    parts = metadata["summary"]["parts"]
    if metadata["calls"]:
        plan = _compiled(metadata, addresses, constants, users, running)
        names = [name for name, *_ in metadata["calls"]["kernels"]]
        rows = [(name, plan, row) for row, name in enumerate(names)]
    else:
        namespace: dict[str, Any] = {}
        exec(compile(text, "<gyrator host program>", "exec"), namespace)
        rt = HostRuntime(
            runner(),
            kernels,
            constants,
            users,
            running.fx_compiler,
            running.timed,
            device_graph=lambda name, plan: _part(plan, parts.get(name), running),
        )
        plan = namespace[metadata["entry"]](rt).plan
        rows = rt.launches
    timings = (lambda: _timings(rows)) if running.timed else None
    called: Callable[[list[Any]], Any] = with_scratch(plan) if users else plan
    called = _replayed(called, metadata["summary"]["graph"], running)
    called = at_home(called, metadata["summary"]["home"])
    return StoredProgram(_boxed(called), metadata["summary"], text, timings, len(constants))


def _compiled(
    metadata: Mapping[str, Any],
    addresses: Mapping[str, Any],
    constants: Mapping[str, torch.Tensor],
    users: Mapping[str, Callable[..., None]],
    running: Running,
) -> Plan:
    builder = running.cpp()
    if builder is None:
        raise RuntimeError("a C++ host program was stored that this process cannot call")
    from gyrator.wrappers.cpp import load as load_cpp  # C++ host programs alone need the emitter

    plan: Plan = load_cpp(
        builder.caller,
        metadata["calls"],
        addresses,
        {row["name"]: (addresses[row["symbol"]], _checks(row)) for row in metadata["kernels"]},
        tuple(constants[key] for key in metadata["constants"]),
        users,
        timed=running.timed,
    )
    return plan


def _replayed(
    plan: Callable[[list[Any]], Any], facts: Mapping[str, Any] | None, running: Running
) -> Callable[[list[Any]], Any]:
    return replayed(plan, facts, running.graphs, running.memory)


def _part(
    plan: Callable[[list[Any]], Any], facts: Mapping[str, Any] | None, running: Running
) -> Callable[[list[Any]], Any]:
    """Return a partition that is captured with its device current, whichever the program's is."""
    return at_home(_replayed(plan, facts, running), None if facts is None else facts["index"])


def _launchers(rows: Sequence[Any]) -> dict[str, UserKernelLauncher]:
    return {
        key: UserKernelLauncher(source, tuple(parameters), dict(settings))
        for key, source, parameters, settings in rows
    }


def _checks(row: Mapping[str, Any]) -> Checks:
    return tuple((_EXCEPTIONS[f], message) for f, message in row["checks"])


def _boxed(plan: Callable[[list[Any]], Any]) -> Boxed:
    def run(args: list[Any]) -> Sequence[Any]:
        return plan(args)  # type: ignore[no-any-return]  # a boxed plan returns a tuple

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
    return run


def _kernel_rows(units: Mapping[str, Sequence[TranslationUnit]]) -> list[dict[str, Any]]:
    return [
        {
            "name": k.kernel,
            "symbol": k.symbol,
            "checks": [[c.failure, c.message] for c in sorted(k.checks, key=lambda c: c.code)],
        }
        for part in units.values()
        for u in part
        for k in u.kernels
    ]


def _attribute(gm: torch.fx.GraphModule, path: str) -> Any:
    found: Any = gm
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, torch.Tensor):
        return found
    # A graph may be compiled while AOTAutograd's fake mode is on, which refuses real tensors.
    with unset_fake_temporarily():
        return found.detach()


def _timings(launches: Sequence[tuple[str, Plan, int]]) -> dict[str, tuple[int, int]]:
    """Return calls and total nanoseconds of each kernel."""
    result: dict[str, tuple[int, int]] = {}
    rows: dict[int, list[tuple[int, int, int]]] = {}
    for name, plan, row in launches:
        times = rows.setdefault(id(plan), plan.timings())
        calls, total = result.get(name, (0, 0))
        result[name] = (calls + times[row][0], total + times[row][1])
    return result


@once
def host_runner(cache: Cache) -> Runner:
    """Return the runner of host programs for this process: native if it can be built."""
    try:
        toolchain = find_toolchain(os.environ, cache)
    except ToolchainError:
        toolchain = None
    return load_runner(cache, toolchain)
