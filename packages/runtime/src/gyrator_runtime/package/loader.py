"""Reading a package: nothing of it is compiled, and no package that compiles is imported."""

import functools
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING

import torch
from attrs import define, evolve, field

from gyrator_ir.types import HOST
from gyrator_runtime.build import BuildError, load_library
from gyrator_runtime.collector import only_new_objects
from gyrator_runtime.device import ISA_LEVELS, cpu_isa, isa_levels
from gyrator_runtime.heap import keep_freed_memory
from gyrator_runtime.library import in_memory
from gyrator_runtime.native import KernelFunction, Runner, pure_runner, runner_extension, runner_of
from gyrator_runtime.native.extension import Extension
from gyrator_runtime.package.archive import Archive, BrokenArchiveError, file_hash
from gyrator_runtime.package.errors import altered, misfit, newer, no_package
from gyrator_runtime.package.manifest import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    Entry,
    Kernels,
    PackageManifest,
    PackedProgram,
    format_of,
)
from gyrator_runtime.package.model import Function, Loaded, Model
from gyrator_runtime.package.weights import mapped
from gyrator_runtime.plan.link import Linker
from gyrator_runtime.plan.stored import FORMAT as PLAN_FORMAT
from gyrator_runtime.plan.stored import parse

if TYPE_CHECKING:
    from gyrator_runtime.package.accelerated import Accelerated

_SPARE = Path("/dev/shm")
"""Where libraries are put for a moment that cannot be mapped without a name: if it serves, or if no
other folder can be written."""
_ROOM = 64 << 20


def load(
    path: str | Path,
    *,
    expected_sha256: str | None = None,
    verify: bool = False,
    isa: str | None = None,
    device: str | int | torch.device | None = None,
) -> Model:
    """Load a package that `gyrator.aot.compile` wrote.

    It runs native code that the file holds: load only files of those whom you would let run
    programs as you.

    Args:
        path: the file. It must not be written to while the model lives; it may be replaced by a
            rename, or removed.
        expected_sha256: of the whole file, in hexadecimal.
        verify: compare the weights with their hash, too, which reads them all. The other members
            always are compared.
        isa: the highest instruction set level to take kernels for; by default `$GYRATOR_ISA`, or
            what the processor has.
        device: which of the devices that the package is for the model runs on: `"cuda:1"` or 1. By
            default the current one.

    Raises:
        PackageError: GY-PACKAGE-001 for a file that is no whole package, GY-PACKAGE-002 for a newer
            one, GY-PACKAGE-003 for one that was altered, GY-PACKAGE-004 where it does not fit this
            machine or this torch.
        ExternError: GY-RUNTIME-002 where it calls an operator that is not registered.
    """
    path = Path(path)
    if expected_sha256 is not None and file_hash(path) != expected_sha256.lower():
        raise altered(path, "its SHA-256 is not the expected one")
    level = cpu_isa(isa or os.environ.get("GYRATOR_ISA") or None)
    keep_freed_memory()
    with only_new_objects(), open(path, "rb") as file:
        try:
            archive = Archive(file)
            manifest = read_manifest(path, archive)
            place = _place(path, manifest, device)
            return Model(_Loader(path, file, archive, manifest, level, verify, place).load())
        except BrokenArchiveError as error:
            raise no_package(path, str(error)) from error


def inspect(path: str | Path) -> PackageManifest:
    """Return what a package says of itself, of any machine and torch; nothing of it is run.

    PackageError: GY-PACKAGE-001, GY-PACKAGE-002.
    """
    path = Path(path)
    with open(path, "rb") as file:
        try:
            return read_manifest(path, Archive(file))
        except BrokenArchiveError as error:
            raise no_package(path, str(error)) from error


def read_manifest(path: Path, archive: Archive) -> PackageManifest:
    """Return the manifest of a package that is open."""
    if MANIFEST not in archive.names:
        raise no_package(path, f"it has no {MANIFEST}")
    text = archive.read(MANIFEST)
    try:
        found = format_of(text)
        if found != FORMAT:
            raise newer(path, found, FORMAT)
        return PackageManifest.from_json(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise no_package(path, f"its manifest cannot be read ({error})") from error


@define(eq=False)
class _Loader:
    path: Path
    file: IO[bytes]
    archive: Archive
    manifest: PackageManifest
    level: str
    verify: bool
    place: "Accelerated | None"
    """None for the CPU."""
    tensors: Mapping[str, torch.Tensor] = field(factory=dict)
    libraries: dict[str, Mapping[str, KernelFunction]] = field(factory=dict)
    """Functions by symbol, by the library's member."""

    def load(self) -> Loaded:
        self._check_process()
        members = {m.name: m for m in self.manifest.members}
        if WEIGHTS in members:
            start, size = self.archive.stretch(WEIGHTS)
            if size != members[WEIGHTS].size:
                raise altered(self.path, f"{WEIGHTS} has {size} bytes")
            if self.verify:
                self._bytes(WEIGHTS)
            self.tensors = mapped(self.path, self.file, start, size)
            self._check_weights()
        chosen = {e.name: self._program(e) for e in self.manifest.entries}
        if self.place is not None:
            self.tensors = self._placed(chosen.values())
        with ExitStack() as opened:
            folder = functools.cache(lambda: opened.enter_context(_folder(self.path)))
            runner = self._runner(folder)
            functions = {
                e.name: self._function(e, chosen[e.name], runner, folder)
                for e in self.manifest.entries
            }
        isa = next(p.isa for p in chosen.values())
        device = torch.device(HOST) if self.place is None else self.place.device
        return Loaded(self.manifest, functions, self.tensors, isa, runner.name, device)

    def _placed(self, programs: Iterable[PackedProgram]) -> dict[str, torch.Tensor]:
        """Return the tensors where programs take them: on the device, or in the host's memory."""
        assert self.place is not None
        hosted = {w.tensor for w in self.manifest.weights if w.hosted}
        hosted |= {p.constants[key] for p in programs for key in p.hosted}
        there = self.place.device
        return {n: t if n in hosted else t.to(there) for n, t in self.tensors.items()}

    def _check_process(self) -> None:
        programs = [p for e in self.manifest.entries for p in e.programs]
        machines = {self.manifest.machine, *(p.machine for p in programs if p.machine)}
        ours = not all(lib.driven for p in programs for lib in p.libraries)
        if (ours or self.place is None) and platform.machine() not in machines:
            why = f"it is for {', '.join(sorted(machines))}, this is {platform.machine()}"
            raise misfit(self.path, why, "make a package for this machine")
        if self.manifest.plan_format != PLAN_FORMAT:
            why = f"its plans have format {self.manifest.plan_format}, not {PLAN_FORMAT}"
            raise misfit(self.path, why, "make the package again with this version")
        if _version(torch.__version__) < _version(self.manifest.least_torch):
            why = f"it needs torch {self.manifest.least_torch}, this is {torch.__version__}"
            raise misfit(self.path, why, "install a newer torch")

    def _check_weights(self) -> None:
        for weight in self.manifest.weights:
            found = self.tensors.get(weight.tensor)
            if (
                found is None
                or tuple(found.shape) != weight.shape
                or found.dtype != getattr(torch, weight.dtype)
            ):
                raise altered(self.path, f"the weight {weight.name} is not the manifest's")

    def _bytes(self, name: str) -> bytes:
        """Return a member that is what the manifest says."""
        member = next((m for m in self.manifest.members if m.name == name), None)
        if member is None:
            raise no_package(self.path, f"its manifest has no {name}")
        data = self.archive.read(name)
        if len(data) != member.size or hashlib.sha256(data).hexdigest() != member.sha256:
            raise altered(self.path, f"{name} has another hash")
        return data

    def _program(self, entry: Entry) -> PackedProgram:
        """Return the program that fits this process best."""
        if self.place is not None:
            return self._for_device(entry, self.place.arch)
        here, levels = platform.machine(), isa_levels()
        usable = levels[: levels.index(self.level) + 1]
        own = [p for p in entry.programs if (p.machine or self.manifest.machine) == here]
        fitting = [p for p in own if p.isa in usable]
        if not fitting:
            has = ", ".join(p.isa for p in entry.programs)
            why = f"{entry.name} is built for {has}, this process has {self.level}"
            raise misfit(self.path, why, f"compile it with target={self.level!r}")
        return max(fitting, key=lambda p: ISA_LEVELS.index(p.isa))

    def _for_device(self, entry: Entry, here: str) -> PackedProgram:
        from gyrator_runtime.triton.architecture import fit

        fitting = [(found, p) for p in entry.programs if (found := fit(p.isa, here)) is not None]
        if not fitting:
            has = ", ".join(p.isa for p in entry.programs)
            why = f"{entry.name} is built for {has}, this device is {here}"
            raise misfit(self.path, why, f"compile it with target={here!r}")
        return max(fitting, key=lambda pair: pair[0])[1]

    def _function(
        self, entry: Entry, program: PackedProgram, runner: Runner, folder: Callable[[], Path]
    ) -> Function:
        addresses: dict[str, KernelFunction] = {}
        place = self.place
        for library in program.libraries:
            addresses |= self._library(library, folder)
        try:
            linker = Linker(
                runner,
                {k.name: k.loaded(addresses[k.symbol]) for k in program.kernels},
                {key: self.tensors[name] for key, name in program.constants.items()},
            )
            stored = parse(self._bytes(program.plan).decode())
            if place is None:
                return Function.of(entry, linker.link(stored))
            graphs = program.graphs
            linker.index = place.device.index
            linker.device_graph = lambda name, plan: place.part(plan, graphs.get(name))
            plan = place.current(place.part(linker.link(stored), graphs.get("")))
            own = (evolve(i, device=_there(linker, i.device)) for i in entry.inputs)
            return Function.of(evolve(entry, inputs=tuple(own)), plan)
        except (KeyError, TypeError, ValueError, IndexError, LookupError) as error:
            said = f"{type(error).__name__}: {error}"
            raise no_package(self.path, f"{entry.name} cannot be linked ({said})") from error

    def _library(
        self, library: Kernels, folder: Callable[[], Path]
    ) -> Mapping[str, KernelFunction]:
        if library.member not in self.libraries and library.driven and self.place is not None:
            data = self._bytes(library.member)
            self.libraries[library.member] = self.place.kernels(self.path, data, library.symbols)
        if library.member not in self.libraries:
            data = self._bytes(library.member)
            try:
                with in_memory(data) as file:
                    found = load_library(file, library.symbols)
            except (OSError, BuildError):  # there are no such files, or none that code may run in
                file = folder() / library.member.replace("/", "-")
                file.write_bytes(data)
                found = load_library(file, library.symbols)
            self.libraries[library.member] = found
        return self.libraries[library.member]

    def _runner(self, folder: Callable[[], Path]) -> Runner:
        """Return the native runner if the package has it for this Python and this version."""
        extension, key = _extension()
        if key in _modules():
            return runner_of(_modules()[key])
        for built in self.manifest.runners:
            if built.key == key:
                file = folder() / extension.file
                file.write_bytes(self._bytes(built.member))
                try:
                    module = _modules()[key] = extension.imported(file)
                except ImportError as error:
                    return _without_native(f"the package's cannot be loaded: {error}")
                return runner_of(module)
        has = ", ".join(r.member for r in self.manifest.runners) or "none"
        return _without_native(f"it was packaged for another Python or runtime: {has}")


def _place(
    path: Path, manifest: PackageManifest, device: str | int | torch.device | None
) -> "Accelerated | None":
    """Return the device that a package runs on, which may be given; None for the CPU."""
    kind = manifest.device or HOST
    given = torch.device(kind, device) if isinstance(device, int) else torch.device(device or kind)
    if given.type != kind:
        why = f"it runs on {kind}, not on {given}"
        raise misfit(path, why, "compile a package for that device")
    if kind == HOST:
        return None
    from gyrator_runtime.package.accelerated import Accelerated  # with what drives devices

    return Accelerated.of(path, kind, given.index)


def _there(linker: Linker, device: str) -> str:
    return str(linker.place(device)) if device else ""


def _without_native(why: str) -> Runner:
    help = "make the package with this Python and this version of gyrator-runtime"
    return pure_runner(f"the native runner cannot be used ({why})", help)


@functools.cache
def _extension() -> tuple[Extension, str]:
    """The native runner as this version has it, and the key of its build."""
    found = runner_extension()
    return found, found.key().hex


@functools.cache
def _modules() -> dict[str, ModuleType]:
    """The native runners of this process, by key."""
    return {}


@functools.cache
def _version(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.partition("+")[0].split(".")[:2])


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """A folder for libraries: once they are mapped, nothing has to be there.

    In memory if that can be: a disk's file that is mapped and removed is given up when it is
    unmapped, and whoever drops a model would wait milliseconds for the file system.
    """
    why = ""
    for place in (_SPARE, None) if _serves(_SPARE) else (None, _SPARE):
        try:
            made = tempfile.TemporaryDirectory(prefix="gyrator-", dir=place)
        except OSError as error:
            why = f"there is no folder for its libraries ({error})"
            continue
        with made as folder:
            yield Path(folder)
        return
    raise misfit(path, why, "set TMPDIR to a folder that can be written")


def _serves(folder: Path) -> bool:
    """Whether a file system lets code run, and has room."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _ROOM
