"""Loading of packages, without compiling and without importing the compiler."""

import functools
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING

import torch
from attrs import evolve, field

from gyrator_ir.define import define
from gyrator_ir.types import HOST
from gyrator_runtime.build import BuildError, load_library
from gyrator_runtime.collector import only_new_objects
from gyrator_runtime.device import ISA_LEVELS, cpu_isa, isa_levels
from gyrator_runtime.heap import keep_freed_memory
from gyrator_runtime.host.outside import copy_with_strides
from gyrator_runtime.library import in_memory
from gyrator_runtime.native import KernelFunction, Runner, pure_runner, runner_extension, runner_of
from gyrator_runtime.native.extension import Extension
from gyrator_runtime.package.archive import Archive, BrokenArchiveError, file_hash
from gyrator_runtime.package.errors import PackageError, altered, misfit, newer, no_package
from gyrator_runtime.package.manifest import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    Entry,
    Kernels,
    OtherFormatError,
    PackageManifest,
    PackedProgram,
    Weight,
    programs_of,
)
from gyrator_runtime.package.model import Function, Loaded, Model
from gyrator_runtime.package.weights import mapped
from gyrator_runtime.plan.link import Linker, Run
from gyrator_runtime.plan.stored import FORMAT as PLAN_FORMAT
from gyrator_runtime.plan.stored import parse

if TYPE_CHECKING:
    from gyrator_runtime.package.accelerated import Accelerated

_SHARED_MEMORY = Path("/dev/shm")
"""Folder for libraries that must be files to be mapped, for the time of loading. Used if it can
hold code, or if no other folder is writable."""
_MIN_FREE = 64 << 20
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, LookupError)
"""Exceptions raised for a malformed program."""


def load(
    path: str | Path,
    *,
    expected_sha256: str | None = None,
    verify: bool = False,
    isa: str | None = None,
    device: str | int | torch.device | None = None,
) -> Model:
    """Load a package written by `gyrator.aot.compile`.

    It runs native code from the file: load only files from sources that you trust to run programs
    as you.

    Args:
        path: the file. It must not be modified while the model is alive, but may be replaced by a
            rename, or removed.
        expected_sha256: SHA-256 of the whole file, in hexadecimal.
        verify: also check the hash of the weights, which reads all of them. The other members are
            always checked.
        isa: highest instruction set level of kernels to use; by default `$GYRATOR_ISA`, or that of
            the processor.
        device: the device to run on, of the package's device type: `"cuda:1"` or 1. By default the
            current one.

    Raises:
        PackageError: GY-PACKAGE-001, when the file is not a complete package; GY-PACKAGE-002, when
            its format is newer; GY-PACKAGE-003, when it was modified; GY-PACKAGE-004, when it does
            not match this machine or this torch.
        ExternError: GY-RUNTIME-002, when it calls an operator that is not registered.
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
    """Return the manifest of a package for any machine and torch, without running its code.

    Raises:
        PackageError: GY-PACKAGE-001, GY-PACKAGE-002; see `load`.
    """
    path = Path(path)
    with open(path, "rb") as file:
        try:
            return read_manifest(path, Archive(file))
        except BrokenArchiveError as error:
            raise no_package(path, str(error)) from error


def read_manifest(path: Path, archive: Archive) -> PackageManifest:
    """Return the manifest of an open package."""
    if MANIFEST not in archive.names:
        raise no_package(path, f"it has no {MANIFEST}")
    text = archive.read(MANIFEST)
    try:
        return PackageManifest.from_json(text)
    except OtherFormatError as error:
        raise newer(path, error.format, FORMAT) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise no_package(path, f"its manifest is invalid ({error})") from error


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
    """Functions by symbol for each loaded library, by member name."""

    def load(self) -> Loaded:
        self._check_process()
        members = {m.name: m for m in self.manifest.members}
        if WEIGHTS in members:
            start, size = self.archive.offset_and_size(WEIGHTS)
            if size != members[WEIGHTS].size:
                raise altered(self.path, f"{WEIGHTS} has {size} bytes")
            if self.verify:
                self._bytes(WEIGHTS)
            self.tensors = mapped(self.path, self.file, start, size)
            self._check_weights()
        chosen = {e.name: self._program(e.name, e.programs) for e in self.manifest.entries}
        folding = {
            e.name: self._program(e.name, e.constants.programs)
            for e in self.manifest.entries
            if e.constants is not None
        }
        if self.place is not None:
            self.tensors = self._on_device([*chosen.values(), *folding.values()])
        with ExitStack() as opened:
            folder = functools.cache(lambda: opened.enter_context(_folder(self.path)))
            runner = self._runner(folder)
            functions = {
                e.name: self._function(e, chosen[e.name], runner, folder)
                for e in self.manifest.entries
            }
            constants = {n: self._linked(n, p, runner, folder)[0] for n, p in folding.items()}
        isa = next(p.isa for p in chosen.values())
        device = torch.device(HOST) if self.place is None else self.place.device
        weights = {w.name: self._weight(w) for w in self.manifest.weights}
        return Loaded(self.manifest, functions, constants, weights, isa, runner.name, device)

    def _weight(self, weight: Weight) -> torch.Tensor:
        """Return a weight with its strides; tensors are stored in the order of their elements."""
        stored = self.tensors[weight.tensor]
        if stored.stride() != weight.strides and stored.numel() > 1:
            return copy_with_strides(stored, weight.strides)
        return stored

    def _on_device(self, programs: Iterable[PackedProgram]) -> dict[str, torch.Tensor]:
        """Return the tensors on the device, or in host memory where programs expect that."""
        assert self.place is not None
        hosted = {w.tensor for w in self.manifest.weights if w.hosted}
        hosted |= {p.constants[key] for p in programs for key in p.hosted}
        device = self.place.device
        return {n: t if n in hosted else t.to(device) for n, t in self.tensors.items()}

    def _check_process(self) -> None:
        programs = [p for e in self.manifest.entries for p in programs_of(e)]
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
            tensor = self.tensors.get(weight.tensor)
            if (
                tensor is None
                or tuple(tensor.shape) != weight.shape
                or tensor.dtype != getattr(torch, weight.dtype)
            ):
                raise altered(self.path, f"the weight {weight.name} is not the manifest's")

    def _bytes(self, name: str) -> bytes:
        """Return a member's contents after checking them against the manifest."""
        member = next((m for m in self.manifest.members if m.name == name), None)
        if member is None:
            raise no_package(self.path, f"its manifest has no {name}")
        data = self.archive.read(name)
        if len(data) != member.size or hashlib.sha256(data).hexdigest() != member.sha256:
            raise altered(self.path, f"{name} has another hash")
        return data

    def _program(self, entry: str, programs: Sequence[PackedProgram]) -> PackedProgram:
        """Return the best program for this process."""
        if self.place is not None:
            return self._for_device(entry, programs, self.place.arch)
        machine, levels = platform.machine(), isa_levels()
        usable = levels[: levels.index(self.level) + 1]
        own = [p for p in programs if (p.machine or self.manifest.machine) == machine]
        fitting = [p for p in own if p.isa in usable]
        if not fitting:
            has = ", ".join(p.isa for p in programs)
            why = f"{entry} is built for {has}, this process has {self.level}"
            raise misfit(self.path, why, f"compile it with target={self.level!r}")
        return max(fitting, key=lambda p: ISA_LEVELS.index(p.isa))

    def _for_device(
        self, entry: str, programs: Sequence[PackedProgram], arch: str
    ) -> PackedProgram:
        from gyrator_runtime.triton.architecture import fit

        fitting = [(rank, p) for p in programs if (rank := fit(p.isa, arch)) is not None]
        if not fitting:
            has = ", ".join(p.isa for p in programs)
            why = f"{entry} is built for {has}, this device is {arch}"
            raise misfit(self.path, why, f"compile it with target={arch!r}")
        return max(fitting, key=lambda pair: pair[0])[1]

    def _function(
        self, entry: Entry, program: PackedProgram, runner: Runner, folder: Callable[[], Path]
    ) -> Function:
        plan, linker = self._linked(entry.name, program, runner, folder)
        if self.place is not None:
            own = (
                evolve(i, device=str(linker.place(i.device)) if i.device else "")
                for i in entry.inputs
            )
            entry = evolve(entry, inputs=tuple(own))
        try:
            return Function.of(entry, plan)
        except _UNREADABLE as error:
            raise self._link_error(entry.name, error) from error

    def _linked(
        self, entry: str, program: PackedProgram, runner: Runner, folder: Callable[[], Path]
    ) -> tuple[Run, Linker]:
        """Return a program as a callable, and its linker."""
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
                return linker.link(stored), linker
            graphs = program.graphs
            linker.index = place.device.index
            linker.device_graph = lambda name, plan: place.part(plan, graphs.get(name))
            return place.current(place.part(linker.link(stored), graphs.get(""))), linker
        except _UNREADABLE as error:
            raise self._link_error(entry, error) from error

    def _link_error(self, entry: str, error: Exception) -> PackageError:
        message = f"{type(error).__name__}: {error}"
        return no_package(self.path, f"{entry} cannot be linked ({message})")

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
                    functions = load_library(file, library.symbols)
            except (OSError, BuildError):  # no in-memory files, or they cannot be executed
                file = folder() / library.member.replace("/", "-")
                file.write_bytes(data)
                functions = load_library(file, library.symbols)
            self.libraries[library.member] = functions
        return self.libraries[library.member]

    def _runner(self, folder: Callable[[], Path]) -> Runner:
        """Return the native runner if the package contains it for this Python and version."""
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
    """Return the device to run a package on; None for the CPU."""
    kind = manifest.device or HOST
    requested = (
        torch.device(kind, device) if isinstance(device, int) else torch.device(device or kind)
    )
    if requested.type != kind:
        why = f"it runs on {kind}, not on {requested}"
        raise misfit(path, why, "compile a package for that device")
    if kind == HOST:
        return None
    from gyrator_runtime.package.accelerated import Accelerated  # with what drives devices

    return Accelerated.of(path, kind, requested.index)


def _without_native(why: str) -> Runner:
    help = "make the package with this Python and this version of gyrator-runtime"
    return pure_runner(f"the native runner cannot be used ({why})", help)


@functools.cache
def _extension() -> tuple[Extension, str]:
    """Return the native runner's extension of this version, and its cache key."""
    extension = runner_extension()
    return extension, extension.key().hex


@functools.cache
def _modules() -> dict[str, ModuleType]:
    """Return the native runners of this process by key, a mutable mapping."""
    return {}


@functools.cache
def _version(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.partition("+")[0].split(".")[:2])


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """Provide a temporary folder for libraries, which is not needed once they are mapped.

    In memory if possible: the file system frees a removed file when it is unmapped, and on a disk,
    deleting a model would wait milliseconds for that.
    """
    why = ""
    for parent in (
        (_SHARED_MEMORY, None) if _can_hold_code(_SHARED_MEMORY) else (None, _SHARED_MEMORY)
    ):
        try:
            temporary = tempfile.TemporaryDirectory(prefix="gyrator-", dir=parent)
        except OSError as error:
            why = f"there is no writable folder for its libraries ({error})"
            continue
        with temporary as folder:
            yield Path(folder)
        return
    raise misfit(path, why, "set TMPDIR to a folder that can be written")


def _can_hold_code(folder: Path) -> bool:
    """Return whether a file system allows execution and has enough free space."""
    try:
        stats = os.statvfs(folder)
    except OSError:
        return False
    return not stats.f_flag & os.ST_NOEXEC and stats.f_bavail * stats.f_frsize >= _MIN_FREE
