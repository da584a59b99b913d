"""The target `cpu-interpreter`: the host's memory, and kernels run by the reference interpreter.

Its kernel language is the text form of Kernel IR. A kernel becomes a function with the C calling
convention of every kernel (`gyrator_ir.source.KernelSource`), which looks at the buffers as flat
NumPy arrays. `GYRATOR_TARGETS=cpu-interpreter` puts it in the place of the C++ target.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from gyrator.config import Config
from gyrator.targets import API, LoaderContext, TargetDefinition
from gyrator_ir.content import content_hash
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import Expr, ShapeFacts, Sym, evaluate
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, TemplateKernel
from gyrator_ir.kernel.parse import read_kernel
from gyrator_ir.kernel.print import show_kernel
from gyrator_ir.kernel.reach import accessed_extent
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.modes import ATOMIC_MODES, Failure
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelCheck, KernelSource, TranslationUnit
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.text.lines import parse_lines
from gyrator_ir.text.scanner import Writer
from gyrator_ir.types import HOST, DType
from gyrator_runtime.build import Library
from gyrator_runtime.device import CpuDevice, DeviceInterface
from gyrator_testing.interp.dtypes import NUMPY, Array
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.interp.memory import span

NAME = "cpu-interpreter"
OUTSIDE = "index out of range"
CHECKS = (
    KernelCheck(1, Failure.INDEX, OUTSIDE),
    KernelCheck(2, Failure.RUNTIME, OUTSIDE),
    KernelCheck(3, Failure.RUNTIME, "the reference interpreter failed"),
)
"""What a kernel's result other than 0 means."""

_Function = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
)
Functions = Callable[[str], Mapping[str, int]]
"""Gives the address of each kernel of a unit's text by its symbol."""

_UNKNOWN_SPAN = 1 << 40
"""Elements that a buffer may have where the kernel does not know the sizes of its layout."""

DTYPES = frozenset(d for d in DType if not d.is_complex and d.size > 1) | frozenset(
    {DType.I8, DType.U8, DType.BOOL}
)


@frozen
class InterpreterBackend:
    """Kernels as the text of Kernel IR. It implements `KernelBackend`."""

    name: str = "interpreter"

    @property
    def content_hash(self) -> str:
        """A digest of the interpreter's source, and of this suite's."""
        return content_hash("gyrator_conformance")

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Refuse nothing: the interpreter is total."""
        return None

    def emit(
        self,
        kernels: Sequence[Kernel],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Print the kernels, one unit in all."""
        if not kernels:
            return ()
        sources = tuple(
            KernelSource(k.name, f"gy_{k.name}", kernel_text(k), CHECKS) for k in kernels
        )
        return (TranslationUnit("unit0", self.name, "".join(s.text for s in sources), sources),)


def kernel_text(kernel: Launchable) -> str:
    """Return the text of a kernel without its origins, which `read_launchable` reads."""
    return "\n".join(show_kernel(_plain(kernel), Writer())) + "\n"


def _plain(kernel: Launchable) -> Launchable:
    if isinstance(kernel, KernelGroup):
        return evolve(kernel, kernels=tuple(evolve(k, origins=()) for k in kernel.kernels))
    if isinstance(kernel, Kernel):
        return evolve(kernel, origins=(), refusals=())
    return evolve(kernel, origins=())


@frozen(eq=False)
class InterpretedKernel:
    """A kernel as a function of the calling convention; lives as long as the process."""

    kernel: Launchable
    run: Callable[[Any, dict[str, Array], dict[str, int]], None] = run_kernel
    """Runs the kernel on flat arrays and sizes by their names, in place."""
    _entry: Any = field(init=False)
    _accessed: Sequence[tuple[Buffer, Expr | None]] = field(init=False)
    """Each parameter, and the bound of the elements that the kernel accesses, where known."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_accessed", tuple(_accessed(self.kernel)))
        object.__setattr__(self, "_entry", _Function(self._call))

    @property
    def address(self) -> int:
        """Where the function is."""
        return ctypes.cast(self._entry, ctypes.c_void_p).value or 0

    def _call(self, buffers: Any, sizes: Any) -> int:
        values = {s.name: int(sizes[k]) for k, s in enumerate(self.kernel.sizes)}
        known: dict[Sym, Any] = {s: values[s.name] for s in self.kernel.sizes}
        try:
            arrays = {
                p.name: _array(p, buffers[k] or 0, known, extent)
                for k, (p, extent) in enumerate(self._accessed)
            }
            self.run(self.kernel, arrays, values)
        except IndexError:
            return 1
        except RuntimeError:
            return 2
        except Exception:  # an exception cannot pass through the C caller
            return 3
        return 0


def _accessed(kernel: Launchable) -> Iterator[tuple[Buffer, Expr | None]]:
    if isinstance(kernel, TemplateKernel):
        yield from ((p, None) for p in kernel.parameters)
        return
    if isinstance(kernel, KernelGroup):
        members = [kernel.kernels[m] for m in kernel.members]
    else:
        members = [kernel]
    own = ((member, p) for member in members for p in member.parameters)
    for parameter, (member, p) in zip(kernel.parameters, own, strict=True):
        yield parameter, accessed_extent(member, p)


def _array(parameter: Buffer, address: int, known: Mapping[Sym, Any], extent: Expr | None) -> Array:
    layout = (*parameter.shape, *parameter.strides)
    free = {s for e in layout for s in e.free_symbols}
    if free <= known.keys():
        count = span(parameter, known)
    else:
        count = _UNKNOWN_SPAN if extent is None else max(0, evaluate(extent, known))
    dtype = NUMPY[parameter.dtype]
    if address == 0 or count == 0:
        return np.zeros(count if count < _UNKNOWN_SPAN else 0, dtype)
    raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.ctypeslib.as_array(raw).view(dtype)


@frozen(eq=False)
class _Building:
    units: tuple[TranslationUnit, ...]
    functions: Functions

    def libraries(self) -> tuple[Library, ...]:
        return tuple(
            Library(u.name, u.text.encode(), tuple(k.symbol for k in u.kernels)) for u in self.units
        )

    def addresses(self) -> Mapping[str, int]:
        addresses: dict[str, int] = {}
        for unit in self.units:
            addresses |= self.functions(unit.text)
        return addresses


@frozen(eq=False)
class InterpreterLoader:
    """Reads kernels. There is nothing to build."""

    functions: Functions
    identity: bytes = b"interpreter"

    def submit(self, units: Sequence[TranslationUnit]) -> _Building:
        """Take the units as they are."""
        return _Building(tuple(units), self.functions)


def functions(text: str) -> Mapping[str, int]:
    """Return the address of each kernel of a text by its symbol; the same text, the same ones."""
    return {symbol: kernel.address for symbol, kernel in _kernels(text).items()}


@cache
def _kernels(text: str) -> Mapping[str, InterpretedKernel]:
    """Keep the kernels of a text: compiled programs hold the addresses of their functions only."""
    kernels = map(read_kernel, parse_lines(text))
    by_symbol = {f"gy_{k.name}": InterpretedKernel(k) for k in kernels}
    return MappingProxyType(by_symbol)


def load(functions: Functions, file: Path, symbols: Sequence[str]) -> Mapping[str, int]:
    """Read kernels that a cache entry holds, as `functions` reads a unit's text."""
    by_name = functions(file.read_text())
    return {s: by_name[s] for s in symbols}


def probe(config: Config) -> Target:
    """Describe the host as the interpreter sees it."""
    return Target(
        device=HOST,
        arch="interpreter",
        kernel_backend="interpreter",
        wrapper_backends=("python", "fx", "cpp"),
        capabilities=Capabilities(
            dtypes=DTYPES,
            atomics=frozenset((d, m) for d in DTYPES for m in ATOMIC_MODES if d is not DType.BOOL),
        ),
        heuristics=Heuristics(),
    )


def make_device(target: Target) -> DeviceInterface:
    """Return the host's device interface."""
    return CpuDevice()


def make_loader(target: Target, context: LoaderContext) -> InterpreterLoader:
    """Return the loader; it needs no compiler."""
    return InterpreterLoader(functions)


TARGET = TargetDefinition(
    name=NAME,
    api=API,
    probe=probe,
    kernels=InterpreterBackend(),
    device=make_device,
    loader=make_loader,
    load=partial(load, functions),
    optional=True,
)
