"""What templates of each kind take and give."""

from collections.abc import Sequence

from gyrator_ir.expr import Expr
from gyrator_ir.loop.nodes import Arg, Literal, TemplateKind, TensorRef
from gyrator_ir.types import DType


def wrong_with(
    kind: TemplateKind,
    inputs: Sequence[TensorRef],
    outputs: Sequence[TensorRef],
    attributes: Sequence[tuple[str, Arg]],
) -> str:
    """Return what is not as `kind` says, or an empty string."""
    match kind:
        case TemplateKind.ATTENTION:
            return _attention(inputs, outputs, dict(attributes))


def _attention(
    inputs: Sequence[TensorRef], outputs: Sequence[TensorRef], attributes: dict[str, Arg]
) -> str:
    if len(inputs) not in (3, 4) or len(outputs) not in (1, 2):
        return f"attention takes 3 or 4 tensors and gives 1 or 2, not {len(inputs)}, {len(outputs)}"
    ranks = [len(t.shape) for t in (*inputs, *outputs)]
    wanted_ranks = [4] * (len(inputs) + 1) + [3] * (len(outputs) - 1)
    if ranks != wanted_ranks:
        return f"attention's tensors have {wanted_ranks} dimensions, not {ranks}"
    q, k, v, out = *inputs[:3], outputs[0]
    b, h, rows, e = q.shape
    g, columns, f = k.shape[1], k.shape[2], v.shape[3]
    wanted: list[tuple[TensorRef, DType, tuple[Expr, ...]]] = [
        (k, q.dtype, (b, g, columns, e)),
        (v, q.dtype, (b, g, columns, f)),
        (out, q.dtype, (b, h, rows, f)),
    ]
    if len(inputs) > 3:
        mask = inputs[3]
        wanted.append((mask, mask.dtype, (b, h, rows, columns)))
    if len(outputs) > 1:
        sums = outputs[1]
        wanted.append((sums, DType.F32, (b, h, sums.shape[2])))
    for t, dtype, shape in wanted:
        if t.dtype is not dtype or t.shape != shape:
            got = f"{t.dtype}[{', '.join(map(str, t.shape))}]"
            return f"{t.buffer!r} must be {dtype}[{', '.join(map(str, shape))}], not {got}"
    scale, causal = attributes.get("scale"), attributes.get("causal")
    if set(attributes) != {"scale", "causal"}:
        return f"attention has the attributes scale and causal, not {sorted(attributes)}"
    if not isinstance(scale, Literal) or type(scale.value) is not float:
        return f"scale must be a number, not {scale!r}"
    if not isinstance(causal, Literal) or type(causal.value) is not bool:
        return f"causal must be true or false, not {causal!r}"
    return ""
