"""The CPU: C++ kernels with vector extensions, built by the machine's compiler."""

import functools
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from attrs import evolve

from gyrator.config import Config
from gyrator.engine.lazy import ShippedTemplates
from gyrator.targets import API, OPTIONAL, LoaderContext, TargetDefinition
from gyrator.targets.aten_bits import known_bits
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.modes import ATOMIC_MODES
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.types import BYTE_FLOATS, DType
from gyrator_runtime.build import Builder, BuildError, BuildHandle, available_cores, load_library
from gyrator_runtime.device import (
    ISA_LEVELS,
    CpuDevice,
    DeviceError,
    DeviceInterface,
    cpu_isa,
    isa_levels,
    machine_of,
    processor,
)
from gyrator_runtime.native import KernelFunction
from gyrator_runtime.toolchain import Toolchain, ToolchainError, find_cross_toolchain
from gyrator_runtime.warn import warn

_LIBRARIES = ("MKL_", "ONEDNN_", "DNNL_")
"""Prefixes of the environment variables that torch's libraries read."""

_PANEL_COLUMNS: Mapping[str, int] = MappingProxyType({"avx512": 32, "avx2": 16, "neon": 8})
"""Two vectors of `float32`, the columns of a register tile."""
_DEPTHWISE: Mapping[str, int] = MappingProxyType({"avx512": 49, "avx2": 25})
_TEMPLATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    dict.fromkeys(("avx512", "avx2"), ("convolution", "depthwise"))
)
_INTEGERS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)
_FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)
_DTYPES = frozenset(
    (*_FLOATS, *BYTE_FLOATS, *_INTEGERS, DType.U64, DType.U32, DType.U16, DType.BOOL)
)


def probe(config: Config) -> Target:
    """Describe this machine's processor, at the level that `GYRATOR_ISA` allows.

    A level that is unknown, or that the processor lacks, is ignored with a warning.
    """
    try:
        isa = cpu_isa(config.isa or None)
    except DeviceError as error:
        isa = cpu_isa()
        message = f"GYRATOR_ISA: {error.diagnostic.message}; kernels are built for {isa}"
        warn(error.diagnostic.code, message, error.diagnostic.help)
    target = cpu_target(isa, available_cores())
    able = target.capabilities
    libraries = able.libraries | _onednn_extensions()
    return evolve(target, capabilities=evolve(able, libraries=libraries))


def _onednn_extensions() -> frozenset[str]:
    """Return the names of the types that oneDNN multiplies by instructions of this processor."""
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        return frozenset()
    able = {
        "onednn-bfloat16": torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "onednn-int8": torch.cpu._is_vnni_supported(),
    }
    return frozenset(name for name, has in able.items() if has)


def cpu_target(isa: str, cores: int) -> Target:
    """Return the target for one instruction set level and number of cores."""
    return Target(
        device="cpu",
        arch=isa,
        kernel_backend="c++",
        wrapper_backends=("python", "cpp", "fx"),
        capabilities=Capabilities(
            ordered_reductions=True,
            ordered_stores=True,
            dtypes=_DTYPES,
            atomics=frozenset((d, m) for d in (*_FLOATS, *_INTEGERS) for m in ATOMIC_MODES),
            templates=frozenset({"flex_attention", *_TEMPLATES.get(isa, ())}),
            libraries=frozenset({"mkl", "onednn"}),
        ),
        heuristics=Heuristics(
            cores=cores,
            saved_conditions=True,
            scatter_choices=True,
            column_parts=0 if isa == "plain" else 64,
            together_elements=1 << 18,
            slack_parts=64,
            depthwise_gradients=isa in ("avx512", "avx2"),
            integer_products=isa != "plain",
            register_tiles=isa != "plain",
            quick_quotients=isa == "avx2",
            panel_columns=_PANEL_COLUMNS.get(isa, 0),
            depthwise_window=_DEPTHWISE.get(isa, 0),
            convolution_pixels=128 if isa == "avx512" else 0,
            attention_keys=512 if isa in ("avx512", "avx2") else 0,
        ),
    )


def narrower(target: Target) -> tuple[Target, ...]:
    """Return the target, and those of the narrower vector levels of its processor."""
    available = isa_levels(machine_of(target.arch))
    levels = available[1 : available.index(target.arch) + 1]
    return tuple(cpu_target(isa, target.heuristics.cores) for isa in reversed(levels))


@frozen(eq=False)
class CppLoader:
    """Builds translation units with the machine's C++ compiler and maps them into the process."""

    builder: Builder

    @classmethod
    def of(cls, toolchain: Toolchain, target: Target, context: LoaderContext) -> "CppLoader":
        """Return the loader that builds for a target with these tools."""
        jobs, progress = context.threads or None, context.progress
        return cls(
            Builder(
                toolchain, context.cache, target.arch,
                jobs=jobs, progress=progress, timeout=context.seconds,
            )
        )  # fmt: skip

    @property
    def identity(self) -> bytes:
        """The compiler's version."""
        return self.builder.toolchain.identity

    def submit(self, units: Sequence[TranslationUnit]) -> BuildHandle:
        """Start compiling."""
        return self.builder.submit(units)

    def close(self) -> None:
        """Wait for running compilers and end the threads that call them."""
        self.builder.close()


def make_loader(target: Target, context: LoaderContext) -> CppLoader:
    """Find a compiler for the target's machine. Raises ToolchainError (GY-BUILD-001) if there is
    none."""
    toolchain = find_cross_toolchain(machine_of(target.arch), os.environ, context.cache)
    return CppLoader.of(toolchain, target, context)


def without_compiler(error: GyratorError) -> TargetDefinition | None:
    """Return the target whose kernels LLVM builds in this process, if the error is that no C++
    compiler works, and llvmlite is installed."""
    if not isinstance(error, ToolchainError) or find_spec("llvmlite") is None:
        return None
    (point,) = entry_points(group=OPTIONAL, name="llvm")
    definition: TargetDefinition = point.load()
    _tell(error.diagnostic.message, error.diagnostic.help)
    return definition


@functools.cache
def _tell(reason: str, help: str) -> None:
    """Warn, once, that LLVM takes the place of the compiler."""
    warn("GY-LLVM-008", f"{reason}: LLVM builds the kernels, which run on one thread", help)


def load_kernels(path: Path, symbols: Sequence[str]) -> Mapping[str, KernelFunction]:
    """Map the shared library of a cache entry, or load object code that LLVM wrote.

    Raises:
        BuildError: GY-BUILD-004, when that fails.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            relocatable = file.read(18)[16:] == _RELOCATABLE
    except OSError:
        relocatable = False
    if not relocatable:
        return load_library(path, symbols)
    from gyrator_codegen_llvm.build import loaded

    try:
        return loaded(path.read_bytes(), symbols)
    except (OSError, RuntimeError) as error:
        message = f"the object code of kernels cannot be loaded: {error}"
        help = "empty the cache folder"
        raise BuildError.of("GY-BUILD-004", message, where=path.name, help=help) from error


_RELOCATABLE = b"\x01\x00"
"""The type of an ELF file that is not linked."""


def make_device(target: Target) -> DeviceInterface:
    """Return the device interface of the CPU."""
    return CpuDevice(target.arch)


def machine() -> str:
    """Describe the processor, and the settings that affect the speed and accuracy of torch's
    libraries."""
    variables = (f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(_LIBRARIES))
    onednn: Any = torch.backends.mkldnn
    precision = onednn.matmul.fp32_precision
    if precision == "none":  # unset, which means IEEE
        precision = "ieee"
    parts = (processor(), torch.get_num_threads(), onednn.enabled, precision, *variables)
    return "\n".join(map(str, parts))


CPU = TargetDefinition(
    name="cpu",
    api=API,
    probe=probe,
    kernels=ShippedTemplates("c++", "gyrator_codegen_cpp.stage", "CppBackend"),
    device=make_device,
    loader=make_loader,
    variants=narrower,
    machine=machine,
    aten_bits=known_bits,
    instead=without_compiler,
    load=load_kernels,
    elsewhere=lambda isa: cpu_target(isa, available_cores()) if isa in ISA_LEVELS else None,
)
