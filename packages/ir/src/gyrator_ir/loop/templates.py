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
            said = _attention(inputs, outputs)
        case TemplateKind.ATTENTION_GRADIENTS:
            said = _gradients(inputs, outputs)
    return said or _numbers(dict(attributes))


_Wanted = list[tuple[TensorRef, DType, tuple[Expr, ...]]]


def _attention(inputs: Sequence[TensorRef], outputs: Sequence[TensorRef]) -> str:
    if len(inputs) not in (3, 4) or len(outputs) not in (1, 2):
        return f"attention takes 3 or 4 tensors and gives 1 or 2, not {len(inputs)}, {len(outputs)}"
    ranks = [len(t.shape) for t in (*inputs, *outputs)]
    wanted_ranks = [4] * (len(inputs) + 1) + [3] * (len(outputs) - 1)
    if ranks != wanted_ranks:
        return f"attention's tensors have {wanted_ranks} dimensions, not {ranks}"
    q, k, v, out = *inputs[:3], outputs[0]
    b, h, rows, _ = q.shape
    wanted = _given(q, k, v, inputs[3:])
    wanted.append((out, q.dtype, (b, h, rows, v.shape[3])))
    if len(outputs) > 1:
        sums = outputs[1]
        wanted.append((sums, DType.F32, (b, h, sums.shape[2])))
    return _first_wrong(wanted)


def _gradients(inputs: Sequence[TensorRef], outputs: Sequence[TensorRef]) -> str:
    if len(inputs) not in (6, 7) or len(outputs) != 3:
        return f"gradients take 6 or 7 tensors and give 3, not {len(inputs)}, {len(outputs)}"
    ranks = [len(t.shape) for t in (*inputs, *outputs)]
    wanted_ranks = [4, 4, 4, 4, 3, 3] + [4] * (len(inputs) - 6) + [4, 4, 4]
    if ranks != wanted_ranks:
        return f"the gradients' tensors have {wanted_ranks} dimensions, not {ranks}"
    q, k, v, grad, sums, mean = inputs[:6]
    b, h, rows, _ = q.shape
    wanted = _given(q, k, v, inputs[6:])
    wanted.append((grad, q.dtype, (b, h, rows, v.shape[3])))
    wanted.append((sums, DType.F32, (b, h, sums.shape[2])))
    wanted.append((mean, DType.F32, (b, h, rows)))
    wanted += [(g, t.dtype, t.shape) for g, t in zip(outputs, (q, k, v), strict=True)]
    return _first_wrong(wanted)


def _given(q: TensorRef, k: TensorRef, v: TensorRef, mask: Sequence[TensorRef]) -> _Wanted:
    b, h, rows, e = q.shape
    g, columns = k.shape[1:3]
    return [
        (k, q.dtype, (b, g, columns, e)),
        (v, q.dtype, (b, g, columns, v.shape[3])),
        *((m, m.dtype, (b, h, rows, columns)) for m in mask),
    ]


def _first_wrong(wanted: _Wanted) -> str:
    for t, dtype, shape in wanted:
        if t.dtype is not dtype or t.shape != shape:
            got = f"{t.dtype}[{', '.join(map(str, t.shape))}]"
            return f"{t.buffer!r} must be {dtype}[{', '.join(map(str, shape))}], not {got}"
    return ""


def _numbers(attributes: dict[str, Arg]) -> str:
    scale, causal = attributes.get("scale"), attributes.get("causal")
    if set(attributes) != {"scale", "causal"}:
        return f"attention has the attributes scale and causal, not {sorted(attributes)}"
    if not isinstance(scale, Literal) or type(scale.value) is not float:
        return f"scale must be a number, not {scale!r}"
    if not isinstance(causal, Literal) or type(causal.value) is not bool:
        return f"causal must be true or false, not {causal!r}"
    return ""
