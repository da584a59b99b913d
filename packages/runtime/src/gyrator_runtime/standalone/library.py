"""Building of the C libraries, and which plans they can run."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.cache import Cache, CacheKey, Entry, make_key
from gyrator_runtime.process import run_limited
from gyrator_runtime.toolchain import Toolchain, stand_in_command

LIBRARY = "libgyrator_runtime.so"
"""The library without libtorch."""
TORCH_LIBRARY = "libgyrator_torch.so"
"""The library that calls operators through libtorch's C ABI."""
LIBTORCH = "libtorch_cpu.so"
"""The library that exports that ABI."""
FUNCTIONS = frozenset(
    {
        "size_of", "stride_of", "integer", "identity", "reinterpret", "over_storage", "separate",
        "assert_true", "read_scalar", "pack",
    }
)  # fmt: skip
"""Functions of `gyrator_runtime.host` that the libraries implement."""
REFERENCES = frozenset(
    {"Allocator", "Conforming", "Within", "Branching", "Looping", "Repeating", "Calling"}
)
"""Other references in plans that they implement."""
_OPERATORS = frozenset({"Operator", "Operating"})
_DATA = frozenset({"tuple", "list", "TorchObject", "TorchDevice", "Carried"})

_HERE = Path(__file__).parent
_INCLUDE = (_HERE / "include", _HERE / "src", _HERE.parent / "native")
_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")
_LOADS = ("archive", "device", "json", "package", "program")
"""Units for loading packages, which are compiled for size; all others are compiled for speed."""
_SMALL, _FAST = "-Os", "-O2"
_LINK = ("-shared", f"-Wl,--version-script={_HERE / 'exports.map'}")
_LIBRARIES = ("-lgomp", "-ldl", "-lpthread")
_STAND_IN = "stand-in.o"
_SECONDS = 600.0


class LibraryError(GyratorError):
    """The C library cannot be built."""


def soname(library: str) -> str:
    """Return a library's name with the suffix GYR_ABI_VERSION of gyrator.h."""
    return f"{library}.1"


def unsupported_features(plan: str, *, torch: bool = False) -> tuple[str, ...]:
    """Return the names of a stored plan's features, mainly operators, that the library lacks.

    Args:
        plan: the text of a `StoredPlan`.
        torch: for the library with libtorch, which can call operators.
    """
    missing: set[str] = set()

    def look(data: Any) -> None:
        if not isinstance(data, list):
            return
        kind, *fields = data
        if kind in _DATA:
            for item in fields:
                look(item)
        elif kind in _OPERATORS:
            if not torch:
                missing.add(fields[0])
        elif kind == "HostFunction":
            if fields[0] not in FUNCTIONS:
                missing.add(fields[0])
        elif kind == "Looping" and fields[3]:
            missing.add("a loop that stacks its values")
        elif kind not in REFERENCES:
            missing.add(f"{kind} {fields[0]}")

    for row in json.loads(plan):
        for constant in row["consts"]:
            look(constant)
    return tuple(sorted(missing))


@frozen
class SharedRuntime:
    """The library built by a toolchain, and cached."""

    toolchain: Toolchain
    more: Sequence[str] = ()
    """Additional flags, for example of a sanitizer."""
    torch: bool = False
    """With libtorch, which is not needed to build it."""

    @property
    def library(self) -> str:
        """File name of the library."""
        return TORCH_LIBRARY if self.torch else LIBRARY

    def key(self) -> CacheKey:
        """Return its cache key."""
        sources = (*_shared_sources(), *self._own_sources(), _HERE / "exports.map")
        return self._key("library", sources, self.library, *_LIBRARIES)

    def build(self, cache: Cache) -> Path:
        """Return the library's file. LibraryError (GY-BUILD-011) if it does not build.

        The objects that both libraries contain are cached, too, and compiled once.
        """

        def write(folder: Path) -> None:
            key = self._key("objects", _shared_sources())
            self._link(cache.get_or_build(key, self._compile_shared), folder)

        try:
            return cache.get_or_build(self.key(), write).file(self.library)
        except (OSError, subprocess.SubprocessError) as error:
            message = f"the C library cannot be built: {error}"
            help = "install g++, whose libgomp it needs (Debian: apt-get install g++)"
            raise LibraryError.of("GY-BUILD-011", message, help=help) from error

    def _compile_shared(self, folder: Path) -> None:
        units = [f for f in _shared_sources() if f.suffix == ".cpp"]
        for flag, chosen in (
            (_SMALL, [f for f in units if f.stem in _LOADS]),
            (_FAST, [f for f in units if f.stem not in _LOADS]),
        ):
            run_limited((*self._compile(flag), "-c", *map(str, chosen)), _SECONDS, folder)

    def _link(self, objects: Entry, folder: Path) -> None:
        own = [f for f in self._own_sources() if f.suffix == ".cpp"]
        files = [objects.file(name) for name in objects.files]
        wholly: tuple[str, ...] = ("-Wl,-z,defs",)
        if self.torch:
            run_limited(stand_in_command(self.toolchain, LIBTORCH, _STAND_IN), _SECONDS, folder)
            wholly = ("-Wl,--no-as-needed", _STAND_IN)
        strip = () if self.more else ("-s",)
        named = (f"-Wl,-soname,{soname(self.library)}", "-o", self.library)
        linked = (*map(str, (*own, *files)), *wholly, *_LIBRARIES)
        run_limited((*self._compile(_FAST), *strip, *_LINK, *named, *linked), _SECONDS, folder)
        (folder / _STAND_IN).unlink(missing_ok=True)

    def _compile(self, level: str) -> tuple[str, ...]:
        include = (f"-I{path}" for path in _INCLUDE)
        return (*self.toolchain.command, *_FLAGS, *include, level, *self.more)

    def _key(self, kind: str, sources: Iterable[Path], *parts: str) -> CacheKey:
        texts = b"".join(f.name.encode() + f.read_bytes() for f in sources)
        flags = " ".join((*_FLAGS, _SMALL, _FAST, *self.more, *parts))
        fields = {"text": texts, "flags": flags.encode(), "compiler": self.toolchain.identity}
        return make_key(kind, fields)

    def _own_sources(self) -> list[Path]:
        return sorted((_HERE / "src" / ("torch" if self.torch else "alone")).iterdir())


def _shared_sources() -> list[Path]:
    native = [_HERE.parent / "native" / name for name in ("forks.h", "plan.h")]
    files = [f for f in (_HERE / "src").iterdir() if f.is_file()]
    return sorted((*files, *(_HERE / "include").iterdir(), *native))


def shared_runtime(cache: Cache, toolchain: Toolchain, *, torch: bool = False) -> Path:
    """Return the library's file, built if it is not cached. LibraryError (GY-BUILD-011)."""
    return SharedRuntime(toolchain, torch=torch).build(cache)


def install(folder: Path, *libraries: Path) -> None:
    """Install libraries, headers and the CMake configuration below a folder."""
    targets = {
        "include": sorted((_HERE / "include").iterdir()),
        "lib/cmake/gyrator": sorted((_HERE / "cmake").iterdir()),
    }
    for name, files in targets.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, folder / name / file.name)
    for library in libraries:
        link = folder / "lib" / library.name
        name = soname(library.name)
        # Renamed into place, because a process may have the old file mapped.
        fresh = link.with_name(f".{name}.new")
        shutil.copyfile(library, fresh)
        fresh.chmod(0o755)
        fresh.replace(link.with_name(name))
        link.unlink(missing_ok=True)
        link.symlink_to(name)
