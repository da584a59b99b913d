"""The target `metal-shim`: the host's memory, and Metal kernels built as C++.

The text is what a Mac's GPU would run; `gyrator_codegen_metal.shim` has a standard library for it.
`GYRATOR_TARGETS=metal-shim` puts it in the place of the C++ target.
"""

from collections.abc import Sequence

from attrs import evolve, frozen

from gyrator.config import Config
from gyrator.targets import API, Building, KernelLoader, LoaderContext, TargetDefinition
from gyrator.targets.cpu import make_loader as make_cpp_loader
from gyrator.targets.metal import KERNELS, metal_target
from gyrator_codegen_metal.shim import host_unit
from gyrator_conformance.interpreter import make_device
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.types import HOST

NAME = "metal-shim"


@frozen(eq=False)
class ShimLoader:
    """Builds Metal kernels with the machine's C++ compiler."""

    compiler: KernelLoader

    @property
    def identity(self) -> bytes:
        """The compiler's version."""
        return self.compiler.identity

    def submit(self, units: Sequence[TranslationUnit]) -> Building:
        """Start compiling."""
        return self.compiler.submit(tuple(map(host_unit, units)))


def probe(config: Config) -> Target:
    """Describe a Mac's GPU with the host's memory."""
    return metal_target(HOST, "shim", ("python", "cpp", "fx"))


def make_loader(target: Target, context: LoaderContext) -> ShimLoader:
    """Find a compiler. ToolchainError (GY-BUILD-001) where there is none."""
    return ShimLoader(make_cpp_loader(evolve(target, arch="plain"), context))


TARGET = TargetDefinition(
    name=NAME,
    api=API,
    probe=probe,
    kernels=KERNELS,
    device=make_device,
    loader=make_loader,
    optional=True,
)
