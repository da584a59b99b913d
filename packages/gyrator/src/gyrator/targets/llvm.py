"""The CPU with LLVM: kernels in LLVM IR, compiled in this process by llvmlite.

It takes the place of the C++ target where `GYRATOR_TARGETS=llvm` chooses it, and, for programs that
are not in the cache, on a machine without a C++ compiler.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from attrs import evolve

from gyrator.config import Config
from gyrator.engine.lazy import ShippedKernels
from gyrator.targets import API, LoaderContext, TargetDefinition
from gyrator.targets.aten_bits import bits_without_sums
from gyrator.targets.cpu import load_kernels, make_device
from gyrator.targets.cpu import probe as probe_cpu
from gyrator_ir.define import frozen
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Heuristics, Target
from gyrator_ir.types import BYTE_FLOATS, DType
from gyrator_runtime.build import BuildError, Library
from gyrator_runtime.cache import Cache, make_key
from gyrator_runtime.native import KernelFunction
from gyrator_runtime.warn import warn

LACKING = frozenset({"erfinv", "lgamma", "digamma"})
"""Rows of the op table that LLVM kernels lack."""
FILE = "kernels.o"


def available() -> bool:
    """Return whether llvmlite is installed."""
    return find_spec("llvmlite") is not None


def probe(config: Config) -> Target | None:
    """Describe this machine's processor as a target of LLVM kernels; None, with a warning, if
    llvmlite is not installed."""
    if not available():
        message = "LLVM is not installed, but GYRATOR_TARGETS selects its kernels"
        warn("GY-LLVM-006", message, "run `pip install gyrator[llvm]`; until then it is ignored")
        return None
    target = probe_cpu(config)
    able = target.capabilities
    lacking = {*BYTE_FLOATS, DType.F16} if target.arch == "plain" else set(BYTE_FLOATS)
    capabilities = evolve(
        able,
        dtypes=able.dtypes - lacking,
        ops_lacking=LACKING,
        ordered_stores=False,
        sorts=False,
        templates=frozenset(),
    )
    heuristics = Heuristics(scatter_choices=True)
    return evolve(target, kernel_backend="llvm", capabilities=capabilities, heuristics=heuristics)


@frozen(eq=False)
class LlvmUnits:
    """Modules, compiled when they are first needed."""

    units: tuple[TranslationUnit, ...]
    arch: str
    cache: Cache
    identity: bytes

    def libraries(self) -> tuple[Library, ...]:
        """Return the object code for a cache entry."""
        files = map(self._built, self.units)
        return tuple(
            Library(u.name, f.read_bytes(), u.symbols, u.text, isa=self.arch)
            for u, f in zip(self.units, files, strict=True)
        )

    def addresses(self) -> Mapping[str, KernelFunction]:
        """Compile and load the kernels, and return them by symbol."""
        kernels: dict[str, KernelFunction] = {}
        for unit in self.units:
            kernels |= load_kernels(self._built(unit), unit.symbols)
        return kernels

    def _built(self, unit: TranslationUnit) -> Path:
        """Return the file of a unit's object code, which is compiled if it is not in the cache."""
        from gyrator_codegen_llvm.build import compiled

        def build(folder: Path) -> None:
            try:
                code = compiled(unit.text, self.arch)
            except RuntimeError as error:
                message = f"LLVM does not compile a kernel: {error}"
                help = "please report this"
                raise BuildError.of("GY-LLVM-007", message, where=unit.name, help=help) from error
            (folder / FILE).write_bytes(code)

        fields = {"text": unit.text.encode(), "compiler": self.identity, "isa": self.arch.encode()}
        return self.cache.get_or_build(make_key("kernels", fields), build).file(FILE)


@frozen(eq=False)
class LlvmLoader:
    """The builder of LLVM kernels."""

    arch: str
    cache: Cache
    identity: bytes
    """The versions of llvmlite and LLVM."""

    def submit(self, units: Sequence[TranslationUnit]) -> LlvmUnits:
        """Return the units, to be compiled when their addresses are needed."""
        return LlvmUnits(tuple(units), self.arch, self.cache, self.identity)


def make_loader(target: Target, context: LoaderContext) -> LlvmLoader:
    """Return the loader, which needs llvmlite."""
    from gyrator_codegen_llvm.build import version

    return LlvmLoader(target.arch, context.cache, version().encode())


LLVM = TargetDefinition(
    name="llvm",
    api=API,
    probe=probe,
    kernels=ShippedKernels("llvm", "gyrator_codegen_llvm.stage", "LlvmBackend"),
    device=make_device,
    loader=make_loader,
    load=load_kernels,
    aten_bits=bits_without_sums,
    optional=True,
)
