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

from gyrator.aot.trace import signature, trace, unpackable
from gyrator.options import OptionError, Options, make_options
from gyrator.session import Session, default_session
from gyrator.store.content_hash import product_hash
from gyrator.targets.cpu import CPU, cpu_target
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.types import HOST
from gyrator_runtime.build import available_cores
from gyrator_runtime.device import ISA_LEVELS, cpu_isa, machine_of
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
    "strict": True, "wrapper": "python", "fallback_random": True, "device_graphs": False,
    "debug_python": False, "memory_asserts": False, "fx_compiler": "", "freezing": False,
    "timed": False,
}  # fmt: skip
"""The options of packages. Random numbers are ATen's: the ops that draw ours are the compiler's."""
_STANDALONE: Mapping[str, Any] = {"extern_kernels": "none"}
"""The options that standalone packages have unless others are given."""


Runtime = Literal["python", "standalone"]


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
    levels = levels_of(target)
    machines, here = [machine_of(level) for level in levels], platform.machine()
    machine = here if here in machines else machines[0]
    work = _Package(_options(options, runtime), runtime, machine)
    for name, given in entries.items():
        work.add(name, exported(given), levels)
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


def levels_of(target: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the instruction set levels that are asked for, by default this machine's.

    OptionError (GY-AOT-002) for one that there is not.
    """
    if target is None:
        return (cpu_isa(default_session().config.isa or None),)
    levels = (target,) if isinstance(target, str) else tuple(target)
    wrong = [level for level in levels if level not in ISA_LEVELS]
    if wrong or not levels:
        said = f"there is no target {', '.join(map(repr, wrong)) or 'at all'}"
        help = f"take some of {', '.join(ISA_LEVELS)}"
        raise OptionError(Diagnostic("GY-AOT-002", said, help=help))
    return tuple(sorted(set(levels), key=ISA_LEVELS.index))


def _options(given: Mapping[str, Any] | None, runtime: Runtime) -> Options:
    if runtime not in get_args(Runtime):
        said = f"there is no runtime {runtime!r} for packages"
        help = f"take one of {', '.join(get_args(Runtime))}"
        raise OptionError(Diagnostic("GY-AOT-002", said, help=help))
    own = _STANDALONE if runtime == "standalone" else {}
    wanted = make_options(options={**own, **(given or {})})
    for name, value in _FIXED.items():
        if given is not None and name in given and given[name] != value:
            said = f"option {name!r} does not go into packages as {given[name]!r}"
            help = f"leave it out: it is {value!r} there"
            raise OptionError(Diagnostic("GY-AOT-003", said, help=help))
    return evolve(wanted, **_FIXED)


@define(eq=False)
class _Package:
    """A package that is being put together."""

    options: Options
    runtime: Runtime
    machine: str
    """Whose code most programs are; the others say it."""
    entries: list[Entry] = field(factory=list)
    weights: dict[str, Weight] = field(factory=dict)
    tensors: dict[str, torch.Tensor] = field(factory=dict)
    """What the weights' member holds."""
    members: dict[str, bytes] = field(factory=dict)
    _places: dict[tuple[object, ...], str] = field(factory=dict)
    """The name in `tensors` of each stretch of memory."""

    def add(self, name: str, program: ExportedProgram, levels: Sequence[str]) -> None:
        """Compile an entry point for each level."""
        traced: dict[str, Traced] = {}
        for level in levels:
            with self._session(level) as session:
                traced[level] = trace(program, session.engine(self.options))
        entry, tensors, weights = signature(name, program, traced[levels[0]])
        for weight in weights:
            self._add_weight(weight, tensors[weight.name])
        if self.runtime == "standalone":
            _check_standalone(name, [found.made for found in traced.values()])
        programs = tuple(self._program(name, level, found.made) for level, found in traced.items())
        self.entries.append(evolve(entry, programs=programs))

    def _session(self, level: str) -> Session:
        target = cpu_target(level, available_cores())
        config = default_session().config
        return Session(options=self.options, config=config, targets={HOST: (CPU, target)})

    def _add_weight(self, weight: Weight, tensor: torch.Tensor) -> None:
        known = self.weights.get(weight.name)
        if known is not None:
            same = evolve(known, tensor="", written=False)
            if same != evolve(weight, tensor="", written=False) or not torch.equal(
                self.tensors[known.tensor], tensor
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
        self.tensors[name] = tensor
        return name

    def _program(self, entry: str, level: str, made: Made) -> PackedProgram:
        constants = {
            key: self._tensor(f"{entry}/{level}/{key}", value)
            for key, value in made.constants().items()
        }
        libraries = tuple(
            Kernels(self._member(f"kernels/{level}", ".so", lib.data), lib.symbols)
            for lib in made.libraries
        )
        return PackedProgram(
            isa=level,
            machine="" if (machine := machine_of(level)) == self.machine else machine,
            plan=self._member("plans", ".json", made.product.plan.encode()),
            libraries=libraries,
            kernels=made.manifest.built,
            constants=constants,
            calls=tuple(sorted({e.target for e in made.manifest.externs})),
        )

    def _member(self, folder: str, suffix: str, data: bytes) -> str:
        name = f"{folder}/{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
        self.members[name] = data
        return name

    def write(self, path: Path) -> None:
        """Write the file."""
        runners = self._runners()
        members: dict[str, bytes | Raw] = dict(sorted(self.members.items()))
        if self.runtime == "standalone":
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
        )
        text = manifest.to_json().encode()
        first = Raw.of(text) if self.runtime == "standalone" else text
        write_archive(path, {MANIFEST: first, **members})

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


def _check_standalone(entry: str, programs: Sequence[Made]) -> None:
    """Refuse an entry point that takes more than its own kernels (GY-AOT-005)."""
    lacking = sorted({name for made in programs for name in takes_python(made.product.plan)})
    if lacking:
        what = f"{entry} cannot run without Python: it calls {', '.join(lacking)}"
        help = 'leave out runtime="standalone", or what calls them'
        raise UnsupportedError(Diagnostic("GY-AOT-005", what, help=help))


def _described(name: str, data: bytes | Raw) -> Member:
    if isinstance(data, Raw):
        return Member(name, data.size, data.sha256)
    return Member(name, len(data), hashlib.sha256(data).hexdigest())
