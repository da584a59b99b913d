"""The CPU with Halide: kernels in Halide, compiled ahead of time to shared libraries.

`GYRATOR_TARGETS=halide` replaces the C++ target; `halide-mullapudi2016` and similar ones use
schedules of Halide's autoschedulers. A unit's text is a script that writes an object file with
Halide's compiler, in a separate process, and C++ that is linked with it.
"""

import importlib.metadata
import os
import sys
from functools import partial

from attrs import evolve

from gyrator.config import Config
from gyrator.engine.lazy import ShippedKernels
from gyrator.targets import API, LoaderContext, TargetDefinition
from gyrator.targets.aten_bits import bits_without_sums
from gyrator.targets.cpu import CppLoader, make_device
from gyrator.targets.cpu import probe as probe_cpu
from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_runtime.build import BuildError
from gyrator_runtime.toolchain import Toolchain, find_toolchain

LACKING = frozenset({"fma", "fmod", "remainder", "erfinv", "lgamma", "digamma"})
"""Rows of the op table that Halide lacks."""


@frozen
class HalideToolchain(Toolchain):
    """Halide's compiler, and a C++ compiler for the wrapper function around its code."""

    halide: str = ""  # its version

    @property
    def identity(self) -> bytes:
        """Bytes that change whenever the output may change."""
        return super().identity + f"\nhalide {self.halide}".encode()

    def build_commands(self, isa: str, source: str, library: str) -> tuple[tuple[str, ...], ...]:
        """Return the commands that build the shared `library` from the text `source`."""
        script = (sys.executable, source, f"{source}.o")
        *before, (*last, linked) = super().build_commands(isa, source, library)
        if linked == source:
            return (script, (*last, linked, f"{source}.o"))
        own = f"{source}.entry.o"
        compile_ = tuple(own if word == f"{source}.o" else word for word in before[0])
        return (script, compile_, (*last, own, f"{source}.o"))


def probe(name: str, config: Config) -> Target:
    """Describe this machine's processor as a target of Halide kernels."""
    target = probe_cpu(config)
    capabilities = target.capabilities
    return evolve(
        target,
        kernel_backend=name,
        capabilities=evolve(
            capabilities,
            ops_lacking=LACKING,
            ordered_stores=False,
            sorts=False,
            templates=frozenset(),
        ),
        heuristics=evolve(target.heuristics, together_elements=0, panel_columns=0),
    )


def make_loader(target: Target, context: LoaderContext) -> CppLoader:
    """Find the compilers. Raises BuildError (GY-HALIDE-005) if Halide is not installed."""
    try:
        version = importlib.metadata.version("halide")
    except importlib.metadata.PackageNotFoundError:
        message = "Halide is not installed, but GYRATOR_TARGETS selects its kernels"
        help = "run `pip install gyrator[halide]`"
        raise BuildError.of("GY-HALIDE-005", message, help=help) from None
    base = find_toolchain(os.environ, context.cache)
    toolchain = HalideToolchain(
        base.command, base.version, base.family, base.openmp_link, base.machine,
        base.packaged, version,
    )  # fmt: skip
    return CppLoader.of(toolchain, target, context)


def _definition(name: str, attribute: str) -> TargetDefinition:
    return TargetDefinition(
        name=name,
        api=API,
        probe=partial(probe, name),
        kernels=ShippedKernels(name, "gyrator_codegen_halide.stage", attribute),
        device=make_device,
        loader=make_loader,
        aten_bits=bits_without_sums,
        optional=True,
    )


HALIDE = _definition("halide", "HalideBackend")
MULLAPUDI = _definition("halide-mullapudi2016", "MULLAPUDI")
ADAMS = _definition("halide-adams2019", "ADAMS")
LI = _definition("halide-li2018", "LI")
