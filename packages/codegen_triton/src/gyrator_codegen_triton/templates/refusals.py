"""Which templates can't be written, said before anything is."""

from collections.abc import Iterator

from gyrator_codegen_triton.refusals import refusal
from gyrator_codegen_triton.templates.attention_configs import LEAST_BLOCK, least_bytes
from gyrator_codegen_triton.templates.attention_text import problem_of
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import ZERO, Const, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level, Stage, TemplateKernel
from gyrator_ir.loop.nodes import Literal, TemplateKind, TensorRef
from gyrator_ir.loop.templates import first_captured
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

TEMPLATE = "GY-TRITON-007"
"""A template of types or sizes that its kernel does not hold."""

LONGEST_VECTOR = 512
"""Numbers of a head's query, key or value: a block of them lies in registers."""
_DTYPES = frozenset({DType.F32, DType.F16, DType.BF16})


def template_refusal(kernel: TemplateKernel, target: Target) -> Diagnostic | None:
    """Return why the template can't be written, or None."""
    said = next(_refusals(kernel, target), None)
    if said is None:
        return None
    return Diagnostic(
        TEMPLATE, said, where=f"kernel {kernel.name}", help="leave the operation to its ATen op"
    )


def _refusals(kernel: TemplateKernel, target: Target) -> Iterator[str]:
    stored = {p.name: p.dtype for p in kernel.parameters}
    q, k, v = kernel.inputs[:3]
    offered = _DTYPES & target.capabilities.dtypes
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
        if t.dtype not in offered and not (t.dtype is DType.BOOL and t is not q):
            yield f"attention of {t.dtype.value} has no kernel"
    for t in tensors:
        if t.dtype is not stored[t.buffer]:
            yield f"attention reads {stored[t.buffer].value} as other bits"
    for t in (q, v):
        length = t.shape[3]
        if not isinstance(length, Const):
            yield f"vectors of {length} numbers are not of one length"
        elif not 0 < length.value <= LONGEST_VECTOR:
            yield f"vectors of {length.value} numbers are not between 1 and {LONGEST_VECTOR} long"
    if ZERO in (q.shape[1], k.shape[1]):
        yield "attention without heads has no kernel"
    shared = target.heuristics.shared_bytes
    if shared:
        least = least_bytes(problem_of(kernel, ShapeFacts()), gradients)
        if least > shared:
            yield f"the least block takes {least} bytes of the {shared} that a program shares"


def _formulas(kernel: TemplateKernel, target: Target) -> Iterator[str]:
    """Yield what formulas need and kernels lack."""
    numbers = dict(kernel.attributes)
    for name in ("row_block", "column_block"):
        found = numbers[name]
        assert isinstance(found, Literal) and isinstance(found.value, int)
        if found.value % LEAST_BLOCK:
            yield f"blocks of {found.value} places are no multiples of {LEAST_BLOCK}"
    stub = Kernel(
        kernel.name, kernel.device, (), (),
        tuple(Stage(Level.OUTER, f.body) for f in kernel.formulas),
        parameters=kernel.parameters,
    )  # fmt: skip
    said = refusal(stub, target, _untiled)
    if said is not None:
        yield said.message


def _untiled(kernel: Kernel) -> TiledKernel:
    raise AssertionError("formulas have neither sorts nor locals")
