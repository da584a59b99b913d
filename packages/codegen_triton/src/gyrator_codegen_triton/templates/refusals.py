"""Checks for templates that cannot be emitted, before emission."""

from collections.abc import Iterator

from gyrator_codegen.passes.blocks.attention_shapes import LEAST_BLOCK, least_bytes, problem_of
from gyrator_codegen_triton.refusals import refusals
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import ZERO, Const, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level, Stage, TemplateKernel
from gyrator_ir.loop.nodes import TemplateKind, TensorRef
from gyrator_ir.loop.templates import first_captured, literal
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

TEMPLATE = "GY-TRITON-007"
"""A template with dtypes or sizes that its kernel does not support."""

LONGEST_VECTOR = 512
"""Maximum length of a head's query, key or value vectors, of which a block is in registers."""
_DTYPES = frozenset({DType.F32, DType.F16, DType.BF16})


def template_refusal(kernel: TemplateKernel, target: Target) -> Diagnostic | None:
    """Return why the template cannot be emitted, or None."""
    message = next(_refusals(kernel, target), None)
    if message is None:
        return None
    return Diagnostic(
        TEMPLATE, message, where=f"kernel {kernel.name}", help="run the operation as its ATen op"
    )


def _refusals(kernel: TemplateKernel, target: Target) -> Iterator[str]:
    stored = {p.name: p.dtype for p in kernel.parameters}
    q, k, v = kernel.inputs[:3]
    dtypes = _DTYPES & target.capabilities.dtypes
    gradients = kernel.kind in (
        TemplateKind.ATTENTION_GRADIENTS,
        TemplateKind.FLEX_ATTENTION_GRADIENTS,
    )
    tensors = (*kernel.inputs, *kernel.outputs)
    if kernel.formulas:
        first = first_captured(kernel.kind, kernel.attributes)
        tensors = (*kernel.inputs[:first], *kernel.outputs)
        yield from _formulas(kernel, target)
        masks: tuple[TensorRef, ...] = ()
    else:
        masks = kernel.inputs[6 if gradients else 3 :]
    for t in (q, *masks):
        if t.dtype not in dtypes and not (t.dtype is DType.BOOL and t is not q):
            yield f"attention of {t.dtype.value} has no kernel"
    for t in tensors:
        if t.dtype is not stored[t.buffer]:
            yield f"attention reinterprets {stored[t.buffer].value} as another dtype"
    for t in (q, v):
        length = t.shape[3]
        if not isinstance(length, Const):
            yield f"vectors of dynamic length {length} have no kernel"
        elif not 0 < length.value <= LONGEST_VECTOR:
            yield f"vectors of length {length.value} are not between 1 and {LONGEST_VECTOR} long"
    if ZERO in (q.shape[1], k.shape[1]):
        yield "attention without heads has no kernel"
    shared = target.heuristics.shared_bytes
    if shared:
        least = least_bytes(problem_of(kernel, ShapeFacts()), gradients)
        if least > shared:
            yield f"the smallest block needs {least} bytes of shared memory; a program has {shared}"


def _formulas(kernel: TemplateKernel, target: Target) -> Iterator[str]:
    """Yield the reasons why formulas cannot be emitted."""
    for name in ("row_block", "column_block"):
        length = literal(kernel.attributes, name, int)
        if length % LEAST_BLOCK:
            yield f"the block length {length} is not a multiple of {LEAST_BLOCK}"
    stub = Kernel(
        kernel.name, kernel.device, (), (),
        tuple(Stage(Level.OUTER, f.body) for f in kernel.formulas),
        parameters=kernel.parameters,
    )  # fmt: skip
    yield from (reason.message for reason in refusals(stub, target, _untiled))


def _untiled(kernel: Kernel) -> TiledKernel:
    raise AssertionError("formulas have neither sorts nor locals")
