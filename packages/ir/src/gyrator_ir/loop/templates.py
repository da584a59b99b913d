"""The tensors and attributes that each kind of template requires."""

from collections.abc import Mapping, Sequence
from math import gcd
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from gyrator_ir.expr import ONE, ZERO, Const, Expr
from gyrator_ir.loop.nodes import Arg, Literal, TemplateKind, TensorRef
from gyrator_ir.types import DType

Number = TypeVar("Number", bool, int, float)
_T = TypeVar("_T", bound="_Shaped")


class _Shaped(Protocol):
    """A tensor, or what describes one."""

    @property
    def shape(self) -> Any:
        """The lengths of its dimensions."""
        ...


def template_error(
    kind: TemplateKind,
    inputs: Sequence[TensorRef],
    outputs: Sequence[TensorRef],
    attributes: Sequence[tuple[str, Arg]],
) -> str:
    """Return why the tensors or attributes do not fit `kind`, or an empty string if they do."""
    match kind:
        case TemplateKind.ATTENTION:
            message = _attention(inputs, outputs)
        case TemplateKind.ATTENTION_GRADIENTS:
            message = _gradients(inputs, outputs)
        case TemplateKind.FLEX_ATTENTION | TemplateKind.FLEX_ATTENTION_PARTS:
            message = _flex(kind, inputs, outputs, attributes)
        case TemplateKind.FLEX_ATTENTION_GRADIENTS:
            message = _flex_gradients(inputs, outputs, attributes)
        case TemplateKind.CONVOLUTION:
            message = _convolution(inputs, outputs)
        case TemplateKind.DEPTHWISE:
            message = _depthwise(inputs, outputs)
    return message or _numbers(kind, dict(attributes))


_Expected = list[tuple[TensorRef, DType, tuple[Expr, ...]]]


def _attention(inputs: Sequence[TensorRef], outputs: Sequence[TensorRef]) -> str:
    if len(inputs) not in (3, 4) or len(outputs) not in (1, 2):
        got = f"{len(inputs)} and {len(outputs)}"
        return f"attention takes 3 or 4 tensors and returns 1 or 2, not {got}"
    ranks = [4] * (len(inputs) + 1) + [3] * (len(outputs) - 1)
    if message := _wrong_ranks("attention's", (*inputs, *outputs), ranks):
        return message
    q, k, v, out = *inputs[:3], outputs[0]
    b, h, rows, _ = q.shape
    expected = _expected_inputs(q, k, v, inputs[3:])
    expected.append((out, q.dtype, (b, h, rows, v.shape[3])))
    if len(outputs) > 1:
        sums = outputs[1]
        expected.append((sums, DType.F32, (b, h, sums.shape[2])))
    return _first_wrong(expected)


def _gradients(inputs: Sequence[TensorRef], outputs: Sequence[TensorRef]) -> str:
    if len(inputs) not in (6, 7) or len(outputs) != 3:
        return f"gradients take 6 or 7 tensors and return 3, not {len(inputs)} and {len(outputs)}"
    ranks = [4, 4, 4, 4, 3, 3] + [4] * (len(inputs) - 6) + [4, 4, 4]
    if message := _wrong_ranks("the gradients'", (*inputs, *outputs), ranks):
        return message
    q, k, v, _, sums, _ = inputs[:6]
    expected = _expected_inputs(q, k, v, inputs[6:])
    return _first_wrong(expected + _expected_gradients(inputs, outputs, sums.shape[2]))


def _convolution(inputs: Sequence[TensorRef], outputs: Sequence[TensorRef]) -> str:
    if len(inputs) < 3 or len(outputs) != 1:
        got = f"{len(inputs)} and {len(outputs)}"
        return f"a convolution takes 3 or more tensors and returns 1, not {got}"
    ranks = [4, 5, 1] + [4] * (len(inputs) - 2)
    if message := _wrong_ranks("the convolution's", (*inputs, *outputs), ranks):
        return message
    (x, panels, bias), (out,) = inputs[:3], outputs
    images, more = convolution_images(inputs)
    if len(more) > 1:
        return f"a convolution adds 1 tensor to its result, not {len(more)}"
    channels = sum((t.shape[3] for t in images), ZERO)
    count, *window, _, width = panels.shape
    features, last = out.shape[3], count * width - out.shape[3]
    if isinstance(last, Const) and isinstance(width, Const) and not 0 <= last.value < width.value:
        return f"{count} panels of {width} features are not as many as {features} features need"
    return _first_wrong(
        [
            *((t, DType.F32, (*x.shape[:3], t.shape[3])) for t in images),
            (panels, DType.F32, (count, *window, channels, width)),
            (bias, DType.F32, (count * width,)),
            (out, DType.F32, (x.shape[0], *out.shape[1:])),
            *((m, DType.F32, out.shape) for m in more),
        ]
    )


def _depthwise(inputs: Sequence[TensorRef], outputs: Sequence[TensorRef]) -> str:
    if len(inputs) not in (2, 3) or len(outputs) != 1:
        got = f"{len(inputs)} and {len(outputs)}"
        return f"a depthwise convolution takes 2 or 3 tensors and returns 1, not {got}"
    ranks = [4, 3, *[1] * (len(inputs) - 2), 4]
    if message := _wrong_ranks("the convolution's", (*inputs, *outputs), ranks):
        return message
    (x, weight, *bias), (out,) = inputs, outputs
    batch, channels = x.shape[0], x.shape[3]
    return _first_wrong(
        [
            (x, DType.F32, x.shape),
            (weight, DType.F32, (*weight.shape[:2], channels)),
            *((t, DType.F32, (channels,)) for t in bias),
            (out, DType.F32, (batch, *out.shape[1:3], channels)),
        ]
    )


def convolution_images(inputs: Sequence[_T]) -> tuple[tuple[_T, ...], tuple[_T, ...]]:
    """Return the images of a convolution, whose channels follow each other, and what is added to
    its result.

    The inputs are the first image, the panels, the bias, the other images, and perhaps what is
    added. The images are as many as the panels have channels for.
    """
    x, panels, _, *rest = inputs
    channels, count = x.shape[3], 0
    while channels != panels.shape[3] and count < len(rest):
        channels, count = channels + rest[count].shape[3], count + 1
    return (x, *rest[:count]), tuple(rest[count:])


def _wrong_ranks(owner: str, tensors: Sequence[TensorRef], ranks: Sequence[int]) -> str:
    """Return why tensors do not have these numbers of dimensions, or an empty string."""
    actual = [len(t.shape) for t in tensors]
    return "" if actual == ranks else f"{owner} tensors have {ranks} dimensions, not {actual}"


def _expected_gradients(
    inputs: Sequence[TensorRef], outputs: Sequence[TensorRef], sums_length: Expr
) -> _Expected:
    """Return the types of the other inputs of gradients, and of the outputs."""
    q, k, v, grad, sums, mean = inputs[:6]
    b, h, rows, _ = q.shape
    return [
        (grad, q.dtype, (b, h, rows, v.shape[3])),
        (sums, DType.F32, (b, h, sums_length)),
        (mean, DType.F32, (b, h, rows)),
        *((g, t.dtype, t.shape) for g, t in zip(outputs, (q, k, v), strict=True)),
    ]


def _expected_inputs(
    q: TensorRef, k: TensorRef, v: TensorRef, mask: Sequence[TensorRef]
) -> _Expected:
    b, h, rows, e = q.shape
    g, columns = k.shape[1:3]
    return [
        (k, q.dtype, (b, g, columns, e)),
        (v, q.dtype, (b, g, columns, v.shape[3])),
        *((m, m.dtype, (b, h, rows, columns)) for m in mask),
    ]


def _flex(
    kind: TemplateKind,
    inputs: Sequence[TensorRef],
    outputs: Sequence[TensorRef],
    attributes: Sequence[tuple[str, Arg]],
) -> str:
    first = first_captured(kind, attributes)
    parts = parts_of(attributes) if kind is TemplateKind.FLEX_ATTENTION_PARTS else ()
    least = 1 + len(parts)
    if len(inputs) < first or not least <= len(outputs) <= 3:
        got = f"{len(inputs)} and {len(outputs)}"
        return f"attention takes {first} tensors and returns {least} to 3, not {got}"
    output_ranks = [len(parts) + rank for rank in (4, 3, 3)]
    ranks = [4, 4, 4] + [3, 4] * ((first - 3) // 2) + output_ranks[: len(outputs)]
    if message := _wrong_ranks("attention's", (*inputs[:first], *outputs), ranks):
        return message
    q, k, v, out = *inputs[:3], outputs[0]
    b, h, rows, _ = q.shape
    expected = [*_expected_inputs(q, k, v, ()), *_blocks(q, inputs[3:first])]
    expected.append((out, DType.F32 if parts else q.dtype, (*parts, b, h, rows, v.shape[3])))
    expected += [(t, DType.F32, (*parts, b, h, rows)) for t in outputs[1:]]
    return _first_wrong(expected) or (_together(inputs[:first], attributes) if parts else "")


def _together(inputs: Sequence[TensorRef], attributes: Sequence[tuple[str, Arg]]) -> str:
    """Return why several query heads cannot be packed into one block, or an empty string."""
    q, k, _, *listed = inputs
    numbers = {name: a.value for name, a in attributes if isinstance(a, Literal)}
    together, row_block = numbers.get("together"), numbers.get("row_block")
    heads, groups, rows = q.shape[1], k.shape[1], q.shape[2]
    if not isinstance(together, int) or not isinstance(row_block, int) or together == 1:
        return ""
    if any(t.strides[1] is not ZERO for t in listed):
        return "heads with different blocks cannot be packed together"
    if not isinstance(rows, Const) or rows.value > row_block:
        return f"heads of {rows} rows cannot be packed into blocks of {row_block}"
    if heads // groups % together is not ZERO:
        return f"{together} of {heads} heads are packed together, with {groups} key heads"
    return ""


def _flex_gradients(
    inputs: Sequence[TensorRef], outputs: Sequence[TensorRef], attributes: Sequence[tuple[str, Arg]]
) -> str:
    first = first_captured(TemplateKind.FLEX_ATTENTION_GRADIENTS, attributes)
    if len(inputs) < first or len(outputs) != 3:
        return f"gradients take {first} tensors and return 3, not {len(inputs)} and {len(outputs)}"
    ranks = [4, 4, 4, 4, 3, 3] + [3, 4] * ((first - 6) // 2) + [4, 4, 4]
    if message := _wrong_ranks("the gradients'", (*inputs[:first], *outputs), ranks):
        return message
    q, k, v = inputs[:3]
    half = (first - 6) // 2
    expected = [*_expected_inputs(q, k, v, ()), *_blocks(q, inputs[6 : 6 + half])]
    expected += _blocks(q, inputs[6 + half : first])
    return _first_wrong(expected + _expected_gradients(inputs, outputs, q.shape[2]))


def first_captured(kind: TemplateKind, attributes: Sequence[tuple[str, Arg]]) -> int:
    """Return the index of the first input that only formulas of flexible attention load from."""
    lists = lists_of(attributes)
    return 6 + 4 * lists if kind is TemplateKind.FLEX_ATTENTION_GRADIENTS else 3 + 2 * lists


def lists_of(attributes: Sequence[tuple[str, Arg]]) -> int:
    """Return the number of lists of blocks that rows of flexible attention attend to."""
    lists = dict(attributes).get("lists")
    return lists.value if isinstance(lists, Literal) and type(lists.value) is int else 0


def literal(attributes: Sequence[tuple[str, Arg]], name: str, kind: type[Number]) -> Number:
    """Return the value of an attribute that is a number of this type."""
    attribute = dict(attributes)[name]
    assert isinstance(attribute, Literal) and isinstance(attribute.value, kind)
    return attribute.value


def parts_of(attributes: Sequence[tuple[str, Arg]]) -> tuple[Expr, ...]:
    """Return the leading dimension of the outputs of a `FLEX_ATTENTION_PARTS` template."""
    parts = dict(attributes).get("parts")
    if isinstance(parts, Literal) and isinstance(parts.value, int):
        return (Const(parts.value),)
    return (ONE,)


ENDLESS = 1 << 20
"""A block of at least this many rows or columns spans all of them."""
_PIECE = 128


def piece_of(column_block: int) -> int:
    """Return the number of columns of a piece, the unit in which columns are split into parts."""
    return gcd(column_block, _PIECE)


def _blocks(q: TensorRef, tensors: Sequence[TensorRef]) -> _Expected:
    b, h = q.shape[:2]
    expected: _Expected = []
    for t in tensors:
        x = tensors[0].shape[2]
        expected.append((t, DType.I32, (b, h, x, *t.shape[3:])))
    return expected


def _first_wrong(expected: _Expected) -> str:
    for t, dtype, shape in expected:
        if t.dtype is not dtype or t.shape != shape:
            got = f"{t.dtype}[{', '.join(map(str, t.shape))}]"
            return f"{t.buffer!r} must be {dtype}[{', '.join(map(str, shape))}], not {got}"
    return ""


_PLAIN: Mapping[str, type] = MappingProxyType({"scale": float, "causal": bool})
_FLEX: Mapping[str, type] = MappingProxyType(
    {"scale": float, "row_block": int, "column_block": int, "lists": int}
)
_PARTS: Mapping[str, type] = MappingProxyType({**_FLEX, "parts": int, "together": int})
_STEPS: Mapping[str, type] = MappingProxyType({"down": int, "right": int, "top": int, "left": int})
_ATTRIBUTES: Mapping[TemplateKind, Mapping[str, type]] = MappingProxyType(
    {
        TemplateKind.ATTENTION: _PLAIN,
        TemplateKind.ATTENTION_GRADIENTS: _PLAIN,
        TemplateKind.FLEX_ATTENTION: _FLEX,
        TemplateKind.FLEX_ATTENTION_PARTS: _PARTS,
        TemplateKind.FLEX_ATTENTION_GRADIENTS: _FLEX,
        TemplateKind.CONVOLUTION: _STEPS,
        TemplateKind.DEPTHWISE: MappingProxyType({**_STEPS, "below": int, "beside": int}),
    }
)
_MAY_BE_ZERO = ("top", "left")
_TYPE_NAMES = MappingProxyType({float: "a number", bool: "true or false", int: "an integer"})


def _numbers(kind: TemplateKind, attributes: dict[str, Arg]) -> str:
    expected = _ATTRIBUTES[kind]
    if set(attributes) != set(expected):
        what = "a convolution" if "down" in expected else "attention"
        return f"{what} has the attributes {' and '.join(expected)}, not {sorted(attributes)}"
    for name, arg in attributes.items():
        if not isinstance(arg, Literal) or type(arg.value) is not expected[name]:
            return f"{name} must be {_TYPE_NAMES[expected[name]]}, not {arg!r}"
        if name == "lists":
            least = 1 if kind is TemplateKind.FLEX_ATTENTION_GRADIENTS else 0
            if arg.value not in range(least, 3):
                return f"lists must be between {least} and 2, not {arg.value}"
        elif type(arg.value) is int and arg.value < (name not in _MAY_BE_ZERO):
            sign = "must not be negative" if name in _MAY_BE_ZERO else "must be positive"
            return f"{name} {sign}, not {arg.value}"
    return ""
