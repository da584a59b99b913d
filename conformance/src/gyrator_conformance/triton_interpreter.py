"""The target `cpu-triton`: host memory, and Triton kernels in Triton's interpreter.

A unit's text is JSON: for each kernel the text of its Kernel IR, from which the spans of its
buffers follow, its Triton text, and the configuration. `GYRATOR_TARGETS=cpu-triton` selects it in
place of the C++ target, which allows examining GPU kernels on a machine without a GPU.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from attrs import evolve, field, frozen

from gyrator.config import Config
from gyrator.targets import API, LoaderContext, TargetDefinition
from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_conformance.interpreter import (
    CHECKS,
    InterpretedKernel,
    InterpreterLoader,
    kernel_text,
    load,
    make_device,
)
from gyrator_ir.body.nodes import Bind, Check
from gyrator_ir.content import content_hash
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import ShapeFacts, Sym, evaluate, parse_expr, subs, to_text
from gyrator_ir.grid import size_symbols
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, TemplateKernel
from gyrator_ir.kernel.parse import read_launchable
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.text.lines import parse_lines
from gyrator_ir.tile.loops import in_one_step
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import HOST
from gyrator_testing.interp.dtypes import Array
from gyrator_testing.triton import InterpretedError, TritonInterpreter

NAME = "cpu-triton"


@frozen
class InterpretedTriton:
    """Emits kernels as Triton text with the data needed to run them. Implements
    `TemplateBackend`."""

    name: str = "triton-interpreter"
    language: TritonBackend = field(factory=TritonBackend)

    @property
    def content_hash(self) -> str:
        """A digest of the emitter's source, and of this suite's."""
        return content_hash("gyrator_conformance")

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Refuse what the Triton emitter refuses."""
        return self.language.refuses(kernel, target)

    def refuses_template(self, kernel: TemplateKernel, target: Target) -> Diagnostic | None:
        """Refuse what the Triton emitter refuses."""
        return self.language.refuses_template(kernel, target)

    def emit(
        self,
        kernels: Sequence[Launchable],
        facts: ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Emit all kernels as one unit."""
        units = self.language.emit(kernels, facts, origins, target)
        if not kernels:
            return ()
        known = {k.name: k for k in kernels}
        rows: list[dict[str, object]] = []
        sources: list[KernelSource] = []
        for unit in units:
            for source in unit.kernels:
                kernel = known[source.kernel]
                blocks = _blocks(kernel, source, target)
                fixed = {Sym(n): value for n, value in blocks.items()}
                symbols = size_symbols(source, len(kernel.sizes))
                rows.append({
                    "kernel": kernel_text(kernel),
                    "symbol": source.symbol,
                    "text": source.text,
                    "blocks": blocks,
                    "grid": [to_text(subs(e, fixed)) for e in source.grid],
                    "sizes": [s.name for s in symbols],
                })  # fmt: skip
                sources.append(evolve(source, checks=CHECKS))
        text = json.dumps(rows, indent=1)
        return (TranslationUnit("unit0", self.name, text, tuple(sources)),)


def _blocks(kernel: Launchable, source: KernelSource, target: Target) -> dict[str, int]:
    """Return a configuration of small blocks: the interpreter reduces element by element."""
    blocks = {k: v for k, v in source.candidates[0].values if "BLOCK" in k}
    kernels = kernel.kernels if isinstance(kernel, KernelGroup) else (kernel,)
    for n, member in enumerate(kernels):
        if not isinstance(member, Kernel) or not member.inner:
            continue
        number = n if len(kernels) > 1 else ""
        x, r = f"XBLOCK{number}", f"RBLOCK{number}"
        blocks[x] = min(blocks[x], 8)
        (tiled,) = TritonBackend().tile((member,), ShapeFacts(), (), target).kernels
        if r in blocks and not (isinstance(tiled, TiledKernel) and in_one_step(tiled)):
            blocks[r] = min(blocks[r], 32)
    return blocks


@cache
def _interpreter() -> TritonInterpreter:
    """Return the interpreter of this process; it ends with the process."""
    return TritonInterpreter()


@cache
def _folder() -> "TemporaryDirectory[str]":
    return TemporaryDirectory(prefix="gyrator-")


@cache
def functions(text: str) -> Mapping[str, int]:
    """Return the address of each kernel of a unit by its symbol; equal texts have equal
    addresses."""
    return MappingProxyType({s: kernel.address for s, kernel in _kernels(text).items()})


@cache
def _kernels(text: str) -> Mapping[str, InterpretedKernel]:
    by_symbol: dict[str, InterpretedKernel] = {}
    for row in json.loads(text):
        (kernel,) = map(read_launchable, parse_lines(row["kernel"]))
        path = Path(_folder().name, f"k{sha256(row['text'].encode()).hexdigest()[:16]}.py")
        path.write_text(row["text"], encoding="utf-8")
        run = partial(_run, path, row)
        by_symbol[row["symbol"]] = InterpretedKernel(kernel, run)
    return MappingProxyType(by_symbol)


def _run(
    path: Path,
    row: Mapping[str, Any],
    kernel: Launchable,
    arrays: dict[str, Array],
    sizes: dict[str, int],
) -> None:
    types = [p.dtype for p in kernel.parameters]
    arguments = [arrays[p.name] for p in kernel.parameters]
    numbers = [sizes[s.name] for s in kernel.sizes]
    env = {Sym(n): value for n, value in zip(row["sizes"], numbers, strict=True)}
    grid = [evaluate(parse_expr(e), env) for e in row["grid"]]
    try:
        _interpreter().run(path, row["symbol"], arguments, types, numbers, row["blocks"], grid)
    except InterpretedError as error:
        outside = IndexError if Check.INDEX in _checks(kernel) else RuntimeError
        raise (outside if "AssertionError" in str(error) else ValueError)(str(error)) from error


def _checks(kernel: Launchable) -> set[Check]:
    """Return what a kernel may raise: its assertions do not tell one from the other."""
    if isinstance(kernel, TemplateKernel):
        return {Check.INDEX}
    kernels = kernel.kernels if isinstance(kernel, KernelGroup) else (kernel,)
    return {s.check for k in kernels for s in k.statements if isinstance(s, Bind)}


def probe(config: Config) -> Target:
    """Describe an H100 with host memory, which determines kernels, fusion and passes.

    The interpreter does not round floats of 8 bits as the device does, and ATen reports divisions
    by zero on the host.
    """
    gpu = NVIDIA_GPU.target("sm_90", 132)
    can = gpu.capabilities
    return evolve(
        gpu,
        device=HOST,
        arch="triton-interpreter",
        kernel_backend="triton-interpreter",
        capabilities=evolve(
            can,
            graphs=False,
            overlap=False,
            converted=frozenset(),
            unchecked_division=False,
            reciprocals=False,
        ),
    )


def make_loader(target: Target, context: LoaderContext) -> InterpreterLoader:
    """Return the loader; it needs no compiler and no device."""
    return InterpreterLoader(functions, b"triton-interpreter")


TARGET = TargetDefinition(
    name=NAME,
    api=API,
    probe=probe,
    kernels=InterpretedTriton(),
    device=make_device,
    loader=make_loader,
    load=partial(load, functions),
    optional=True,
)
