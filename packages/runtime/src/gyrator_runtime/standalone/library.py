"""Building the C library, and telling which plans it runs."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from gyrator_ir.diagnostics import Diagnostic, GyratorError
from gyrator_runtime.cache import Cache, CacheKey, make_key
from gyrator_runtime.process import Limited
from gyrator_runtime.toolchain import Toolchain

LIBRARY = "libgyrator_runtime.so"
SONAME = f"{LIBRARY}.1"
"""With GYR_ABI_VERSION of gyrator.h."""
FUNCTIONS = frozenset(
    {
        "size_of", "stride_of", "integer", "identity", "reinterpret", "over_storage", "separate",
        "assert_true", "read_scalar",
    }
)  # fmt: skip
"""Functions of `gyrator_runtime.host` that the library has."""
REFERENCES = frozenset(
    {"Allocator", "Conforming", "Within", "Branching", "Looping", "Repeating", "Calling"}
)
"""Other references of plans that it has."""
_DATA = frozenset({"tuple", "list", "TorchObject", "TorchDevice", "Carried"})

_HERE = Path(__file__).parent
_INCLUDE = (_HERE / "include", _HERE.parent / "native")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")
_LINK = (
    "-shared",
    f"-Wl,-soname,{SONAME}",
    "-Wl,-z,defs",
    f"-Wl,--version-script={_HERE / 'exports.map'}",
)
_LIBRARIES = ("-lgomp", "-ldl", "-lpthread")
_SECONDS = 600.0


class LibraryError(GyratorError):
    """The C library cannot be built here."""


def takes_python(plan: str) -> tuple[str, ...]:
    """Return what the library lacks of a stored plan, by name: operators that it calls, above all.

    Args:
        plan: the text of a `StoredPlan`.
    """
    found: set[str] = set()

    def look(data: Any) -> None:
        if not isinstance(data, list):
            return
        kind, *fields = data
        if kind in _DATA:
            for item in fields:
                look(item)
        elif kind in ("HostFunction", "Operator", "Operating"):
            if kind != "HostFunction" or fields[0] not in FUNCTIONS:
                found.add(fields[0])
        elif kind == "Looping" and fields[3]:
            found.add("a loop that stacks its values")
        elif kind not in REFERENCES:
            found.add(f"{kind} {fields[0]}")

    for row in json.loads(plan):
        for constant in row["consts"]:
            look(constant)
    return tuple(sorted(found))


@frozen
class SharedRuntime:
    """The library as one toolchain builds it, kept in the cache."""

    toolchain: Toolchain
    more: Sequence[str] = ()
    """Flags behind the usual ones: those of a sanitizer, say."""

    def key(self) -> CacheKey:
        """Return its key."""
        texts = b"".join(f.name.encode() + f.read_bytes() for f in _sources())
        flags = " ".join((*_FLAGS, *self.more, *_LIBRARIES))
        fields = {"text": texts, "flags": flags.encode(), "compiler": self.toolchain.identity}
        return make_key("library", fields)

    def build(self, cache: Cache) -> Path:
        """Return the library's file. LibraryError (GY-BUILD-011) where it does not build."""

        def write(folder: Path) -> None:
            include = tuple(f"-I{path}" for path in _INCLUDE)
            units = tuple(str(f) for f in _sources() if f.suffix == ".cpp")
            command = (
                *self.toolchain.command, *_FLAGS, *(self.more or ("-s",)), *include, *_LINK,
                "-o", LIBRARY, *units, *_LIBRARIES,
            )  # fmt: skip
            child = Limited(command, _SECONDS, folder)
            status, output = child.wait()
            if status:
                raise subprocess.SubprocessError(output.strip()[-2000:] or f"status {status}")

        try:
            return cache.get_or_build(self.key(), write).file(LIBRARY)
        except (OSError, subprocess.SubprocessError) as error:
            said = f"the C library cannot be built: {error}"
            help = "install g++, whose libgomp it needs (Debian: apt-get install g++)"
            raise LibraryError(Diagnostic("GY-BUILD-011", said, help=help)) from error


def shared_runtime(cache: Cache, toolchain: Toolchain) -> Path:
    """Return the library's file, built where the cache has none. LibraryError (GY-BUILD-011)."""
    return SharedRuntime(toolchain).build(cache)


def install(folder: Path, library: Path) -> None:
    """Put the library, its headers and what CMake needs to find them below a folder."""
    targets = {
        "include": sorted((_HERE / "include").iterdir()),
        "lib/cmake/gyrator": sorted((_HERE / "cmake").iterdir()),
    }
    for name, files in targets.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, folder / name / file.name)
    # Beside what is there first: a process may have the old one mapped.
    fresh = folder / "lib" / f".{SONAME}.new"
    shutil.copyfile(library, fresh)
    fresh.chmod(0o755)
    fresh.replace(folder / "lib" / SONAME)
    link = folder / "lib" / LIBRARY
    link.unlink(missing_ok=True)
    link.symlink_to(SONAME)


def _sources() -> list[Path]:
    shared = [_HERE.parent / "native" / name for name in ("forks.h", "plan.h")]
    own = [*(_HERE / "src").iterdir(), *(_HERE / "include").iterdir(), _HERE / "exports.map"]
    return sorted((*own, *shared))
