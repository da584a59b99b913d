"""Wrapper IR in, a `torch.fx.GraphModule` out; and the same as text that rebuilds it."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from attrs import frozen

from gyrator_ir.content import content_hash
from gyrator_ir.expr import Expr
from gyrator_ir.host.nodes import HostProgram, Launch, Return
from gyrator_ir.host.walk import walk
from gyrator_ir.source import Program
from gyrator_wrapper_fx.kernels import NO_KERNELS, KernelFunction, KernelTable
from gyrator_wrapper_fx.scope import DTYPES, Context, Scope
from gyrator_wrapper_fx.text import program_text
from gyrator_wrapper_fx.translate import write

NO_CONSTANTS: Mapping[str, torch.Tensor] = MappingProxyType({})


def to_graph(
    program: HostProgram,
    kernels: Mapping[str, KernelFunction] | KernelTable = NO_KERNELS,
    constants: Mapping[str, torch.Tensor] = NO_CONSTANTS,
) -> torch.fx.GraphModule:
    """Return a host program as a graph module: parameters in order, a tuple of results.

    Args:
        program: one that verifies.
        kernels: a function for each kernel. The module carries them as the submodule `kernels`; a
            launch of one that is missing is a LookupError.
        constants: a tensor for each key. For one that is missing stands an empty meta tensor: such
            a module can be read and traced, not run.

    Raises:
        FxWrapperError: GY-FX-001 for an op that torch lacks, GY-FX-002 and 003 for a user's Triton
            kernel that cannot be launched here.
    """
    table = kernels if isinstance(kernels, KernelTable) else KernelTable(kernels)
    return _module(program, table, constants)


def _module(
    program: HostProgram, kernels: KernelTable, constants: Mapping[str, torch.Tensor]
) -> torch.fx.GraphModule:
    known = {
        c.key: torch.empty(0, dtype=DTYPES[c.buffer.dtype], device="meta")
        for c in program.constants
    }
    context = Context(
        program=program,
        kernels=kernels,
        constants={**known, **constants},
        subprograms={s.name: _module(s, kernels, constants) for s in program.subprograms},
        write=write,
    )
    scope = Scope(context, program.name)
    for p in program.parameters:
        scope.parameter(p.name)
    write(scope, program.instructions)
    last = program.instructions[-1]
    assert isinstance(last, Return)  # the verifier's GY-HOST-005
    module = scope.finish(tuple(scope.value(v) for v in last.values))
    module.graph.lint()
    return module


@frozen
class FxWrapper:
    """The `WrapperBackend` for FX.

    The text defines `build(rt)`, which makes the graph module and returns a `LoadedProgram`; it
    reads like the graph:

        def graph_0(t):
            g = t.builder('main')
            x = g.input('x')
            s0 = g.call('s0', torch.ops.aten.sym_size.int, x, 0)
            b0 = g.call('b0', torch.empty_strided, (s0, 8), (8, 1), dtype=torch.float32)
            kernels = g.attribute('kernels')
            k0 = g.call('k0', ops.launch, kernels, 'k0', (x, b0), (s0,), writes=(1,))
            return g.output((b0,))

    `rt` holds the loaded kernels and the constants, makes launchers, and may have a `fx_compiler`
    that takes the graph.
    """

    name: str = "fx"

    @property
    def content_hash(self) -> str:
        """A digest of the source of this package, and of what it imports of ours."""
        return content_hash("gyrator_wrapper_fx")

    def emit(self, program: HostProgram) -> Program:
        """Write `program` and its subprograms."""
        module = to_graph(program)
        last = program.instructions[-1]
        assert isinstance(last, Return)  # the verifier's GY-HOST-005
        integers = tuple(isinstance(v, Expr) for v in last.values)
        launches = _launches(program)
        text, constants = program_text(module, launches, integers)
        return Program(
            language="fx",
            text=text,
            entry="build",
            kernels=tuple(launches),
            constants=constants,
        )


def _launches(program: HostProgram) -> dict[str, tuple[int, int]]:
    """Return the launched kernels by first use, and how many tensors and sizes each takes."""
    found: dict[str, tuple[int, int]] = {}
    for sub in program.subprograms:
        found |= _launches(sub)
    for i in walk(program.instructions):
        if isinstance(i, Launch):
            found.setdefault(i.kernel, (len(i.tensors), len(i.sizes)))
    return found
