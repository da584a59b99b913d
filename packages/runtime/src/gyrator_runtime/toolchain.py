"""Detection of a C++ compiler and its command lines. No probe programs are compiled.

How kernel libraries are linked, and why (measured with torch 2.13.0+cpu and g++ 12):

* `-nostdlib` leaves all symbols undefined; dlopen resolves them from libraries in the process.
  `import torch` loads libtorch_global_deps.so with RTLD_GLOBAL, which puts PyTorch's own libgomp
  and libm into the global scope, so `GOMP_parallel`, `omp_get_max_threads` and `lgamma` resolve.
* g++ keeps `-lgomp` even with `-nostdlib -fopenmp`, which writes `NEEDED libgomp.so.1`. The loader
  matches that against the SONAMEs of mapped libraries. PyTorch's copy has that SONAME, so kernels
  share PyTorch's thread pool and follow `torch.set_num_threads`. (With a wheel whose libgomp has
  another name there would be a second pool; without `openmp_link`, that entry is not written.)
* clang maps `-fopenmp` to libomp, a second pool, and ignores the pragmas with `-fopenmp=libgomp`.
  Kernels built by clang are therefore single-threaded (see `Toolchain.threads`).
* By default GNU ld puts code, constants and relocated data on pages and mappings of their own.
  Without that, a small library takes 3 KB instead of 14 and two mappings instead of five, and loads
  in four fifths of the time. Kernels have no data that needs the protection.
* The PyPI package `ziglang` contains a clang with headers and a linker, for machines without a
  compiler. By default it targets the build processor, enables sanitizers, and builds and links its
  own C++ library; `_packaged` and `module_flags` disable all three.
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

from attrs import field

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.cache import Cache, make_key
from gyrator_runtime.process import Limited
from gyrator_runtime.warn import warn

__all__ = ["Toolchain", "ToolchainError", "find_cross_toolchain", "find_toolchain"]

CANDIDATES = ("g++", "clang++", "c++")
"""Compilers to try, in this order, if $CXX is not set."""

_INSTALL = (
    "install one (Debian: apt-get install g++; without root: "
    "pip install 'gyrator[compiler]') or set CXX to one"
)

_SECONDS = 10.0
"""Time limit for a compiler to print its version."""

BASE_FLAGS = tuple(
    (
        "-std=c++17 -fPIC -nostdlib -fno-math-errno -fno-trapping-math -ffp-contract=off "
        "-fno-strict-aliasing -fno-exceptions -fno-rtti -fno-asynchronous-unwind-tables"
    ).split()
)
ISA_FLAGS: Mapping[str, tuple[str, ...]] = {
    "avx512": tuple(
        (
            "-O2 -fno-tree-slp-vectorize -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma "
            "-mf16c -mprefer-vector-width=512"
        ).split()
    ),
    "avx2": ("-O2", "-fno-tree-slp-vectorize", "-mavx2", "-mfma", "-mf16c"),
    "neon": ("-O2", "-fno-tree-slp-vectorize", "-mno-outline-atomics"),
    "plain": ("-O3",),
}
"""Compiler flags for each instruction set level (`CpuDevice.isa`).

Explicitly vectorised kernels need no SLP vectoriser and none of the loop transformations of -O3,
which take up to half of the compile time, except unrolling of short loops over lanes
(`-fpeel-loops`)."""

_DENSE = ("-Wl,-z,noseparate-code", "-Wl,-z,norelro")
"""Flags that keep GNU ld from placing code, constants and relocated data on separate pages."""


class ToolchainError(GyratorError):
    """There is no usable C++ compiler. The caller runs in eager mode."""


@frozen
class Toolchain:
    """A detected compiler. `identity` represents it in cache keys."""

    command: tuple[str, ...]  # the program's path, then the arguments in $CXX
    version: str  # first line of `--version`
    family: str  # "gcc" or "clang"
    openmp_link: bool = True  # whether PyTorch's libgomp has the SONAME that g++ links
    machine: str = field(factory=platform.machine)  # the target machine
    packaged: bool = False  # whether it is from the Python package `ziglang`

    @property
    def threads(self) -> bool:
        """Whether `#pragma omp` uses PyTorch's thread pool."""
        return self.family == "gcc"

    @property
    def identity(self) -> bytes:
        """Bytes that differ if the compiler's output may differ."""
        parts = (self.family, self.version, *self.command[1:], str(self.openmp_link))
        return "\n".join((*parts, self.machine)).encode()

    @property
    def foreign(self) -> bool:
        """Whether it compiles for another machine, so that its output cannot be loaded here."""
        return self.machine != platform.machine()

    @property
    def module_flags(self) -> tuple[str, ...]:
        """Additional flags for building a Python module."""
        return ("-nostdlib", "-lc") if self.packaged else ()

    @property
    def module_needs(self) -> tuple[str, ...]:
        """SONAMEs of libraries loaded by PyTorch that replace the compiler's own."""
        return ("libstdc++.so.6", "libgcc_s.so.1") if self.packaged else ()

    def compile_flags(self, isa: str) -> tuple[str, ...]:
        """Return the flags for compiling a kernel unit for instruction set level `isa`."""
        own = ("-fopenmp", "-fpeel-loops") if self.family == "gcc" else ()
        return (*BASE_FLAGS, *own, *ISA_FLAGS[isa])

    def build_commands(self, isa: str, source: str, library: str) -> tuple[tuple[str, ...], ...]:
        """Return the commands, to run in order, that build the shared `library` from the C++ file
        `source`."""
        flags = self.compile_flags(isa)
        gnu = self.family == "gcc" and sys.platform.startswith("linux")
        link = ("-shared", *(_DENSE if gnu else ()))
        if self.openmp_link or not self.threads:
            return ((*self.command, *flags, *link, "-o", library, source),)
        object_file = f"{source}.o"
        return (
            (*self.command, *flags, "-c", "-o", object_file, source),
            (*self.command, *link, "-nostdlib", "-o", library, object_file),
        )


def find_toolchain(
    env: Mapping[str, str], cache: Cache | None = None, seconds: float = _SECONDS
) -> Toolchain:
    """Return the first working C++ compiler of $CXX, or of g++, clang++, c++ and the one in the
    Python package `ziglang`.

    The version is cached in `cache` by the program's path, size and modification time, so that a
    warm process does not start the compiler. A compiler that takes more than `seconds` to print its
    version is not tried again by this process.

    Raises:
        ToolchainError: GY-BUILD-001, when there is none.
    """
    explicit = _explicit(env.get("CXX", ""))
    tried: list[str] = []
    link = torch_libgomp_has_standard_name()
    for words in (explicit,) if explicit else tuple([c] for c in CANDIDATES):
        program = shutil.which(words[0], path=env.get("PATH", os.defpath))
        tried.append(words[0])
        if program is None:
            continue
        version = _version((program,), cache, seconds)
        if version is None:
            continue
        family = "clang" if "clang" in version else "gcc"
        return Toolchain((program, *words[1:]), version, family, link)
    if not explicit and (packaged := _packaged()):
        tried.append("ziglang")
        version = _version(packaged[:2], cache, seconds)
        if version is not None:
            return Toolchain(packaged, version, "clang", link, packaged=True)
    raise _no_compiler(f"no C++ compiler works (tried {', '.join(tried)})")


def find_cross_toolchain(
    machine: str, env: Mapping[str, str], cache: Cache | None = None
) -> Toolchain:
    """Return a cross-compiler for another machine: `$GYRATOR_CXX_AARCH64`, or
    `aarch64-linux-gnu-g++`. On that machine itself, return the result of `find_toolchain`.

    Raises:
        ToolchainError: GY-BUILD-001, when there is none.
    """
    if machine == platform.machine():
        return find_toolchain(env, cache)
    variable = f"GYRATOR_CXX_{machine.upper()}"
    words = _explicit(env.get(variable, "")) or [f"{machine}-linux-gnu-g++"]
    program = shutil.which(words[0], path=env.get("PATH", os.defpath))
    version = None if program is None else _version((program,), cache, _SECONDS)
    if program is None or version is None:
        debian = machine.replace("_", "-")
        raise _no_compiler(
            f"no C++ compiler for {machine} works (tried {words[0]})",
            f"install one (Debian: apt-get install g++-{debian}-linux-gnu) or set {variable}",
        )
    family = "clang" if "clang" in version else "gcc"
    return Toolchain((program, *words[1:]), version, family, machine=machine)


def _explicit(cxx: str) -> list[str]:
    """Return the words of $CXX, without flags that target the build processor.

    Cached libraries state the instruction set level that they need, and other machines may share
    the cache.
    """
    try:
        words = shlex.split(cxx)
    except ValueError as error:
        raise _no_compiler(f"CXX is not a command line ({error}): {cxx}") from error
    portable = [w for w in words if not re.fullmatch("-m(arch|cpu)=native", w)]
    if portable != words:
        warn(
            "GY-BUILD-010",
            "CXX targets the build processor (=native), which is ignored",
            "kernels use the processor's vector instructions anyway; GYRATOR_ISA sets the level",
        )
    return portable


def _packaged() -> tuple[str, ...]:
    """Return the command of the C++ compiler in the package `ziglang`; empty without it."""
    spec = find_spec("ziglang")
    folders = () if spec is None else tuple(spec.submodule_search_locations or ())
    programs = (Path(folder, name) for folder in folders for name in ("zig", "zig.exe"))
    program = next((p for p in programs if p.is_file()), None)
    if program is None:
        return ()
    linux = sys.platform.startswith("linux")
    target = ("-target", f"{platform.machine()}-linux-gnu") if linux else ("-mcpu=baseline",)
    return (str(program), "c++", *target, "-fno-sanitize=all")


def _no_compiler(message: str, help: str = _INSTALL) -> ToolchainError:
    return ToolchainError.of("GY-BUILD-001", message, help=help)


def stand_in_command(toolchain: Toolchain, soname: str, file: str) -> tuple[str, ...]:
    """Return the command that builds `file`, an empty library to link against instead of `soname`.

    At run time, the loader finds the real library in the process by its SONAME. Linking against the
    real libtorch gives the same result but takes 0.4 s to read its symbol table.
    """
    flags = ("-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-o", file)
    return (*toolchain.command, *flags, "-x", "c", os.devnull)


def torch_libgomp_has_standard_name() -> bool:
    """Return whether the OpenMP library in this process is named libgomp.so.1, or there is none."""
    names = loaded_openmp()
    return not names or any(Path(n).name == "libgomp.so.1" for n in names)


def loaded_openmp() -> tuple[str, ...]:
    """Return the paths of the OpenMP libraries mapped into this process, from /proc/self/maps."""
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
    # One program may act as several compilers depending on its name, as ccache does.
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
        cache.try_put(key, {"version": version.encode()})
    return version


@functools.cache
def _ask_version(command: tuple[str, ...], state: str, seconds: float) -> str | None:
    """Return the version line of a program; None, also for later calls, if it took too long.

    OSError, which is not cached, if it fails or prints no version.
    """
    with tempfile.TemporaryDirectory() as folder:
        child = Limited((*command, "--version"), seconds, Path(folder))
        status, output = child.wait()
    if child.late:
        return None
    first = output.strip().partition("\n")[0].strip()
    if status or not re.search(r"\d", first):
        raise OSError(f"{command[0]} has no version")
    return first
