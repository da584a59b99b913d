"""The stage from Wrapper IR to a `torch.fx.GraphModule`, or to the text of its code."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from gyrator_ir.checks import takes
from gyrator_ir.content import content_hash
from gyrator_ir.define import frozen
from gyrator_ir.host.nodes import HostProgram, Return
from gyrator_ir.host.walk import constants_used, kernels_used, user_kernels
from gyrator_ir.source import Program
from gyrator_wrapper_fx.kernels import NO_KERNELS, KernelFunction, KernelTable
from gyrator_wrapper_fx.scope import DTYPES, Context, Scope
from gyrator_wrapper_fx.translate import write

__all__ = ["FxWrapper", "to_graph"]

NO_CONSTANTS: Mapping[str, torch.Tensor] = MappingProxyType({})


def to_graph(
    program: HostProgram,
    kernels: Mapping[str, KernelFunction] | KernelTable = NO_KERNELS,
    constants: Mapping[str, torch.Tensor] = NO_CONSTANTS,
) -> torch.fx.GraphModule:
    """Return a host program as a graph module that takes the parameters in order, and returns a
    tuple.

    Args:
        program: a program that passes verification.
        kernels: a function for each kernel. They are the submodule `kernels` of the module; a
            launch of a missing one raises LookupError.
        constants: a tensor for each key. A missing one is replaced by an empty meta tensor: such a
            module can be read and traced, but not run.

    Raises:
        FxWrapperError: GY-FX-001 for an op that torch lacks, GY-FX-002 and 003 for a user's Triton
            kernel that cannot be launched here.
    """
    takes("to_graph", program, HostProgram)
    table = kernels if isinstance(kernels, KernelTable) else KernelTable(kernels)
    return _module(program, table, constants)


def _module(
    program: HostProgram, kernels: KernelTable, constants: Mapping[str, torch.Tensor]
) -> torch.fx.GraphModule:
    placeholders = {
        c.key: torch.empty(0, dtype=DTYPES[c.buffer.dtype], device="meta")
        for c in program.constants
    }
    context = Context(
        program=program,
        kernels=kernels,
        constants={**placeholders, **constants},
        subprograms={s.name: _module(s, kernels, constants) for s in program.subprograms},
        write=write,
    )
    scope = Scope(context, program.name)
    for p in program.parameters:
        scope.parameter(p.name)
    write(scope, program.instructions)
    last = program.instructions[-1]
    assert isinstance(last, Return)  # guaranteed by the verifier (GY-HOST-005)
    module = scope.finish(tuple(scope.value(v) for v in last.values))
    module.graph.lint()
    return module


@frozen
class FxWrapper:
    """The `WrapperBackend` for FX.

    The text is the code of the graph, for reading. Caches store the Wrapper IR, from which `load`
    rebuilds the graph.
    """

    name: str = "fx"

    @property
    def content_hash(self) -> str:
        """A digest of this package's source, including the sibling packages that it imports."""
        return content_hash("gyrator_wrapper_fx")

    def emit(self, program: HostProgram) -> Program:
        """Emit `program` and its subprograms."""
        text: str = to_graph(program).print_readable(print_output=False)
        kernels = (f"# user kernel {k.key}\n{k.source.strip()}\n" for k in user_kernels(program))
        return Program(
            language="fx",
            text="\n\n".join((f"{text.rstrip()}\n", *kernels)),
            entry="forward",
            kernels=kernels_used(program),
            constants=constants_used(program),
        )
