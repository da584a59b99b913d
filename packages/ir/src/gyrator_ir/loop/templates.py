"""What templates of each kind take and give."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

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
        case TemplateKind.FLEX_ATTENTION:
            said = _flex(inputs, outputs, attributes)
        case TemplateKind.FLEX_ATTENTION_GRADIENTS:
            said = _flex_gradients(inputs, outputs, attributes)
    return said or _numbers(kind, dict(attributes))


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


def _flex(
    inputs: Sequence[TensorRef],
    outputs: Sequence[TensorRef],
    attributes: Sequence[tuple[str, Arg]],
) -> str:
    first = first_captured(TemplateKind.FLEX_ATTENTION, attributes)
    if len(inputs) < first or len(outputs) not in (1, 2, 3):
        return (
            f"attention takes {first} tensors and gives 1 to 3, not {len(inputs)}, {len(outputs)}"
        )
    ranks = [len(t.shape) for t in (*inputs[:first], *outputs)]
    wanted_ranks = [4, 4, 4] + [3, 4] * ((first - 3) // 2) + [4, 3, 3][: len(outputs)]
    if ranks != wanted_ranks:
        return f"attention's tensors have {wanted_ranks} dimensions, not {ranks}"
    q, k, v, out = *inputs[:3], outputs[0]
    b, h, rows, _ = q.shape
    wanted = [*_given(q, k, v, ()), *_blocks(q, inputs[3:first])]
    wanted.append((out, q.dtype, (b, h, rows, v.shape[3])))
    wanted += [(t, DType.F32, (b, h, rows)) for t in outputs[1:]]
    return _first_wrong(wanted)


def _flex_gradients(
    inputs: Sequence[TensorRef],
    outputs: Sequence[TensorRef],
    attributes: Sequence[tuple[str, Arg]],
) -> str:
    first = first_captured(TemplateKind.FLEX_ATTENTION_GRADIENTS, attributes)
    if len(inputs) < first or len(outputs) != 3:
        return f"gradients take {first} tensors and give 3, not {len(inputs)}, {len(outputs)}"
    ranks = [len(t.shape) for t in (*inputs[:first], *outputs)]
    wanted_ranks = [4, 4, 4, 4, 3, 3] + [3, 4] * ((first - 6) // 2) + [4, 4, 4]
    if ranks != wanted_ranks:
        return f"the gradients' tensors have {wanted_ranks} dimensions, not {ranks}"
    q, k, v, grad, sums, mean = inputs[:6]
    b, h, rows, _ = q.shape
    half = (first - 6) // 2
    wanted = [*_given(q, k, v, ()), *_blocks(q, inputs[6 : 6 + half])]
    wanted += _blocks(q, inputs[6 + half : first])
    wanted.append((grad, q.dtype, (b, h, rows, v.shape[3])))
    wanted += [(t, DType.F32, (b, h, rows)) for t in (sums, mean)]
    wanted += [(g, t.dtype, t.shape) for g, t in zip(outputs, (q, k, v), strict=True)]
    return _first_wrong(wanted)


def first_captured(kind: TemplateKind, attributes: Sequence[tuple[str, Arg]]) -> int:
    """Return the place of the first input that only formulas of flexible attention load from."""
    pairs = 2 if dict(attributes).get("full") == Literal(True) else 1
    return 3 + 2 * pairs if kind is TemplateKind.FLEX_ATTENTION else 6 + 4 * pairs


def _blocks(q: TensorRef, tensors: Sequence[TensorRef]) -> _Wanted:
    b, h = q.shape[:2]
    wanted: _Wanted = []
    for t in tensors:
        x = tensors[0].shape[2]
        wanted.append((t, DType.I32, (b, h, x, *t.shape[3:])))
    return wanted


def _first_wrong(wanted: _Wanted) -> str:
    for t, dtype, shape in wanted:
        if t.dtype is not dtype or t.shape != shape:
            got = f"{t.dtype}[{', '.join(map(str, t.shape))}]"
            return f"{t.buffer!r} must be {dtype}[{', '.join(map(str, shape))}], not {got}"
    return ""


_PLAIN: Mapping[str, type] = MappingProxyType({"scale": float, "causal": bool})
_FLEX: Mapping[str, type] = MappingProxyType(
    {"scale": float, "row_block": int, "column_block": int, "full": bool}
)
_ATTRIBUTES: Mapping[TemplateKind, Mapping[str, type]] = MappingProxyType(
    {
        TemplateKind.ATTENTION: _PLAIN,
        TemplateKind.ATTENTION_GRADIENTS: _PLAIN,
        TemplateKind.FLEX_ATTENTION: _FLEX,
        TemplateKind.FLEX_ATTENTION_GRADIENTS: _FLEX,
    }
)
_SAID = MappingProxyType({float: "a number", bool: "true or false", int: "an integer"})


def _numbers(kind: TemplateKind, attributes: dict[str, Arg]) -> str:
    wanted = _ATTRIBUTES[kind]
    if set(attributes) != set(wanted):
        return f"attention has the attributes {' and '.join(wanted)}, not {sorted(attributes)}"
    for name, found in attributes.items():
        if not isinstance(found, Literal) or type(found.value) is not wanted[name]:
            return f"{name} must be {_SAID[wanted[name]]}, not {found!r}"
        if type(found.value) is int and found.value <= 0:
            return f"{name} must be positive, not {found.value}"
    return ""
