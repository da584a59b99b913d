"""Writing a package: entry points are exported, compiled for each target, and put into one file."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from attrs import define, evolve, field

from gyrator.aot.operators import called_operators, unpassed
from gyrator.aot.targets import PackageTarget, package_targets
from gyrator.aot.trace import device_of, least_of, signature, trace, unpackable
from gyrator.options import OptionError, Options, make_options
from gyrator.session import default_session
from gyrator.store.content_hash import product_hash
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.types import HOST
from gyrator_runtime.artifact import Library
from gyrator_runtime.native import runner_extension
from gyrator_runtime.package.archive import Raw, write_archive
from gyrator_runtime.package.errors import wrong_weight
from gyrator_runtime.package.manifest import (
    MANIFEST,
    WEIGHTS,
    Entry,
    Kernels,
    Member,
    PackageManifest,
    PackedProgram,
    Provenance,
    Weight,
)
from gyrator_runtime.package.manifest import Runner as StoredRunner
from gyrator_runtime.package.weights import packed
from gyrator_runtime.plan.stored import FORMAT as PLAN_FORMAT
from gyrator_runtime.standalone import takes_python

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from gyrator.aot.entry import EntryPoint
    from gyrator.aot.trace import Made, Traced

_LEAST_TORCH = "2.11"
_LICENCE = "BSD-3-Clause"
_FIXED: Mapping[str, Any] = {
    "strict": True, "wrapper": "python", "fallback_random": True, "debug_python": False,
    "memory_asserts": False, "fx_compiler": "", "freezing": False, "timed": False,
}  # fmt: skip
"""The options of packages. Random numbers are ATen's: the ops that draw ours are the compiler's."""
_STANDALONE: Mapping[str, Any] = {"extern_kernels": "none"}
"""The options that standalone packages have unless others are given."""


Runtime = Literal["python", "standalone", "libtorch"]


def build(
    entries: Mapping[str, EntryPoint],
    path: Path,
    target: str | Sequence[str] | None,
    options: Mapping[str, Any] | None,
    runtime: Runtime = "python",
) -> Path:
    """Compile entry points into the file `path`; see `gyrator.aot.compile`."""
    if not entries:
        raise unpackable("a package needs an entry point")
    programs = {name: exported(given) for name, given in entries.items()}
    written_for = {device_of(program) for program in programs.values()} - {torch.device(HOST)}
    if len(written_for) > 1:
        raise unpackable(f"the programs are for {', '.join(sorted(map(str, written_for)))}")
    device = next(iter(written_for), torch.device(HOST))
    targets = package_targets(target, device.type)
    kind = targets[0].device or HOST
    if device.type not in (kind, HOST):
        raise unpackable(f"the program works on {device}", f"export it with tensors of {kind}")
    machines, here = [t.machine for t in targets], platform.machine()
    machine = here if here in machines else machines[0]
    place = device if device.type == kind else torch.device(kind, 0)
    work = _Package(_options(options, runtime), runtime, machine, place)
    for name, program in programs.items():
        work.add(name, program, targets)
    work.write(path)
    return path


def exported(given: EntryPoint) -> ExportedProgram:
    """Return the exported program of an entry point."""
    from torch.export import ExportedProgram, export

    if isinstance(given.program, ExportedProgram):
        return given.program
    if given.inputs is None and not given.kwargs:
        raise unpackable("a module needs example inputs", "give `inputs`, or an exported program")
    with torch.no_grad():
        return export(
            given.program,
            tuple(given.inputs or ()),
            dict(given.kwargs or {}),
            dynamic_shapes=given.dynamic_shapes,
        )


def _options(given: Mapping[str, Any] | None, runtime: Runtime) -> Options:
    if runtime not in get_args(Runtime):
        said = f"there is no runtime {runtime!r} for packages"
        help = f"take one of {', '.join(get_args(Runtime))}"
        raise OptionError.of("GY-AOT-002", said, help=help)
    own = _STANDALONE if runtime == "standalone" else {}
    wanted = make_options(options={**own, **(given or {})})
    for name, value in _FIXED.items():
        if given is not None and name in given and given[name] != value:
            said = f"option {name!r} does not go into packages as {given[name]!r}"
            help = f"leave it out: it is {value!r} there"
            raise OptionError.of("GY-AOT-003", said, help=help)
    return evolve(wanted, **_FIXED)


@define(eq=False)
class _Package:
    """A package that is being put together."""

    options: Options
    runtime: Runtime
    machine: str
    """Whose code most programs are; the others say it."""
    place: torch.device
    """What they run on."""
    entries: list[Entry] = field(factory=list)
    weights: dict[str, Weight] = field(factory=dict)
    tensors: dict[str, torch.Tensor] = field(factory=dict)
    """What the weights' member holds."""
    members: dict[str, bytes] = field(factory=dict)
    _places: dict[tuple[object, ...], str] = field(factory=dict)
    """The name in `tensors` of each stretch of memory."""

    def add(self, name: str, program: ExportedProgram, targets: Sequence[PackageTarget]) -> None:
        """Compile an entry point for each level or architecture."""
        moves = device_of(program) != self.place
        traced: dict[PackageTarget, Traced] = {}
        for target in targets:
            with target.session(self.options) as session:
                engine = session.engine(self.options)
                try:
                    traced[target] = trace(program, engine, self.place if moves else None)
                finally:
                    engine.close_loaders()  # each architecture has compilers of its own
        most = least_of(found.most for found in traced.values())
        first = evolve(traced[targets[0]], most=most)
        entry, tensors, weights = signature(name, program, first, self.place)
        for weight in weights:
            self._add_weight(weight, tensors[weight.name])
        if self.runtime != "python":
            _check_runtime(name, self.runtime, [found.made for found in traced.values()])
        programs = tuple(
            self._program(name, target, found.made, moves) for target, found in traced.items()
        )
        self.entries.append(evolve(entry, programs=programs))

    def _add_weight(self, weight: Weight, tensor: torch.Tensor) -> None:
        known = self.weights.get(weight.name)
        if known is not None:
            same = evolve(known, tensor="", written=False)
            if same != evolve(weight, tensor="", written=False) or not torch.equal(
                self.tensors[known.tensor], tensor.to(HOST)
            ):
                raise wrong_weight(weight.name, "two entry points have different ones")
            self.weights[weight.name] = evolve(known, written=known.written or weight.written)
            return
        stored = self._tensor(weight.name, tensor)
        self.weights[weight.name] = evolve(weight, tensor=stored)

    def _tensor(self, name: str, tensor: torch.Tensor) -> str:
        """Store a tensor once; return its name."""
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in self._places:
            return self._places[place]
        self._places[place] = name
        self.tensors[name] = tensor.to(HOST)
        return name

    def _program(self, entry: str, target: PackageTarget, made: Made, moves: bool) -> PackedProgram:
        arch, found = target.arch, made.constants()
        constants = {
            key: self._tensor(f"{entry}/{arch}/{key}", value) for key, value in found.items()
        }
        stay = bool(target.device) and not moves
        graphs = {name: part.mutated for name, part in made.manifest.parts.items()}
        if made.manifest.graph is not None:
            graphs[""] = made.manifest.graph.mutated
        return PackedProgram(
            isa=arch,
            machine="" if target.machine == self.machine else target.machine,
            plan=self._member("plans", ".json", made.product.plan.encode()),
            libraries=tuple(self._library(arch, lib) for lib in made.libraries),
            kernels=made.manifest.built,
            constants=constants,
            calls=tuple(sorted({e.target for e in made.manifest.externs})),
            hosted=tuple(k for k, v in found.items() if stay and v.device.type == HOST),
            graphs=graphs if self.options.device_graphs else {},
        )

    def _library(self, arch: str, library: Library) -> Kernels:
        driven = library.device not in ("", HOST)
        member = self._member(f"kernels/{arch}", ".bin" if driven else ".so", library.data)
        return Kernels(member, library.symbols, driven)

    def _member(self, folder: str, suffix: str, data: bytes) -> str:
        name = f"{folder}/{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
        self.members[name] = data
        return name

    def write(self, path: Path) -> None:
        """Write the file."""
        runners = self._runners()
        members: dict[str, bytes | Raw] = dict(sorted(self.members.items()))
        if self.runtime != "python":
            members = {name: Raw.of(data) for name, data in sorted(self.members.items())}
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
            device="" if self.place.type == HOST else self.place.type,
        )
        text = manifest.to_json().encode()
        first = Raw.of(text) if self.runtime != "python" else text
        write_archive(path, {MANIFEST: first, **members})

    def _calls(self) -> set[str]:
        return {name for e in self.entries for p in e.programs for name in p.calls}

    def _runners(self) -> tuple[StoredRunner, ...]:
        """Add the native runner for this Python; none where it cannot be built, which warns."""
        extension = runner_extension()
        default_session().engine(self.options).runner()
        entry = default_session().cache.get(extension.key())
        if entry is None:
            return ()
        name = f"runner/{extension.file}"
        self.members[name] = entry.read(extension.file)
        return (StoredRunner(name, extension.key().hex),)

    def _provenance(self) -> Provenance:
        session = default_session()
        compiler = ""
        if session.targets.get(HOST) is not None:
            engine = session.engine(self.options)
            loader = engine.loader(session.targets[HOST][1])
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


def _check_runtime(entry: str, runtime: Runtime, programs: Sequence[Made]) -> None:
    """Refuse an entry point that takes more than the C library has (GY-AOT-005)."""
    by_name = runtime == "libtorch"
    lacking = {n for made in programs for n in takes_python(made.product.plan, torch=by_name)}
    if by_name:
        calls = {e.target for made in programs for e in made.manifest.externs}
        lacking |= {f"{name} ({why})" for name in calls if (why := unpassed(name))}
    if lacking:
        what = f"{entry} cannot run without Python: it calls {', '.join(sorted(lacking))}"
        help = f'leave out runtime="{runtime}", or what calls them'
        raise UnsupportedError.of("GY-AOT-005", what, help=help)


def _described(name: str, data: bytes | Raw) -> Member:
    if isinstance(data, Raw):
        return Member(name, data.size, data.sha256)
    return Member(name, len(data), hashlib.sha256(data).hexdigest())
