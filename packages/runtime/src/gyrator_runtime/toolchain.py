"""Finding a C++ compiler and saying how to call it. Nothing is compiled to find things out.

How a kernel library is linked, and why (measured with torch 2.13.0+cpu and g++ 12):

* `-nostdlib` leaves every symbol undefined; dlopen resolves them from what the process has loaded.
  `import torch` loads libtorch_global_deps.so with RTLD_GLOBAL, which puts torch's own libgomp and
  libm into the global scope, so `GOMP_parallel`, `omp_get_max_threads` and `lgamma` are found.
* g++ keeps `-lgomp` even under `-nostdlib -fopenmp`, which writes `NEEDED libgomp.so.1`. The loader
  matches that against the SONAME of what is mapped; torch's copy has that SONAME, so the kernels
  share torch's thread pool and follow `torch.set_num_threads`. (A wheel whose libgomp has
  another name would get a second pool: `openmp_link` then links without that entry.)
* clang maps `-fopenmp` to libomp, a second pool, and drops the pragmas with `-fopenmp=libgomp`;
  kernels built by clang are therefore single-threaded (`Toolchain.threads` says so).
* The package `ziglang` of PyPI holds a clang with headers and a linker, for machines that have no
  compiler. By itself it would write for this very processor, put sanitizers into its code, and
  build and link a C++ library of its own; `_packaged` and `module_flags` keep it from all three.
"""

import functools
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from attrs import field, frozen

from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.cache import Cache, make_key
from gyrator_runtime.process import Limited
from gyrator_runtime.warn import warn

__all__ = ["Toolchain", "ToolchainError", "find_cross_toolchain", "find_toolchain"]

CANDIDATES = ("g++", "clang++", "c++")
"""Names tried in this order where $CXX is not set."""

_INSTALL = (
    "install one (Debian: apt-get install g++; without rights to: "
    "pip install 'gyrator[compiler]') or set CXX to one"
)

_SECONDS = 10.0
"""How long a compiler may take to say what it is."""

BASE_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-nostdlib",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
)
ISA_FLAGS: Mapping[str, tuple[str, ...]] = {
    "avx512": (
        "-O2",
        "-fno-tree-slp-vectorize",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
    ),
    "avx2": ("-O2", "-fno-tree-slp-vectorize", "-mavx2", "-mfma", "-mf16c"),
    "neon": ("-O2", "-fno-tree-slp-vectorize", "-mno-outline-atomics"),
    "plain": ("-O3",),
}
"""What the compiler may use on each instruction set level (`CpuDevice.isa`), and how hard it tries:
text that is written in vectors needs none of the loop transformations of -O3, which take up to half
of the compile time, but for short loops over lanes being unrolled (`-fpeel-loops`), and no search
for vectors in straight lines."""


class ToolchainError(GyratorError):
    """There is no usable C++ compiler; the caller runs in eager mode."""


@frozen
class Toolchain:
    """A compiler that was found; `identity` stands for it in cache keys."""

    command: tuple[str, ...]  # the program's path, then what $CXX had after it
    version: str  # first line of `--version`
    family: str  # "gcc" or "clang"
    openmp_link: bool = True  # whether torch's libgomp answers to the name that g++ links
    machine: str = field(factory=platform.machine)  # whose code it makes
    packaged: bool = False  # whether it is that of the Python package `ziglang`

    @property
    def threads(self) -> bool:
        """Whether `#pragma omp` reaches torch's thread pool."""
        return self.family == "gcc"

    @property
    def identity(self) -> bytes:
        """Return bytes that differ where the compiler's output may."""
        parts = (self.family, self.version, *self.command[1:], str(self.openmp_link))
        return "\n".join((*parts, self.machine)).encode()

    @property
    def foreign(self) -> bool:
        """Whether it makes code of another machine, which cannot be loaded here."""
        return self.machine != platform.machine()

    @property
    def module_flags(self) -> tuple[str, ...]:
        """Flags for a Python module, beside those that every compiler is given."""
        return ("-nostdlib", "-lc") if self.packaged else ()

    @property
    def module_needs(self) -> tuple[str, ...]:
        """SONAMEs of what torch has loaded that stands in for the compiler's own libraries."""
        return ("libstdc++.so.6", "libgcc_s.so.1") if self.packaged else ()

    def compile_flags(self, isa: str) -> tuple[str, ...]:
        """Flags that turn a kernel unit into an object for instruction set level `isa`."""
        own = ("-fopenmp", "-fpeel-loops") if self.family == "gcc" else ()
        return (*BASE_FLAGS, *own, *ISA_FLAGS[isa])

    def build_commands(self, isa: str, source: str, library: str) -> tuple[tuple[str, ...], ...]:
        """Commands, run in order, that make the shared `library` from the C++ file `source`."""
        flags = self.compile_flags(isa)
        if self.openmp_link or not self.threads:
            return ((*self.command, *flags, "-shared", "-o", library, source),)
        obj = f"{source}.o"
        return (
            (*self.command, *flags, "-c", "-o", obj, source),
            (*self.command, "-shared", "-nostdlib", "-o", library, obj),
        )


def find_toolchain(
    env: Mapping[str, str],
    cache: Cache | None = None,
    seconds: float = _SECONDS,
) -> Toolchain:
    """Return the first C++ compiler of $CXX, g++, clang++, c++ that answers to `--version`, or that
    of the Python package `ziglang`.

    The answer is kept in `cache` under the program's path, size and time, so that a warm process
    starts none. One that takes more than `seconds` is not asked again by this process. Raises
    ToolchainError (GY-BUILD-001) where there is none.
    """
    explicit = _explicit(env.get("CXX", ""))
    tried: list[str] = []
    link = torch_libgomp_has_standard_name()
    for words in (explicit,) if explicit else tuple([c] for c in CANDIDATES):
        found = shutil.which(words[0], path=env.get("PATH", os.defpath))
        tried.append(words[0])
        if found is None:
            continue
        version = _version((found,), cache, seconds)
        if version is None:
            continue
        family = "clang" if "clang" in version else "gcc"
        return Toolchain((found, *words[1:]), version, family, link)
    if not explicit and (packaged := _packaged()):
        tried.append("ziglang")
        version = _version(packaged[:2], cache, seconds)
        if version is not None:
            return Toolchain(packaged, version, "clang", link, packaged=True)
    raise _no_compiler(f"no C++ compiler works (tried {', '.join(tried)})")


def find_cross_toolchain(
    machine: str, env: Mapping[str, str], cache: Cache | None = None
) -> Toolchain:
    """Return a compiler of another machine's code: `$GYRATOR_CXX_AARCH64`, or the one that
    distributions call `aarch64-linux-gnu-g++`; on that machine itself what `find_toolchain` finds.

    Raises ToolchainError (GY-BUILD-001) where there is none.
    """
    if machine == platform.machine():
        return find_toolchain(env, cache)
    variable = f"GYRATOR_CXX_{machine.upper()}"
    words = _explicit(env.get(variable, "")) or [f"{machine}-linux-gnu-g++"]
    found = shutil.which(words[0], path=env.get("PATH", os.defpath))
    version = None if found is None else _version((found,), cache, _SECONDS)
    if found is None or version is None:
        debian = machine.replace("_", "-")
        raise _no_compiler(
            f"no C++ compiler for {machine} works (tried {words[0]})",
            f"install one (Debian: apt-get install g++-{debian}-linux-gnu) or set {variable}",
        )
    family = "clang" if "clang" in version else "gcc"
    return Toolchain((found, *words[1:]), version, family, machine=machine)


def _explicit(cxx: str) -> list[str]:
    """Return the words of $CXX, without those that ask for code of this very processor.

    What is stored says which instruction set level it needs; other machines may share the cache.
    """
    try:
        words = shlex.split(cxx)
    except ValueError as error:
        raise _no_compiler(f"CXX is no command line ({error}): {cxx}") from error
    kept = [w for w in words if not re.fullmatch("-m(arch|cpu)=native", w)]
    if kept != words:
        warn(
            "GY-BUILD-010",
            "CXX asks for code of this very processor (=native), which is left out",
            "kernels use the processor's vectors anyhow; GYRATOR_ISA chooses the level",
        )
    return kept


def _packaged() -> tuple[str, ...]:
    """Return how the package `ziglang` is called as a C++ compiler; empty without it."""
    found = find_spec("ziglang")
    folders = () if found is None else tuple(found.submodule_search_locations or ())
    programs = (Path(folder, name) for folder in folders for name in ("zig", "zig.exe"))
    program = next((p for p in programs if p.is_file()), None)
    if program is None:
        return ()
    linux = sys.platform.startswith("linux")
    place = ("-target", f"{platform.machine()}-linux-gnu") if linux else ("-mcpu=baseline",)
    return (str(program), "c++", *place, "-fno-sanitize=all")


def _no_compiler(message: str, help: str = _INSTALL) -> ToolchainError:
    return ToolchainError.of("GY-BUILD-001", message, help=help)


def stand_in_command(toolchain: Toolchain, soname: str, file: str) -> tuple[str, ...]:
    """Return the command that makes `file`, an empty library to link with in place of `soname`.

    What is linked with it finds the real library by name in the process. Linking with the real
    one gives the same, and takes 0.4 s for libtorch's table of symbols.
    """
    flags = ("-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-o", file)
    return (*toolchain.command, *flags, "-x", "c", os.devnull)


def torch_libgomp_has_standard_name() -> bool:
    """Whether the OpenMP library in this process is called libgomp.so.1, or there is none yet."""
    names = loaded_openmp()
    return not names or any(Path(n).name == "libgomp.so.1" for n in names)


def loaded_openmp() -> tuple[str, ...]:
    """Paths of the OpenMP libraries that this process has mapped, from /proc/self/maps."""
    try:
        lines = os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines()
    except OSError:
        return ()
    mapped = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    prefixes = ("libgomp", "libiomp", "libomp")
    return tuple(sorted(p for p in mapped if Path(p).name.startswith(prefixes)))


def _version(command: tuple[str, ...], cache: Cache | None, seconds: float) -> str | None:
    program = command[0]
    try:
        state = os.stat(program)
    except OSError:
        return None
    real = os.path.realpath(program)
    # One program may answer to several names, as ccache does for all that it calls.
    named = {"name": program, "path": real}
    fields = {**named, "size": str(state.st_size), "mtime": str(state.st_mtime_ns)}
    key = make_key("toolchain", {n: os.fsencode(v) for n, v in fields.items()})
    entry = None if cache is None else cache.get(key)
    if entry is not None:
        return entry.read("version").decode()
    try:
        version = _ask_version(command, key.hex, seconds)
    except OSError:
        return None
    if version is not None and cache is not None:
        cache.keep(key, {"version": version.encode()})
    return version


@functools.cache
def _ask_version(command: tuple[str, ...], state: str, seconds: float) -> str | None:
    """Return what a program calls itself; None, from then on, for one that took too long.

    OSError, which is not remembered, where it fails or gives no version.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = Limited((*command, "--version"), seconds, Path(folder))
        status, output = asked.wait()
    if asked.late:
        return None
    first = output.strip().partition("\n")[0].strip()
    if status or not re.search(r"\d", first):
        raise OSError(f"{command[0]} has no version")
    return first
