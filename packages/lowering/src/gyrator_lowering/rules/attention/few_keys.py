"""Attention to few keys, as in windows of an image: a block holds all scores of its rows, and the
template of flexible attention may be faster than a library."""

from gyrator_ir.expr import Const
from gyrator_ir.loop.nodes import Literal, Template, TemplateKind
from gyrator_ir.loop.templates import ENDLESS, template_error
from gyrator_ir.modes import Numerics
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.attention.parts import mask_formulas
from gyrator_lowering.rules.attention.scores import Attention, offers
from gyrator_lowering.torch_bridge.facts import facts_of

_LEAST_ROWS = 8
_LONGEST_VECTOR = 128
_MASKS = (DType.BOOL, DType.F32)


def has_few_keys(b: LoopBuilder, a: Attention) -> bool:
    """Return whether a kernel computes this attention sooner than a library does, for the typical
    sizes."""
    target = b.targets.get(a.q.device.type)
    if target is None or b.options.numerics not in (Numerics.EAGER, Numerics.FAST):
        return False
    tensors = (a.q, a.k, a.v, *(() if a.mask is None else (a.mask,)))
    if any(t.stored is not t.dtype or t.device != a.q.device for t in tensors):
        return False
    if a.q.dtype is not DType.F32 or (a.mask is not None and a.mask.dtype not in _MASKS):
        return False
    if a.causal and a.mask is not None:
        return False
    is_positive = isinstance(a.scale, float) and a.scale > 0
    if not offers(b, a, TemplateKind.FLEX_ATTENTION) or not is_positive:
        return False
    lengths = (a.q.shape[3], a.v.shape[3])
    if not all(isinstance(n, Const) and 0 < n.value <= _LONGEST_VECTOR for n in lengths):
        return False
    hint = facts_of(b.symbols).hint
    rows, keys = (hint(t.shape[2]) or 0 for t in (a.q, a.k))
    return rows >= _LEAST_ROWS and 0 < keys <= target.heuristics.attention_keys


def lower_few_keys(b: LoopBuilder, a: Attention, out: TensorValue) -> None:
    """Emit the kernel of attention for which `has_few_keys`."""
    mask = a.expanded_mask()
    assert isinstance(a.scale, float)
    inputs = (a.q.ref, a.k.ref, a.v.ref, *(() if mask is None else (mask,)))
    attributes = (
        ("scale", Literal(a.scale)),
        ("row_block", Literal(ENDLESS)),
        ("column_block", Literal(ENDLESS)),
        ("lists", Literal(0)),
    )
    kind, outputs = TemplateKind.FLEX_ATTENTION, (out.ref,)
    problem = template_error(kind, inputs, outputs, attributes)
    assert not problem, problem
    formulas = mask_formulas(mask, a.causal)
    b.operations.append(
        Template(b.op_name(), kind, inputs, outputs, attributes, None, b.origin, formulas)
    )
