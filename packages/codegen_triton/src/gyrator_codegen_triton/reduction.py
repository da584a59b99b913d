"""Reductions of a block, or of a loop's accumulators."""

from collections.abc import Callable

from gyrator_codegen import identity
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.dtypes import TYPES, literal
from gyrator_ir.body.nodes import Reduce, ReduceKind
from gyrator_ir.types import DType

_COMBINED = {
    ReduceKind.PROD: "gy_mul",
    ReduceKind.MIN: "gy_minimum",
    ReduceKind.MAX: "gy_maximum",
    ReduceKind.ANY: "gy_or",
    ReduceKind.ALL: "gy_and",
    ReduceKind.XOR: "gy_xor",
}
_POSITIONS = {ReduceKind.ARGMIN: "gy_argmin", ReduceKind.ARGMAX: "gy_argmax"}
_NOWHERE = (1 << 31) - 1  # a position behind all others


def _typed(value: bool | int | float, dtype: DType) -> str:
    return f"tl.full([1, 1], {literal(value, dtype)}, {TYPES[dtype]})"


def filled(code: Code, text: str, kind: ReduceKind, dtype: DType) -> str:
    """Return a block with what a reduction ignores where no element is."""
    fill = _typed(identity(kind, dtype), dtype)
    return f"tl.where(r_mask, {code.full(text)}, {fill})"


def _reduced(text: str, combine: str) -> str:
    return f"tl.reduce({text}, 1, {combine}, keep_dims=True)"


def _sum(text: str, dtype: DType) -> str:
    if dtype in (DType.F32, DType.F64):
        return f"tl.sum({text}, axis=1, keep_dims=True)"
    return f"tl.sum({text}, axis=1, keep_dims=True).to({TYPES[dtype]})"


def reduce_block(code: Code, s: Reduce) -> None:
    """Write a reduction of values that are all in the block."""
    args = [code.values[a].text for a in s.args]
    kind, dtype = s.kind, s.dtype
    match kind:
        case ReduceKind.SUM | ReduceKind.DOT:
            text = args[0] if kind is ReduceKind.SUM else f"{args[0]} * {args[1]}"
            _point(code, s.names[0], _sum(filled(code, text, ReduceKind.SUM, dtype), dtype), dtype)
        case ReduceKind.ARGMIN | ReduceKind.ARGMAX:
            whole = filled(code, args[0], kind, dtype)
            row = code.let(f"{s.names[0]}_row", whole, dtype, True, True).text
            at = code.let(f"{s.names[0]}_at", places(code), DType.I64, True, True).text
            _first(code, s, row, at)
        case ReduceKind.WELFORD:
            _two_passes(code, s, args[0])
        case ReduceKind.ONLINE_SOFTMAX:
            m, total = s.names
            row_text = filled(code, args[0], ReduceKind.MAX, dtype)
            _point(code, m, _reduced(row_text, "gy_maximum"), dtype)
            power = f"libdevice.exp({args[0]} - {code.values[m].text})"
            _point(code, total, _sum(filled(code, power, ReduceKind.SUM, dtype), dtype), dtype)
        case _:
            row = filled(code, args[0], kind, dtype)
            _point(code, s.names[0], _reduced_as(row, kind, dtype), dtype)


def _reduced_as(row: str, kind: ReduceKind, dtype: DType) -> str:
    if dtype is not DType.BOOL:
        return _reduced(row, _COMBINED[kind])
    return f"({_reduced(f'{row}.to(tl.int32)', _COMBINED[kind])} != 0)"


def _point(code: Code, name: str, text: str, dtype: DType) -> None:
    code.define(name, text, dtype, True, False)


def places(code: Code) -> str:
    """Return the elements' positions; behind all others where no element is."""
    return f"{code.full(f'tl.where(r_mask, r, {_NOWHERE})')}.to(tl.int64)"


def _first(code: Code, s: Reduce, row: str, at: str) -> None:
    best = code.names.take(f"{s.names[0]}_best")
    name = code.names.take(s.names[0])
    combine = _POSITIONS[s.kind]
    if s.dtype is DType.BOOL:
        row = f"{row}.to(tl.int32)"
    code.writer.line(f"{best}, {name} = tl.reduce(({row}, {at}), 1, {combine}, keep_dims=True)")
    if not code.tiled.nonempty:
        code.writer.line(f"{name} = tl.where({name} == {_NOWHERE}, 0, {name}).to(tl.int64)")
    code.values[s.names[0]] = Value(name, DType.I64, True, False)


def _two_passes(code: Code, s: Reduce, row: str) -> None:
    mean, squares, count = s.names
    dtype = s.dtype
    extent = f"tl.full([1, 1], extent, tl.int64).to({TYPES[dtype]})"
    code.define(count, extent, dtype, False, False)
    n = f"gy_maximum({code.values[count].text}, 1.0)"
    total = _sum(filled(code, row, ReduceKind.SUM, dtype), dtype)
    _point(code, mean, f"{total} / {n}", dtype)
    apart = code.let(
        f"{squares}_row",
        filled(code, f"({row} - {code.values[mean].text})", ReduceKind.SUM, dtype),
        dtype, True, True,
    )  # fmt: skip
    _point(code, squares, _sum(f"{apart.text} * {apart.text}", dtype), dtype)


class LoopReduction:
    """One reduction of a loop: accumulators of a whole block, one step, and the end.

    Args:
        code: where the loop stands.
        s: the reduction.
    """

    def __init__(self, code: Code, s: Reduce) -> None:
        self._s = s
        take = code.names.take
        self._acc = [take(f"{name}_acc") for name in s.names]
        self._at = take(f"{s.names[0]}_at") if s.kind in _POSITIONS else ""

    def start(self, code: Code) -> None:
        """Write the accumulators' first values."""
        kind, dtype = self._s.kind, self._s.dtype
        first = identity(kind, dtype)
        shape = "[XBLOCK, RBLOCK]"
        rest: list[bool | int | float] = [0] * (len(self._acc) - 1)
        for name, value in zip(self._acc, [first, *rest], strict=True):
            code.writer.line(f"{name} = tl.full({shape}, {literal(value, dtype)}, {TYPES[dtype]})")
        if self._at:
            code.writer.line(f"{self._at} = tl.full({shape}, {_NOWHERE}, tl.int64)")

    def step(self, code: Code) -> None:
        """Write what one block of elements does to the accumulators."""
        s, acc, w = self._s, self._acc, code.writer
        args = [code.values[a].text for a in s.args]

        def keep(name: str, text: str) -> None:
            w.line(f"{name} = tl.where(r_mask, {text}, {name})")

        match s.kind:
            case ReduceKind.SUM:
                keep(acc[0], f"{acc[0]} + {args[0]}")
            case ReduceKind.DOT:
                keep(acc[0], f"{acc[0]} + {args[0]} * {args[1]}")
            case ReduceKind.ARGMIN | ReduceKind.ARGMAX:
                self._position(code, args[0])
            case ReduceKind.WELFORD:
                self._welford(code, args[0], keep)
            case ReduceKind.ONLINE_SOFTMAX:
                apart, power = (code.names.take(f"{s.names[0]}_{n}") for n in ("apart", "power"))
                # Equal infinities have no difference. One of the two scales is 1.
                w.line(f"{apart} = tl.where({args[0]} == {acc[0]}, 0.0, {args[0]} - {acc[0]})")
                w.line(f"{power} = libdevice.exp(-tl.abs({apart}))")
                sums = f"{acc[1]} * {power} + 1.0", f"{acc[1]} + {power}"
                keep(acc[1], f"tl.where({apart} > 0, {sums[0]}, {sums[1]})")
                keep(acc[0], f"gy_maximum({acc[0]}, {args[0]})")
            case _:
                keep(acc[0], f"{_COMBINED[s.kind]}({acc[0]}, {args[0]})")

    def _position(self, code: Code, value: str) -> None:
        acc, at = self._acc[0], self._at
        kind, dtype = self._s.kind, self._s.dtype
        value = f"tl.where(r_mask, {value}, {_typed(identity(kind, dtype), dtype)})"
        place = f"tl.where(r_mask, r, {_NOWHERE}).to(tl.int64)"
        code.writer.line(f"{acc}, {at} = {_POSITIONS[kind]}({acc}, {at}, {value}, {place})")

    def _welford(self, code: Code, value: str, keep: Callable[[str, str], None]) -> None:
        mean, squares, count = self._acc
        apart = code.names.take(f"{self._s.names[0]}_apart")
        code.writer.line(f"{apart} = {value} - {mean}")
        keep(count, f"{count} + 1.0")
        keep(mean, f"{mean} + {apart} / {count}")
        keep(squares, f"{squares} + {apart} * ({value} - {mean})")

    def end(self, code: Code) -> None:
        """Write how the accumulators are merged."""
        s, acc, dtype = self._s, self._acc, self._s.dtype
        match s.kind:
            case ReduceKind.SUM | ReduceKind.DOT:
                _point(code, s.names[0], _sum(acc[0], dtype), dtype)
            case ReduceKind.ARGMIN | ReduceKind.ARGMAX:
                _first(code, s, acc[0], self._at)
            case ReduceKind.WELFORD:
                words = [code.names.take(name) for name in s.names]
                joined = ", ".join(acc)
                code.writer.line(
                    f"{', '.join(words)} = tl.reduce(({joined}), 1, gy_welford, keep_dims=True)"
                )
                for name, word in zip(s.names, words, strict=True):
                    code.values[name] = Value(word, dtype, True, False)
            case ReduceKind.ONLINE_SOFTMAX:
                m, total = s.names
                _point(code, m, _reduced(acc[0], "gy_maximum"), dtype)
                top = code.values[m].text
                power = f"libdevice.exp(tl.where({acc[0]} == {top}, 0.0, {acc[0]} - {top}))"
                _point(code, total, _sum(f"{acc[1]} * {power}", dtype), dtype)
                word = code.values[total].text
                # The definition subtracts the infinity from itself.
                finite = f"(({top} - {top}) == 0) | (extent <= 0)"
                code.writer.line(f'{word} = tl.where({finite}, {word}, float("nan"))')
            case _:
                _point(code, s.names[0], _reduced_as(acc[0], s.kind, dtype), dtype)
