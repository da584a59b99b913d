"""GPUs and other devices whose kernels are written in Triton.

A device is described by data (`TritonDevice`): the name of its architecture, its capabilities, its
heuristics, and its driver. Kernels for NVIDIA and AMD devices are launched through their drivers;
those for others are emitted, and compiled if Triton has a backend for them.
"""

import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gyrator.config import Config
from gyrator.engine.lazy import ShippedTemplates
from gyrator.targets import API, LoaderContext, TargetDefinition
from gyrator_ir.define import frozen
from gyrator_ir.modes import StoreMode
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.types import BYTE_FLOATS, DType
from gyrator_runtime.accelerator import AcceleratorDevice, DeviceFacts
from gyrator_runtime.build import BuildError
from gyrator_runtime.native import DeviceLaunch
from gyrator_runtime.triton.architecture import AND_LATER, FIRST_SPECIFIC, compute_capability
from gyrator_runtime.triton.driver import AMD, NVIDIA, Driver, DriverNames, open_driver

if TYPE_CHECKING:
    from gyrator_runtime.triton.build import TritonBuilder

_INTEGERS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)
_FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)
_ALL = frozenset((*_FLOATS, *BYTE_FLOATS, *_INTEGERS, DType.U64, DType.U32, DType.U16, DType.BOOL))
_ADDED = (DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I64)
_ORDERED = (DType.F32, DType.F64, DType.I32, DType.I64)
_ATOMICS = frozenset(
    {(d, StoreMode.ADD) for d in _ADDED}
    | {(d, mode) for d in _ORDERED for mode in (StoreMode.MIN, StoreMode.MAX)}
    | {(d, StoreMode.TOTAL) for d in (DType.F32, DType.F64)}
)


_TEMPLATES = frozenset(
    "attention attention_gradients flex_attention flex_attention_parts "
    "flex_attention_gradients".split()
)
_SCRATCH = 1 << 15
"""Bytes of a row that one program keeps in registers."""


@frozen(kw_only=True, eq=False)
class TritonDevice:
    """A kind of device, as data."""

    name: str
    """The name of the target."""
    device: str
    """`torch.device.type`."""
    backend: str
    """Triton's name of the backend."""
    code: str
    """Triton's name of the machine code format."""
    prefix: str
    """The prefix of architecture names that is removed for Triton."""
    warp: int
    """Threads per warp."""
    present: Callable[[], bool]
    architecture: Callable[[Any], str]
    driver: DriverNames | None
    """None if kernels can be emitted, but not launched."""
    libraries: frozenset[str]
    graphs: bool = False
    overlap: Callable[[str], bool] = lambda arch: False
    """Whether launches of an architecture can start before the previous one ends."""
    reciprocals: bool = False
    """Whether ATen divides by a scalar by multiplying with its reciprocal."""
    tf32: Callable[[str], bool] = lambda arch: False
    """Whether the matrix units of an architecture support TF32."""
    converted: Callable[[str], frozenset[DType]] = lambda arch: frozenset()
    """The 8-bit floats for which an architecture has conversion instructions."""
    flash: Callable[[str], bool] = lambda arch: False
    """Whether torch has flash attention for an architecture."""
    shared: Callable[[str], int] = lambda arch: 0
    """Bytes of shared memory per program, by architecture; 0 if unknown."""
    cores: Callable[[str], int] = lambda arch: 0
    """Number of multiprocessors of an architecture's typical device; 0 for an unknown architecture,
    or one that packages do not support."""
    usual: tuple[str, ...] = ()
    """Default architectures of packages."""

    def target(self, arch: str, cores: int) -> Target:
        """Return the target for an architecture with this many multiprocessors."""
        return Target(
            device=self.device,
            arch=arch,
            kernel_backend="triton",
            wrapper_backends=("python", "cpp", "fx"),
            capabilities=Capabilities(
                dtypes=_ALL,
                atomics=_ATOMICS,
                sort_extent=512,
                scan_extent=4096,
                unchecked_division=True,
                reciprocals=self.reciprocals,
                graphs=self.graphs,
                overlap=self.overlap(arch),
                templates=_TEMPLATES,
                matrix_units=frozenset({DType.F16, DType.BF16, DType.F32, DType.I8}),
                tf32=self.tf32(arch),
                converted=self.converted(arch),
                libraries=self.libraries | ({"flash_attention"} if self.flash(arch) else set()),
            ),
            heuristics=Heuristics(
                cores=cores,
                parallel_grain=1 << 16,
                split_reduction_points=512,
                split_reduction_extent=_SCRATCH // 4 + 1,
                split_scan_extent=4096,
                adjacent_points=32,
                scratch_bytes=_SCRATCH,
                total_elements=_SCRATCH // 4,
                total_grain=1 << 22,
                unit_statements=1,
                slack_bytes=1 << 23,
                product_bytes=16 if self.libraries else 0,
                thin_products="cublas" in self.libraries,
                plane_convolutions="cudnn" in self.libraries,
                depthwise_elements=1 << 21 if "cudnn" in self.libraries else 0,
                unfused_bias="cudnn" in self.libraries,
                channels_last="cudnn" in self.libraries,
                shared_bytes=self.shared(arch),
                together_elements=1 << 20,
                together_tensors=480,
                together_kinds=4,
                saved_conditions=True,
                saved_positions=True,
                quick_exp2=True,
                summed_rows=64,
            ),
        )

    @property
    def facts(self) -> DeviceFacts:
        """The description of the device for the runtime's device interface."""
        return DeviceFacts(type=self.device, architecture=self.architecture, graphs=self.graphs)

    def open(self) -> Driver:
        """Return the driver. Raises BuildError (GY-BUILD-006) if kernels cannot be launched
        here."""
        if self.driver is None:
            message = f"Gyrator has no driver to launch kernels on {self.device}"
            help = "install the vendor's target, which can provide a loader of its own"
            raise BuildError.of("GY-BUILD-006", message, help=help)
        return open_driver(self.driver)

    def definition(self) -> TargetDefinition:
        """Return the target definition that sessions load."""
        return TargetDefinition(
            name=self.name,
            api=API,
            probe=self._probe,
            kernels=ShippedTemplates("triton", "gyrator_codegen_triton.stage", "TritonBackend"),
            device=lambda target: AcceleratorDevice(self.facts),
            loader=self._loader,
            load=self._load,
            uninitialised=self._uninitialised,
            elsewhere=self._elsewhere,
            usual=self.usual,
        )

    def _elsewhere(self, arch: str) -> Target | None:
        cores = self.cores(arch)
        return self.target(arch, cores) if cores else None

    def _uninitialised(self) -> bool:
        return not torch.get_device_module(self.device).is_initialized()

    def _probe(self, _: Config) -> Target | None:
        if not self.present():
            return None
        properties = AcceleratorDevice(self.facts).properties(0)
        return self.target(properties.arch, properties.cores)

    def _loader(self, target: Target, context: LoaderContext) -> "TritonBuilder":
        from gyrator_runtime.triton.build import Language, TritonBuilder  # only GPU graphs need it

        try:
            version = importlib.metadata.version("triton")
        except importlib.metadata.PackageNotFoundError:
            message = f"Triton is not installed, but kernels for {self.device} require it"
            help = "run `pip install triton`"
            raise BuildError.of("GY-BUILD-005", message, help=help) from None
        later = target.arch.endswith(AND_LATER)
        language = Language(
            backend=self.backend,
            code="ptx" if later else self.code,
            arch=target.arch.removeprefix(self.prefix).removesuffix(AND_LATER),
            warp=self.warp,
            version=version,
        )
        return TritonBuilder(
            language,
            context.cache,
            self.open,
            jobs=context.threads,
            progress=context.progress,
            timeout=context.seconds,
            complete=context.complete,
        )

    def _load(self, path: Path, symbols: Sequence[str]) -> Mapping[str, DeviceLaunch]:
        from gyrator_runtime.triton.build import load_binaries

        return load_binaries(self.open(), path, symbols)


def _capability(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip(f"abcdef_{AND_LATER}") or 0)


def _nvidia_cores(arch: str) -> int:
    if not re.fullmatch(rf"sm_\d+[{AND_LATER}]?", arch):
        return 0
    capability = _capability(arch)
    if capability < 75 or (capability >= FIRST_SPECIFIC and arch.endswith(AND_LATER)):
        return 0  # not supported by Triton, or PTX that is specific to one architecture
    return {75: 40, 80: 108, 90: 132, 100: 148, 103: 148, 120: 170}.get(capability, 84)


def _nvidia_converted(arch: str) -> frozenset[DType]:
    # PTX ISA, `cvt`; on older architectures, Triton rounds to F8E5M2 via F16.
    return frozenset({DType.F8E4M3, DType.F8E5M2}) if _capability(arch) >= 90 else frozenset()


def _nvidia_shared(arch: str) -> int:
    # CUDA C++ Programming Guide, technical specifications per compute capability.
    capability = _capability(arch)
    sizes = {70: 96, 75: 64, 80: 163, 87: 163, 86: 99, 89: 99, 120: 99, 121: 99}
    return sizes.get(capability, 227 if capability >= 90 else 48) << 10


def _architecture_name(properties: Any) -> str:
    return str(getattr(properties, "architecture", "") or properties.name)


NVIDIA_GPU = TritonDevice(
    name="cuda",
    device="cuda",
    backend="cuda",
    code="cubin",
    prefix="sm_",
    warp=32,
    present=lambda: torch.version.cuda is not None and torch.cuda.is_available(),
    architecture=compute_capability,
    driver=NVIDIA,
    libraries=frozenset({"cublas", "cudnn"}),
    graphs=True,
    reciprocals=True,
    shared=_nvidia_shared,
    cores=_nvidia_cores,
    # The last one covers 8.6, 8.9 and 12.0, which have the least shared memory.
    usual=("sm_80", "sm_90", "sm_100", "sm_86+"),
    overlap=lambda arch: _capability(arch) >= 90,
    tf32=lambda arch: _capability(arch) >= 80,
    converted=_nvidia_converted,
    flash=lambda arch: _capability(arch) >= 80,  # architectures for which torch builds its kernels
)
AMD_GPU = TritonDevice(
    name="hip",
    device="cuda",  # torch's name for AMD devices as well
    backend="hip",
    code="hsaco",
    prefix="",
    warp=64,
    present=lambda: torch.version.hip is not None and torch.cuda.is_available(),
    architecture=lambda properties: str(properties.gcnArchName).partition(":")[0],
    driver=AMD,
    libraries=frozenset({"hipblas", "miopen"}),
    graphs=True,
    reciprocals=True,
    shared=lambda arch: (160 if arch == "gfx950" else 64) << 10,
    tf32=lambda arch: arch == "gfx942",
)
INTEL_GPU = TritonDevice(
    name="xpu",
    device="xpu",
    backend="xpu",
    code="zebin",
    prefix="",
    warp=32,
    present=lambda: torch.xpu.is_available(),
    architecture=_architecture_name,
    driver=None,
    libraries=frozenset({"onednn"}),
)
MTIA = TritonDevice(
    name="mtia",
    device="mtia",
    backend="mtia",
    code="bin",
    prefix="",
    warp=32,
    present=lambda: torch.mtia.is_available(),
    architecture=_architecture_name,
    driver=None,
    libraries=frozenset(),
)

CUDA_TARGET = NVIDIA_GPU.definition()
HIP_TARGET = AMD_GPU.definition()
XPU_TARGET = INTEL_GPU.definition()
MTIA_TARGET = MTIA.definition()
