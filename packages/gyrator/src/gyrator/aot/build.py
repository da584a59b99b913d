"""Building a package: entry points are exported, compiled for each target, and written to one
file."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from attrs import evolve, field

from gyrator.aot.operators import called_operators, unsupported_reason
from gyrator.aot.targets import PackageTarget, package_targets
from gyrator.aot.trace import (
    FOLDED,
    device_of,
    signature,
    smallest,
    trace,
    trace_folding,
    unpackable,
)
from gyrator.options import OptionError, Options, make_options
from gyrator.session import default_session
from gyrator.store.content_hash import product_hash
from gyrator_ir.define import define
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.types import HOST
from gyrator_runtime.build import Library
from gyrator_runtime.native import runner_extension
from gyrator_runtime.package.archive import Raw, write_archive
from gyrator_runtime.package.errors import wrong_weight
from gyrator_runtime.package.manifest import (
    MANIFEST,
    WEIGHTS,
    ConstantsProgram,
    Entry,
    Kernels,
    Member,
    PackageManifest,
    PackedProgram,
    Provenance,
    Weight,
    programs_of,
)
from gyrator_runtime.package.manifest import Runner as StoredRunner
from gyrator_runtime.package.weights import digest_of, packed
from gyrator_runtime.plan.stored import FORMAT as PLAN_FORMAT
from gyrator_runtime.standalone import unsupported_features

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from gyrator.aot.entry import EntryPoint
    from gyrator.aot.trace import CompiledProgram, Traced

_LEAST_TORCH = "2.11"
_LICENCE = "BSD-3-Clause"
_FIXED: Mapping[str, Any] = {
    "strict": True, "wrapper": "python", "fallback_random": True, "debug_python": False,
    "memory_asserts": False, "fx_compiler": "", "timed": False, "build_in_background": False,
}  # fmt: skip
"""The fixed options of packages. Random numbers come from ATen, since Gyrator's random ops are part
of the compiler."""
_STANDALONE: Mapping[str, Any] = {"extern_kernels": "none"}
"""The default options of standalone packages."""


Runtime = Literal["python", "standalone", "libtorch"]
When = Literal["compile", "load"]


def build(
    entries: Mapping[str, EntryPoint],
    path: Path,
    target: str | Sequence[str] | None,
    options: Mapping[str, Any] | None,
    runtime: Runtime = "python",
    constants: When = "compile",
) -> Path:
    """Compile entry points to the file `path`; see `gyrator.aot.compile`."""
    if constants not in get_args(When):
        message = f"`constants` must not be {constants!r}"
        raise OptionError.of("GY-AOT-002", message, help=f"use {' or '.join(get_args(When))}")
    if not entries:
        raise unpackable("a package needs an entry point")
    programs = {name: exported(entry) for name, entry in entries.items()}
    used = {device_of(program) for program in programs.values()} - {torch.device(HOST)}
    if len(used) > 1:
        raise unpackable(f"the programs use {', '.join(sorted(map(str, used)))}")
    device = next(iter(used), torch.device(HOST))
    targets = package_targets(target, device.type)
    kind = targets[0].device or HOST
    if device.type not in (kind, HOST):
        raise unpackable(f"the program uses {device}", f"export it with tensors on {kind}")
    machines, own = [t.machine for t in targets], platform.machine()
    machine = own if own in machines else machines[0]
    run_device = device if device.type == kind else torch.device(kind, 0)
    packs = runtime != "standalone" and kind == HOST and set(machines) == {own}
    chosen = _options(options, runtime)
    work = _Package(chosen, runtime, machine, run_device, constants == "load", packs)
    for name, program in programs.items():
        work.add(name, program, targets)
    work.write(path)
    return path


def exported(entry: EntryPoint) -> ExportedProgram:
    """Return the exported program of an entry point."""
    from torch.export import ExportedProgram, export

    if isinstance(entry.program, ExportedProgram):
        if entry.dynamic_shapes is not None:
            raise unpackable(
                "the sizes of an exported program are fixed, but `dynamic_shapes` is set",
                "pass `dynamic_shapes` to `torch.export.export`",
            )
        return entry.program
    if isinstance(entry.inputs, torch.Tensor):
        raise unpackable("`inputs` is a tensor", "pass a tuple of arguments, such as `(x,)`")
    if entry.inputs is None and not entry.kwargs:
        raise unpackable(
            "a module needs example inputs", "set `inputs`, or pass an exported program"
        )
    with torch.no_grad():
        return export(
            entry.program,
            tuple(entry.inputs or ()),
            dict(entry.kwargs or {}),
            dynamic_shapes=entry.dynamic_shapes,
        )


def _options(options: Mapping[str, Any] | None, runtime: Runtime) -> Options:
    if runtime not in get_args(Runtime):
        message = f"there is no runtime {runtime!r} for packages"
        help = f"use one of {', '.join(get_args(Runtime))}"
        raise OptionError.of("GY-AOT-002", message, help=help)
    defaults = _STANDALONE if runtime == "standalone" else {}
    chosen = make_options(options={**defaults, **(options or {})})
    for name, value in _FIXED.items():
        if options is not None and name in options and options[name] != value:
            message = (
                f"packages do not support the option {name!r} with the value {options[name]!r}"
            )
            help = f"remove it: packages use {value!r}"
            raise OptionError.of("GY-AOT-003", message, help=help)
    return evolve(chosen, **_FIXED)


@define(eq=False)
class _Package:
    """A package under construction."""

    options: Options
    runtime: Runtime
    machine: str
    """The machine type of most programs; others store theirs."""
    device: torch.device
    """The device that the programs run on."""
    at_load: bool
    """Whether constants are computed from weights when the package is loaded."""
    packs: bool
    """Whether weights are packed when the package is loaded, by libtorch's libraries; those of
    another machine may have other layouts."""
    entries: list[Entry] = field(factory=list)
    weights: dict[str, Weight] = field(factory=dict)
    tensors: dict[str, torch.Tensor] = field(factory=dict)
    """The content of the weights member."""
    members: dict[str, bytes | Raw] = field(factory=dict)
    _stored_names: dict[tuple[object, ...], str] = field(factory=dict)
    """The name in `tensors` of each stored tensor, by its memory or content."""

    def add(self, name: str, program: ExportedProgram, targets: Sequence[PackageTarget]) -> None:
        """Compile an entry point for each level or architecture."""
        moves = device_of(program) != self.device
        device = self.device if moves else None
        # libtorch's C ABI leaks the texts that calls of quantised products pass.
        in_bytes = self.runtime != "libtorch"
        traced: dict[PackageTarget, Traced] = {}
        computing: dict[PackageTarget, CompiledProgram] = {}
        for target in targets:
            with target.session(self.options) as session:
                engine = session.engine(self.options)
                engine = evolve(engine, packs=self.packs, in_bytes=in_bytes)
                try:
                    result = traced[target] = trace(program, engine, device)
                    if self.at_load and result.folded is not None and result.folded.indices:
                        computing[target] = trace_folding(result.folded, engine, program, device)
                finally:
                    engine.context.close_loaders()  # each architecture has its own compilers
        limits = smallest(result.limits for result in traced.values())
        first = evolve(traced[targets[0]], limits=limits)
        _check_alike(name, traced.values())
        entry, tensors, weights = signature(name, program, first, self.device, self.at_load)
        for weight in weights:
            self._add_weight(weight, tensors[weight.name])
        if self.runtime != "python":
            compiled = [*(t.program for t in traced.values()), *computing.values()]
            _check_runtime(name, self.runtime, compiled)
        programs = tuple(
            self._program(name, target, t.program, moves) for target, t in traced.items()
        )
        constants = None
        if computing and first.folded is not None:
            specs = program.graph_signature.input_specs
            sources = tuple(str(specs[k].target) for k in first.folded.indices)
            packed_programs = (self._program(name, t, p, moves) for t, p in computing.items())
            folded = first.folded
            count = folded.count - len(folded.packing)
            constants = ConstantsProgram(sources, tuple(packed_programs), count)
        self.entries.append(evolve(entry, programs=programs, constants=constants))

    def _add_weight(self, weight: Weight, tensor: torch.Tensor) -> None:
        previous = self.weights.get(weight.name)
        if previous is not None:
            same = evolve(previous, tensor="", written=False)
            if same != evolve(weight, tensor="", written=False) or not torch.equal(
                self.tensors[previous.tensor], tensor.to(HOST)
            ):
                raise wrong_weight(
                    weight.name,
                    "two entry points have different weights of this name",
                    "entry points of one package share weights by name: rename the modules, or "
                    "compile a package for each model",
                )
            self.weights[weight.name] = evolve(previous, written=previous.written or weight.written)
            return
        stored = self._tensor(weight.name, tensor, computed=FOLDED in weight.name)
        self.weights[weight.name] = evolve(weight, tensor=stored)

    def _tensor(self, name: str, tensor: torch.Tensor, computed: bool = False) -> str:
        """Store a tensor once; return its name. A `computed` tensor, which every entry point has
        its own copy of, is identified by its content instead of its memory."""
        content = digest_of(tensor.to(HOST)) if computed else tensor.data_ptr()
        key = (content, tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and key in self._stored_names:
            return self._stored_names[key]
        self._stored_names[key] = name
        self.tensors[name] = tensor.to(HOST)
        return name

    def _program(
        self, entry: str, target: PackageTarget, program: CompiledProgram, moves: bool
    ) -> PackedProgram:
        arch, tensors = target.arch, program.constants()
        constants = {
            key: self._tensor(f"{entry}/{arch}/{key}", value) for key, value in tensors.items()
        }
        stay = bool(target.device) and not moves
        graphs = {name: part.mutated for name, part in program.manifest.parts.items()}
        if program.manifest.graph is not None:
            graphs[""] = program.manifest.graph.mutated
        return PackedProgram(
            isa=arch,
            machine="" if target.machine == self.machine else target.machine,
            plan=self._member("plans", ".json", program.product.plan.encode()),
            libraries=tuple(self._library(arch, lib) for lib in program.libraries),
            kernels=program.manifest.built,
            constants=constants,
            calls=tuple(sorted({e.target for e in program.manifest.externs})),
            hosted=tuple(k for k, v in tensors.items() if stay and v.device.type == HOST),
            graphs=graphs if self.options.device_graphs else {},
        )

    def _library(self, arch: str, library: Library) -> Kernels:
        driven = library.device not in ("", HOST)
        # Decompressing a library takes as long as loading it.
        suffix = ".bin" if driven else ".so"
        member = self._member(f"kernels/{arch}", suffix, library.data, deflated=driven)
        return Kernels(member, library.symbols, driven)

    def _member(self, folder: str, suffix: str, data: bytes, *, deflated: bool = True) -> str:
        name = f"{folder}/{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
        deflated = deflated and self.runtime == "python"
        self.members[name] = data if deflated else Raw.of(data)
        return name

    def write(self, path: Path) -> None:
        """Write the package file."""
        runners = self._runners()
        members = dict(sorted(self.members.items()))
        if self.tensors:
            members[WEIGHTS] = packed(self.tensors)
        manifest = PackageManifest(
            machine=self.machine,
            least_torch=_LEAST_TORCH,
            plan_format=PLAN_FORMAT,
            entries=tuple(self.entries),
            weights=tuple(self.weights.values()),
            members=tuple(_described(name, data) for name, data in members.items()),
            runners=runners,
            provenance=self._provenance(),
            runtime=self.runtime,
            operators=called_operators(self._calls()) if self.runtime == "libtorch" else (),
            device="" if self.device.type == HOST else self.device.type,
        )
        text = manifest.to_json().encode()
        first = Raw.of(text) if self.runtime != "python" else text
        write_archive(path, {MANIFEST: first, **members})

    def _calls(self) -> set[str]:
        packing = {packed.operator for e in self.entries for packed in e.packed}
        return packing | {name for e in self.entries for p in programs_of(e) for name in p.calls}

    def _runners(self) -> tuple[StoredRunner, ...]:
        """Add the native runner for this Python; if it cannot be built, add none, with a
        warning."""
        extension = runner_extension()
        default_session().engine(self.options).context.runner()
        entry = default_session().cache.get(extension.key())
        if entry is None:
            return ()
        name = f"runner/{extension.file}"
        data = entry.read(extension.file)
        self.members[name] = data if self.runtime == "python" else Raw.of(data)
        return (StoredRunner(name, extension.key().hex),)

    def _provenance(self) -> Provenance:
        session = default_session()
        compiler = ""
        if session.targets.get(HOST) is not None:
            context = session.engine(self.options).context
            loader = context.loader(session.targets[HOST][1])
            compiler = loader.identity.decode().splitlines()[1]
        return Provenance(
            gyrator=version("gyrator"),
            sources=product_hash(),
            torch=torch.__version__,
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            compiler=compiler,
            options=self.options.code_fields(),
            licence=_LICENCE,
        )


def _check_alike(entry: str, traced: Iterable[Traced]) -> None:
    """Check that the programs of an entry point for all targets take the same weights and
    constants."""
    inputs = {(t.inputs, t.folded and t.folded.text) for t in traced}
    if len(inputs) > 1:
        raise unpackable(f"{entry} has different constants for each target", "use one target")


def _check_runtime(entry: str, runtime: Runtime, programs: Sequence[CompiledProgram]) -> None:
    """Check that the C library supports all calls of an entry point (GY-AOT-005)."""
    by_name = runtime == "libtorch"
    lacking = {n for p in programs for n in unsupported_features(p.product.plan, torch=by_name)}
    if by_name:
        calls = {e.target for p in programs for e in p.manifest.externs}
        lacking |= {f"{name} ({why})" for name in calls if (why := unsupported_reason(name))}
    if lacking:
        message = f"{entry} cannot run without Python: it calls {', '.join(sorted(lacking))}"
        other = "remove" if by_name else 'use runtime="libtorch", or remove'
        help = f'{other} runtime="{runtime}", or avoid these calls'
        raise UnsupportedError.of("GY-AOT-005", message, help=help)


def _described(name: str, data: bytes | Raw) -> Member:
    if isinstance(data, Raw):
        return Member(name, data.size, data.sha256)
    return Member(name, len(data), hashlib.sha256(data).hexdigest())
