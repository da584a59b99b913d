"""C++ host programs: reading schemas from torch's registry, building units, loading libraries."""

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
from torch._C._dynamo import guards
from torch._subclasses.fake_tensor import unset_fake_temporarily

from gyrator.store.manifest import CompiledHost
from gyrator_ir.content import content_hash
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import LayoutError
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import launches, unused_parameters, uses, walk
from gyrator_ir.source import HostUnit, Program
from gyrator_runtime import host
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
"""Calls spend their time in libtorch: -O2 does not make them faster, and triples compile time."""
HOOKED = frozenset({"Generator", "str"})
"""Argument types that the C ABI does not support well: opaque parameters are Python objects here,
and libtorch 2.13 never frees string arguments."""
NO_TRITON: Mapping[str, Callable[..., None]] = MappingProxyType({})


# Text -----------------------------------------------------------------------------------------


@frozen
class TorchCppWrapper:
    """The `WrapperBackend` for C++ with this process's torch.

    Ops with arguments that the C ABI does not support (scalars, strings, generators) are called
    through Python.
    """

    name: str = "cpp"

    @property
    def content_hash(self) -> str:
        """A digest of the emitter's source; the umbrella's digest includes the caller of its
        programs."""
        return content_hash("gyrator_wrapper_cpp")

    def emit(self, program: h.HostProgram) -> Program:
        """Emit the host program.

        Raises UnsupportedError (GY-WCPP-005) for a program that the C ABI does not support, and
        ExternError (GY-RUNTIME-002) for an op that this torch does not have.
        """
        return _emitter({t: _schema(t) for t in targets(program)}).emit(program)


def _emitter(schemas: Mapping[str, Schema]) -> CppWrapper:
    major, minor = torch.__version__.split(".")[:2]
    return CppWrapper(schemas, (int(major), int(minor)), fallback=True, hooked=HOOKED)


def _schema(target: str) -> Schema:
    op: Any = overload(target)
    return parse_schema(str(op._schema))


def calling(program: h.HostProgram, emitted: Program) -> CompiledHost:
    """Return the calling convention of a program, for `load`."""
    last = program.instructions[-1]
    values = last.values if isinstance(last, h.Return) else ()
    counts = {i.kernel: (len(i.tensors), len(i.sizes)) for i in launches(program)}
    return CompiledHost(
        parameters=_letters(program),
        results=(len(values), *_shape(values)),
        kernels=tuple((name, *counts[name]) for name in emitted.kernels),
        written=_written(program),
        entry=emitted.entry,
        parts=tuple(symbol for unit in emitted.units[1:] for symbol in unit.symbols),
    )


def _written(program: h.HostProgram) -> tuple[int, ...]:
    """Return the indices of the parameters that must not be replaced by a copy."""
    tensors = {
        i.tensor
        for i in program.instructions
        if isinstance(i, h.Conform) and not i.what and i.mend is h.Mend.NOTHING
    }
    return tuple(k for k, p in enumerate(program.parameters) if p.name in tensors)


def _letters(program: h.HostProgram) -> str:
    """Return a letter for each parameter: `t` for a tensor, `c` for a tensor that is passed to
    ops, `o` for any object and for an integer that nothing uses, which may be symbolic."""
    called = {
        name
        for i in walk(program.instructions)
        if isinstance(
            i, h.ExternCall | h.CollectiveStart | h.CallProgram | h.CallPartition | h.Copy
        )
        for name in uses(i)
    }
    unused = unused_parameters(program)
    kinds = ((p.name, "o" if p.name in unused else p.kind[0]) for p in program.parameters)
    return "".join("c" if kind == "t" and name in called else kind for name, kind in kinds)


def _shape(values: Sequence[h.Value]) -> Iterator[int]:
    for value in values:
        if isinstance(value, h.ListValue):
            yield len(value.items)
            yield from _shape(value.items)
        else:
            yield -1


# Libraries ------------------------------------------------------------------------------------


class HostToolchain(Toolchain):
    """Compiles host programs, with exceptions, linked to libtorch by its SONAME.

    With g++, the C and C++ libraries are not linked, which would take longer than compiling a small
    program: they are loaded as dependencies of libtorch. `libgcc`, whose functions replace missing
    instructions, is linked, since its functions are hidden in each library.
    """

    def compile_flags(self, isa: str) -> tuple[str, ...]:
        """Return flags for any processor of the machine's architecture."""
        return FLAGS

    def build_commands(self, isa: str, source: str, library: str) -> tuple[tuple[str, ...], ...]:
        """Return the commands that build the shared `library` from the C++ file `source`, in
        order."""
        stand_in = f"{source}.o"  # the builder removes this file
        bare, own = (("-nostdlib",), ("-lgcc",)) if self.family == "gcc" else ((), ())
        return (
            stand_in_command(self, LIBTORCH, stand_in),
            (
                *(*self.command, *FLAGS, *bare, "-shared", "-Wl,--no-as-needed"),
                *("-o", library, source, stand_in, *own),
            ),
        )


@frozen(eq=False)
class CppHost:
    """Builds and calls C++ host programs in this process."""

    caller: ModuleType
    toolchain: HostToolchain | None
    """None if there is no compiler: then only programs from the cache can be called."""

    def submit(
        self,
        units: Sequence[HostUnit],
        cache: Cache,
        jobs: int,
        progress: ProgressReporter,
        seconds: float = 300.0,
    ) -> BuildHandle:
        """Start compiling, `jobs` units in parallel (0: one per core), each for at most
        `seconds`."""
        if self.toolchain is None:
            raise ValueError("there is no compiler")
        builder = Builder(
            self.toolchain, cache, "", jobs=jobs or None, progress=progress, timeout=seconds
        )
        return builder.submit(units)


@once
def cpp_host(cache: Cache) -> CppHost | None:
    """Return the builder and caller of C++ host programs, or None after one warning."""
    toolchain: HostToolchain | None = None
    reason = "there is no C++ compiler"
    try:
        base = find_toolchain(os.environ, cache)
        toolchain = HostToolchain(base.command, base.version, base.family, base.openmp_link)
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
    """Warn that the wrapper 'python' is used instead of 'cpp'."""
    warn(
        "GY-WRAPPER-001",
        f"C++ host programs cannot be built ({reason}); the wrapper 'python' is used instead",
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
    """Return a loaded program as a callable that takes a list of arguments, which it clears.

    Args:
        caller: the module of `CppHost`.
        about: the result of `calling`.
        addresses: the addresses of the entry and the parts, by symbol.
        kernels: the kernels by name.
        constants: tensors in the order of `Program.constants`.
        triton_kernels: launchers of users' Triton kernels, by key.
        timed: count and time the launches; `timings()` of the result has one row per kernel.
    """
    functions = [_address(kernels[name].function, *counts) for name, *counts in about.kernels]
    parts = [addresses[symbol] for symbol in about.parts]
    with unset_fake_temporarily():  # AOTAutograd's fake mode may be active
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
        hooks=_hooks(about, kernels, triton_kernels),
        tensor_type=torch.Tensor,
        cdata=torch._C.TensorBase.__dict__["_cdata"],
        wrap=_wrap_address(),
        probe=probe,
        timed=timed,
        owners=(addresses[about.entry], *parts, *(owner for _, owner in functions)),
        key_offset=0 if shim is None else shim.fields.keys,
        pending=0 if shim is None else shim.fields.pending,
    )
    return program


def _hooks(
    about: CompiledHost,
    kernels: Mapping[str, LoadedKernel],
    triton_kernels: Mapping[str, Callable[..., None]],
) -> tuple[Callable[..., Any], ...]:
    """Return the functions that the caller calls, in its order."""
    written = frozenset(about.written)

    def kernel_error(kernel: int, code: int) -> None:
        name = about.kernels[kernel][0]
        raise check_handler(kernels[name].function, name, kernels[name].checks)(code, (), ())

    def launch_user(kernel: str, grids: list[Any], arguments: dict[str, Any]) -> None:
        triton_kernels[kernel](grids, arguments)

    def resolved(tensor: torch.Tensor, index: int) -> torch.Tensor:
        """Return a parameter with its conjugate or negative bit resolved."""
        form = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        mend = h.Mend.NOTHING if index in written else h.Mend.PENDING
        return conform(tensor, *form, mend, f"at index {index}", "")

    return (
        call_op, launch_user, kernel_error, host.check_nan, host.tma_descriptor, typed,
        _tensor_from_handle, layout_error, resolved,
    )  # fmt: skip


def _address(function: Any, tensors: int, sizes: int) -> tuple[int, object]:
    """Return the address of a kernel's function, and an object that must outlive its calls.

    Kernels launched on a device go through a Python function.
    """
    if isinstance(function, int):
        return function, function  # the address may own its library
    pointers = ctypes.POINTER(ctypes.c_void_p)
    numbers = ctypes.POINTER(ctypes.c_int64)

    def run(buffers: Any, values: Any) -> int:
        status: int = function.launch(buffers[:tensors], values[:sizes])
        return status

    callback = ctypes.CFUNCTYPE(ctypes.c_int64, pointers, numbers)(run)
    return ctypes.cast(callback, ctypes.c_void_p).value or 0, callback


def _wrap_address() -> int:
    """Return the address of `PyObject *(const at::TensorBase &)`; 0 if torch does not provide
    it."""
    address = getattr(guards, "_torchinductor_thp_variable_wrap", 0)
    return address if isinstance(address, int) else 0


def _tensor_from_handle(capsule: Any) -> torch.Tensor:
    tensor: torch.Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)
    return tensor


@once
def _operator(op: str, name: str) -> tuple[Callable[..., Any], int, tuple[str, ...]]:
    """Return an op, its number of positional arguments, and the names of the keyword arguments."""
    function: Any = overload(f"{op.replace('::', '.')}.{name or 'default'}")
    arguments = function._schema.arguments
    keywords = tuple(a.name for a in arguments if a.kwarg_only)
    return function, len(arguments) - len(keywords), keywords


def call_op(op: str, name: str, arguments: list[Any], letters: str) -> list[Any]:
    """Call an op that the C ABI does not support; see `GyCallOp` in the interface of the
    programs."""
    function, positional, keywords = _operator(op, name)
    named = dict(zip(keywords, arguments[positional:], strict=True))
    output = function(*arguments[:positional], **named)
    if not letters:
        return []
    outputs = output if len(letters) > 1 else (output,)
    results: list[Any] = []
    for letter, result in zip(letters, outputs, strict=True):
        if letter == "L":
            results.extend(result)
        elif letter == "1":
            results.append(result)
    return results


def layout_error(code: str, text: str) -> None:
    """Raise the error for an input or an op's result with an unexpected layout."""
    help = "pass what the program was compiled for, or correct the op's meta (fake) function"
    raise LayoutError.of(code, text, help=help)


def typed(text: str) -> Any:
    """Parse `dtype:float32`, `device:cpu`, `layout:...` or `memory_format:...`."""
    kind, _, value = text.partition(":")
    return torch.device(value) if kind == "device" else getattr(torch, value)
