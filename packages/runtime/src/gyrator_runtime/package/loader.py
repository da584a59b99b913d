"""Reading a package: nothing of it is compiled, and no package that compiles is imported."""

import functools
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO

import torch
from attrs import define, field

from gyrator_runtime.build import load_library
from gyrator_runtime.device import ISA_LEVELS, cpu_isa, isa_levels
from gyrator_runtime.heap import keep_freed_memory
from gyrator_runtime.native import Runner, pure_runner, runner_extension, runner_of
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

_SPARE = Path("/dev/shm")
"""Where libraries are put for a moment if no folder for temporary files can be written."""


def load(
    path: str | Path,
    *,
    expected_sha256: str | None = None,
    verify: bool = False,
    isa: str | None = None,
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
    with open(path, "rb") as file:
        try:
            archive = Archive(file)
            manifest = read_manifest(path, archive)
            return Model(_Loader(path, file, archive, manifest, level, verify).load())
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
    tensors: Mapping[str, torch.Tensor] = field(factory=dict)
    libraries: dict[str, Mapping[str, int]] = field(factory=dict)
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
        with _folder(self.path) as folder:
            runner = self._runner(folder)
            functions = {
                e.name: self._function(e, chosen[e.name], runner, folder)
                for e in self.manifest.entries
            }
        isa = max((p.isa for p in chosen.values()), key=ISA_LEVELS.index)
        return Loaded(self.manifest, functions, self.tensors, isa, runner.name)

    def _check_process(self) -> None:
        programs = (p for e in self.manifest.entries for p in e.programs)
        machines = {self.manifest.machine, *(p.machine for p in programs if p.machine)}
        if platform.machine() not in machines:
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
        """Return the program for the highest level that this process may use."""
        here, levels = platform.machine(), isa_levels()
        usable = levels[: levels.index(self.level) + 1]
        own = [p for p in entry.programs if (p.machine or self.manifest.machine) == here]
        fitting = [p for p in own if p.isa in usable]
        if not fitting:
            has = ", ".join(p.isa for p in entry.programs)
            why = f"{entry.name} is built for {has}, this process has {self.level}"
            raise misfit(self.path, why, f"compile it with target={self.level!r}")
        return max(fitting, key=lambda p: ISA_LEVELS.index(p.isa))

    def _function(
        self, entry: Entry, program: PackedProgram, runner: Runner, folder: Path
    ) -> Function:
        addresses: dict[str, int] = {}
        for library in program.libraries:
            addresses |= self._library(library, folder)
        try:
            linker = Linker(
                runner,
                {k.name: k.loaded(addresses[k.symbol]) for k in program.kernels},
                {key: self.tensors[name] for key, name in program.constants.items()},
            )
            plan = linker.link(parse(self._bytes(program.plan).decode()))
            return Function.of(entry, plan)
        except (KeyError, TypeError, ValueError, IndexError, LookupError) as error:
            said = f"{type(error).__name__}: {error}"
            raise no_package(self.path, f"{entry.name} cannot be linked ({said})") from error

    def _library(self, library: Kernels, folder: Path) -> Mapping[str, int]:
        if library.member not in self.libraries:
            file = folder / library.member.replace("/", "-")
            file.write_bytes(self._bytes(library.member))
            self.libraries[library.member] = load_library(file, library.symbols)
        return self.libraries[library.member]

    def _runner(self, folder: Path) -> Runner:
        """Return the native runner if the package has it for this Python and this version."""
        extension = runner_extension()
        key = extension.key().hex
        if key in _modules():
            return runner_of(_modules()[key])
        for built in self.manifest.runners:
            if built.key == key:
                file = folder / extension.file
                file.write_bytes(self._bytes(built.member))
                try:
                    module = _modules()[key] = extension.imported(file)
                except ImportError as error:
                    return _without_native(f"the package's cannot be loaded: {error}")
                return runner_of(module)
        has = ", ".join(r.member for r in self.manifest.runners) or "none"
        return _without_native(f"it was packaged for another Python or runtime: {has}")


def _without_native(why: str) -> Runner:
    help = "make the package with this Python and this version of gyrator-runtime"
    return pure_runner(f"the native runner cannot be used ({why})", help)


@functools.cache
def _modules() -> dict[str, ModuleType]:
    """The native runners of this process, by key."""
    return {}


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.partition("+")[0].split(".")[:2])


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """A folder for libraries: once they are mapped, nothing has to be there."""
    try:
        made = tempfile.TemporaryDirectory(prefix="gyrator-")
    except OSError:
        try:
            made = tempfile.TemporaryDirectory(prefix="gyrator-", dir=_SPARE)
        except OSError as error:
            why = f"there is no folder for its libraries ({error})"
            raise misfit(path, why, "set TMPDIR to a folder that can be written") from error
    with made as folder:
        yield Path(folder)
