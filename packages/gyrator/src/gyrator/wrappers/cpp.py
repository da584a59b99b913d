"""C++ host programs: schemas from torch's registry, units to libraries, libraries to callables."""

import ctypes
import os
import subprocess
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache as once
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from attrs import frozen
from torch._subclasses.fake_tensor import unset_fake_temporarily

from gyrator.store.manifest import CompiledHost
from gyrator_ir.content import content_hash
from gyrator_ir.diagnostics import LayoutError
from gyrator_ir.host.nodes import (
    CallPartition,
    CallProgram,
    CollectiveStart,
    Conform,
    Copy,
    ExternCall,
    HostProgram,
    Launch,
    ListValue,
    Mend,
    Return,
    Value,
)
from gyrator_ir.host.walk import programs, uses, walk
from gyrator_ir.source import HostUnit, Program
from gyrator_runtime import host
from gyrator_runtime.artifact import Library, libraries_of
from gyrator_runtime.build import Builder, BuildHandle
from gyrator_runtime.cache import Cache, CacheError
from gyrator_runtime.host.externs import overload
from gyrator_runtime.host.outside import conform
from gyrator_runtime.native import LoadedKernel
from gyrator_runtime.native.extension import Extension
from gyrator_runtime.native.kernels import check_handler
from gyrator_runtime.native.shim import load_shim
from gyrator_runtime.progress import ProgressReporter
from gyrator_runtime.toolchain import Toolchain, ToolchainError, find_toolchain, stand_in_command
from gyrator_runtime.warn import warn
from gyrator_wrapper_cpp.schema import Schema, parse_schema, targets
from gyrator_wrapper_cpp.stage import CppWrapper, interface

LIBTORCH = "libtorch_cpu.so"
"""The SONAME of the library that exports the C ABI."""
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden", "-w")
"""A call's time is spent in libtorch: -O2 makes it no shorter, and compiling three times longer."""
HOOKED = frozenset({"Generator", "str"})
"""Types of arguments that the C ABI does not pass well: opaque parameters are objects of Python
here, and libtorch 2.13 never frees a string that it was given."""
NO_TRITON: Mapping[str, Callable[..., None]] = MappingProxyType({})


# Text -----------------------------------------------------------------------------------------


@frozen
class TorchCppWrapper:
    """The `WrapperBackend` for C++ on the torch of this process.

    What the C ABI does not pass (scalars, strings, generators) is called through Python.
    """

    name: str = "cpp"

    @property
    def content_hash(self) -> str:
        """A digest of the emitter's source: what calls its programs is in the umbrella's."""
        return content_hash("gyrator_wrapper_cpp")

    def emit(self, program: HostProgram) -> Program:
        """Write the host program.

        UnsupportedError for what the C ABI has no way to do (GY-WCPP-005), ExternError
        (GY-RUNTIME-002) for an op that this torch does not have.
        """
        return _emitter({t: _schema(t) for t in targets(program)}).emit(program)


def _emitter(schemas: Mapping[str, Schema]) -> CppWrapper:
    major, minor = torch.__version__.split(".")[:2]
    return CppWrapper(schemas, (int(major), int(minor)), fallback=True, hooked=HOOKED)


def _schema(target: str) -> Schema:
    found: Any = overload(target)
    return parse_schema(str(found._schema))


def calling(program: HostProgram, emitted: Program) -> CompiledHost:
    """Return what `load` needs to know of a program."""
    last = program.instructions[-1]
    values = last.values if isinstance(last, Return) else ()
    launches = [i for p in programs(program) for i in walk(p.instructions) if isinstance(i, Launch)]
    counts = {i.kernel: (len(i.tensors), len(i.sizes)) for i in launches}
    return CompiledHost(
        parameters=_letters(program),
        results=(len(values), *_shape(values)),
        kernels=tuple((name, *counts[name]) for name in emitted.kernels),
        written=_written(program),
        entry=emitted.entry,
        parts=tuple(symbol for unit in emitted.units[1:] for symbol in unit.symbols),
    )


def _written(program: HostProgram) -> tuple[int, ...]:
    """Return the places of the parameters that may not be replaced by a copy."""
    kept = {
        i.tensor
        for i in program.instructions
        if isinstance(i, Conform) and not i.what and i.mend is Mend.NOTHING
    }
    return tuple(k for k, p in enumerate(program.parameters) if p.name in kept)


def _letters(program: HostProgram) -> str:
    """Return a letter for each parameter: `t` for a tensor, `c` for one that calls of ops take."""
    called = {
        name
        for i in walk(program.instructions)
        if isinstance(i, ExternCall | CollectiveStart | CallProgram | CallPartition | Copy)
        for name in uses(i)
    }
    kinds = ((p.name, p.kind[0]) for p in program.parameters)
    return "".join("c" if kind == "t" and name in called else kind for name, kind in kinds)


def _shape(values: Sequence[Value]) -> Iterator[int]:
    for value in values:
        if isinstance(value, ListValue):
            yield len(value.items)
            yield from _shape(value.items)
        else:
            yield -1


# Libraries ------------------------------------------------------------------------------------


class HostToolchain(Toolchain):
    """Compiles host programs: exceptions, libtorch by name.

    g++ does not link the C and the C++ library, which takes longer than to write a small program's
    code: they are found among what libtorch needs. `libgcc`, whose functions stand for instructions
    that a processor lacks, is linked all the same: they are hidden in each library.
    """

    def compile_flags(self, isa: str) -> tuple[str, ...]:
        """Flags for any processor of the machine's architecture."""
        return FLAGS

    def build_commands(self, isa: str, source: str, library: str) -> tuple[tuple[str, ...], ...]:
        """Commands, run in order, that make the shared `library` from the C++ file `source`."""
        stand_in = f"{source}.o"  # the builder removes a file of that name
        bare, own = (("-nostdlib",), ("-lgcc",)) if self.family == "gcc" else ((), ())
        return (
            stand_in_command(self, LIBTORCH, stand_in),
            (
                *(*self.command, *FLAGS, *bare, "-shared", "-Wl,--no-as-needed"),
                *("-o", library, source, stand_in, *own),
            ),
        )


@frozen(eq=False)
class HostBuilding:
    """Units of a host program being built."""

    builder: Builder
    handle: BuildHandle

    def done(self) -> bool:
        """Whether `libraries` would return at once."""
        return self.handle.done()

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return what a cache entry needs to hold."""
        return libraries_of(self.handle.built())

    def addresses(self) -> Mapping[str, int]:
        """Wait, load, and return the address of the entry and of each part by its symbol."""
        return self.handle.result()


@frozen(eq=False)
class CppHost:
    """What builds and calls C++ host programs in this process."""

    caller: ModuleType
    toolchain: HostToolchain | None
    """None where there is no compiler: then programs of the cache can be called."""

    def submit(
        self,
        units: Sequence[HostUnit],
        cache: Cache,
        jobs: int,
        progress: ProgressReporter,
        seconds: float = 300.0,
    ) -> HostBuilding:
        """Start compiling, `jobs` units at a time (0: one a core), each for `seconds` at most."""
        if self.toolchain is None:
            raise ValueError("there is no compiler")
        builder = Builder(
            self.toolchain, cache, "", jobs=jobs or None, progress=progress, timeout=seconds
        )
        handle = builder.submit(units)
        return HostBuilding(builder, handle)


@once
def cpp_host(cache: Cache) -> CppHost | None:
    """Return what builds and calls C++ host programs, or None after one warning."""
    toolchain: HostToolchain | None = None
    reason = "there is no C++ compiler"
    try:
        found = find_toolchain(os.environ, cache)
        toolchain = HostToolchain(found.command, found.version, found.family, found.openmp_link)
    except ToolchainError:
        pass
    extension = Extension("_gycaller", _caller_source(), needs=LIBTORCH)
    try:
        caller = extension.find(cache)
        if caller is None and toolchain is not None:
            caller = extension.build(cache, toolchain)
        if caller is not None:
            return CppHost(caller, toolchain)
    except (OSError, ImportError, CacheError, subprocess.SubprocessError) as error:
        reason = str(error).strip()
    no_cpp(reason)
    return None


def no_cpp(reason: str) -> None:
    """Warn that host programs are in Python although C++ was asked for."""
    warn(
        "GY-WRAPPER-001",
        f"C++ host programs cannot be built ({reason}); host programs are in Python",
        "install a C++ compiler and Python's headers (Debian: apt-get install g++ python3-dev)",
    )


def _caller_source() -> bytes:
    text = Path(__file__).with_name("caller.cpp").read_bytes()
    return interface().encode() + text


# Calls ----------------------------------------------------------------------------------------


def load(
    caller: ModuleType,
    about: CompiledHost,
    addresses: Mapping[str, Any],
    kernels: Mapping[str, LoadedKernel],
    constants: Sequence[torch.Tensor],
    triton_kernels: Mapping[str, Callable[..., None]] = NO_TRITON,
    timed: bool = False,
) -> Any:
    """Return a loaded program as a callable that takes a list of arguments, which it empties.

    Args:
        caller: the module of `CppHost`.
        about: what `calling` gave.
        addresses: of the entry and the parts, by symbol.
        kernels: by name.
        constants: tensors in the order of `Program.constants`.
        triton_kernels: launchers of users' Triton kernels, by key.
        timed: count and time the launches; `timings()` of the result has a row a kernel.
    """
    functions = [_address(kernels[name].function, *counts) for name, *counts in about.kernels]

    def kernel_error(kernel: int, code: int) -> None:
        name = about.kernels[kernel][0]
        raise check_handler(kernels[name].function, name, kernels[name].checks)(code, (), ())

    def launch_user(kernel: str, grids: list[Any], arguments: dict[str, Any]) -> None:
        triton_kernels[kernel](grids, arguments)

    parts = [addresses[symbol] for symbol in about.parts]
    written = frozenset(about.written)

    def resolved(given: torch.Tensor, place: int) -> torch.Tensor:
        """Return a parameter whose conjugation or negation is still to be done, with it done."""
        form = (given.shape, given.stride(), given.dtype, given.device)
        mend = Mend.NOTHING if place in written else Mend.PENDING
        return conform(given, *form, mend, f"at place {place}", "")

    hooks = (
        call_op, launch_user, kernel_error, host.check_nan, host.tma_descriptor, typed, _stolen,
        layout_error, resolved,
    )  # fmt: skip
    with unset_fake_temporarily():  # AOTAutograd's fake mode may be on
        probe = torch.empty(3)
        shim = load_shim()
    program: Any = caller.Program(
        entry=addresses[about.entry],
        kinds=about.parameters.encode(),
        shape=array("i", about.results).tobytes(),
        n_outputs=sum(n < 0 for n in about.results),
        kernels=array("Q", [address for address, _ in functions]).tobytes(),
        parts=array("Q", parts).tobytes(),
        constants=tuple(constants),
        hooks=hooks,
        tensor_type=torch.Tensor,
        cdata=torch._C.TensorBase.__dict__["_cdata"],
        wrap=_wrap_address(),
        probe=probe,
        timed=timed,
        kept=(addresses[about.entry], *parts, *(owner for _, owner in functions)),
        key_offset=0 if shim is None else shim.inside.keys,
        pending=0 if shim is None else shim.inside.pending,
    )
    return program


def _address(function: Any, tensors: int, sizes: int) -> tuple[int, object]:
    """Return the address of a kernel's function, and what must live as long as it is called.

    A kernel that is queued on a device goes through a function of Python.
    """
    if isinstance(function, int):
        return function, function  # an address may keep its library mapped
    pointers = ctypes.POINTER(ctypes.c_void_p)
    numbers = ctypes.POINTER(ctypes.c_int64)

    def run(buffers: Any, values: Any) -> int:
        given: int = function.launch(buffers[:tensors], values[:sizes])
        return given

    made = ctypes.CFUNCTYPE(ctypes.c_int64, pointers, numbers)(run)
    return ctypes.cast(made, ctypes.c_void_p).value or 0, made


def _wrap_address() -> int:
    """Return the address of `PyObject *(const at::TensorBase &)`; 0 where torch does not tell."""
    guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    address = getattr(guards, "_torchinductor_thp_variable_wrap", 0)
    return address if isinstance(address, int) else 0


def _stolen(capsule: Any) -> torch.Tensor:
    found: torch.Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)
    return found


@once
def _operator(op: str, name: str) -> tuple[Callable[..., Any], int, tuple[str, ...]]:
    """Return an op, how many arguments it takes by position, and the names of the others."""
    function: Any = overload(f"{op.replace('::', '.')}.{name or 'default'}")
    arguments = function._schema.arguments
    keywords = tuple(a.name for a in arguments if a.kwarg_only)
    return function, len(arguments) - len(keywords), keywords


def call_op(op: str, name: str, arguments: list[Any], wanted: str) -> list[Any]:
    """Call an op that the C ABI can't; see `GyCallOp` in the interface of the programs."""
    function, positional, keywords = _operator(op, name)
    named = dict(zip(keywords, arguments[positional:], strict=True))
    found = function(*arguments[:positional], **named)
    if not wanted:
        return []
    several = found if len(wanted) > 1 else (found,)
    results: list[Any] = []
    for letter, result in zip(wanted, several, strict=True):
        if letter == "L":
            results.extend(result)
        elif letter == "1":
            results.append(result)
    return results


def layout_error(code: str, text: str) -> None:
    """Raise the error of an input or of an op's result that a program does not take."""
    help = "pass what the program was compiled for, or correct the op's meta (fake) function"
    raise LayoutError.of(code, text, help=help)


def typed(text: str) -> Any:
    """Return what `dtype:float32`, `device:cpu`, `layout:...` or `memory_format:...` says."""
    kind, _, value = text.partition(":")
    return torch.device(value) if kind == "device" else getattr(torch, value)
