"""Emission of reductions, of a block or of a loop's accumulators."""

from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.dtypes import TYPES, literal
from gyrator_ir.body.nodes import Reduce, ReduceKind, identity_of
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
_SEVERAL = {ReduceKind.WELFORD: "gy_welford", ReduceKind.ONLINE_SOFTMAX: "gy_exponentials"}


def _nowhere(code: Code) -> int:
    """Return a position after all others."""
    return (1 << (63 if code.wide else 31)) - 1


def _typed(value: bool | int | float, dtype: DType) -> str:
    return f"tl.full([1, 1], {literal(value, dtype)}, {TYPES[dtype]})"


def filled(code: Code, text: str, kind: ReduceKind, dtype: DType) -> str:
    """Return a block filled with the reduction's identity out of bounds."""
    fill = _typed(identity_of(kind, dtype), dtype)
    return f"tl.where(r_mask, {code.full(text)}, {fill})"


def _reduced(text: str, combine: str) -> str:
    return f"tl.reduce({text}, 1, {combine}, keep_dims=True)"


def _sum(text: str, dtype: DType) -> str:
    if dtype in (DType.F32, DType.F64):
        return f"tl.sum({text}, axis=1, keep_dims=True)"
    return f"tl.sum({text}, axis=1, keep_dims=True).to({TYPES[dtype]})"


def reduce_block(code: Code, s: Reduce) -> None:
    """Emit a reduction within a block."""
    args = [code.values[a].text for a in s.args]
    kind, dtype = s.kind, s.dtype
    match kind:
        case ReduceKind.ARGMIN | ReduceKind.ARGMAX:
            filled_row = filled(code, args[0], kind, dtype)
            row = code.let(f"{s.names[0]}_row", filled_row, dtype, True, True).text
            at = code.names.take(f"{s.names[0]}_at")
            code.writer.line(f"{at} = {positions(code)}")
            _first(code, s, row, at)
        case ReduceKind.WELFORD:
            _points(code, s, f"gy_welford_of({code.full(args[0])}, r_mask, extent)")
        case ReduceKind.ONLINE_SOFTMAX:
            _points(code, s, f"gy_exponentials_of({code.full(args[0])}, r_mask)")
        case _:
            _single(code, s, filled(code, " * ".join(args), kind, dtype))


def _single(code: Code, s: Reduce, row: str) -> None:
    """Emit the result of a reduction of a row to one value."""
    if s.kind in (ReduceKind.SUM, ReduceKind.DOT):
        text = _sum(row, s.dtype)
    elif s.dtype is DType.BOOL:
        text = f"({_reduced(f'{row}.to(tl.int32)', _COMBINED[s.kind])} != 0)"
    else:
        text = _reduced(row, _COMBINED[s.kind])
    code.define(s.names[0], text, s.dtype, True, False)


def _points(code: Code, s: Reduce, text: str) -> None:
    """Emit the results of a reduction with several results."""
    words = [code.names.take(name) for name in s.names]
    code.writer.line(f"{', '.join(words)} = {text}")
    for name, word in zip(s.names, words, strict=True):
        code.values[name] = Value(word, s.dtype, True, False)


def positions(code: Code) -> str:
    """Return the positions of the elements as indices, and one after all others out of bounds."""
    return f"{code.full(f'tl.where(r_mask, r, {_nowhere(code)})')}.to({code.index_type})"


def _first(code: Code, s: Reduce, row: str, at: str) -> None:
    best = code.names.take(f"{s.names[0]}_best")
    name = code.names.take(s.names[0])
    combine = _POSITIONS[s.kind]
    if s.dtype is DType.BOOL:
        row = f"{row}.to(tl.int32)"
    code.writer.line(f"{best}, {name} = tl.reduce(({row}, {at}), 1, {combine}, keep_dims=True)")
    at = name if code.tiled.nonempty else f"tl.where({name} == {_nowhere(code)}, 0, {name})"
    code.writer.line(f"{name} = {at}.to(tl.int64)")
    code.values[s.names[0]] = Value(name, DType.I64, True, False)


class LoopReduction:
    """A reduction in a loop, with accumulators of the block's shape.

    Args:
        code: the emission state.
        s: the reduction.
        backwards: whether the loop begins with the last block, which may be partial.
    """

    def __init__(self, code: Code, s: Reduce, backwards: bool) -> None:
        self._s = s
        # Lanes that miss no block but the last have the same count, which a loop need not keep.
        self._counts = s.kind is ReduceKind.WELFORD and not backwards
        self._how = next(r for r in code.tiled.reductions if r.result == s.names[0])
        take = code.names.take
        self._acc = [take(f"{name}_acc") for name in s.names]
        self._at = take(f"{s.names[0]}_at") if s.kind in _POSITIONS else ""

    def start(self, code: Code) -> None:
        """Emit the initialisation of the accumulators."""
        kind, dtype = self._s.kind, self._s.dtype
        first = identity_of(kind, dtype)
        group = self._how.group
        shape = f"[XBLOCK, RBLOCK // {group}]" if group > 1 else "[XBLOCK, RBLOCK]"
        rest: list[bool | int | float] = [0] * (len(self._acc) - 1)
        names = self._acc[:-1] if self._counts else self._acc
        for name, value in zip(names, [first, *rest], strict=False):
            code.writer.line(f"{name} = tl.full({shape}, {literal(value, dtype)}, {TYPES[dtype]})")
        if self._at:
            code.writer.line(f"{self._at} = tl.full({shape}, {_nowhere(code)}, {code.index_type})")

    def step(self, code: Code) -> None:
        """Emit the update of the accumulators by a block of elements."""
        s, acc, w = self._s, self._acc, code.writer
        args = [code.values[a].text for a in s.args]

        def keep(name: str, text: str) -> None:
            w.line(f"{name} = tl.where(r_mask, {text}, {name})")

        match s.kind:
            case ReduceKind.SUM | ReduceKind.DOT:
                keep(acc[0], f"{acc[0]} + {' * '.join(args)}")
            case ReduceKind.ARGMIN | ReduceKind.ARGMAX:
                self._position(code, args[0])
            case ReduceKind.WELFORD if self._counts:
                joined = ", ".join(acc[:-1])
                inverse = f"1.0 / tl.cast(start // RBLOCK + 1, {TYPES[s.dtype]})"
                w.line(f"{joined} = gy_welford_next({joined}, {args[0]}, r_mask, {inverse})")
            case ReduceKind.ONLINE_SOFTMAX if self._how.group > 1:
                joined, value = ", ".join(acc), code.full(args[0])
                how = f"{self._how.group}, {self._how.apart}"
                w.line(f"{joined} = gy_exponentials_group({joined}, {value}, r_mask, {how})")
            case ReduceKind.WELFORD | ReduceKind.ONLINE_SOFTMAX:
                joined = ", ".join(acc)
                w.line(f"{joined} = {_SEVERAL[s.kind]}_step({joined}, {args[0]}, r_mask)")
            case _:
                keep(acc[0], f"{_COMBINED[s.kind]}({acc[0]}, {args[0]})")

    def _position(self, code: Code, value: str) -> None:
        acc, at = self._acc[0], self._at
        kind, dtype = self._s.kind, self._s.dtype
        value = f"tl.where(r_mask, {value}, {_typed(identity_of(kind, dtype), dtype)})"
        place = f"tl.where(r_mask, r, {_nowhere(code)}).to({code.index_type})"
        code.writer.line(f"{acc}, {at} = {_POSITIONS[kind]}({acc}, {at}, {value}, {place})")

    def end(self, code: Code) -> None:
        """Emit the reduction of the accumulators."""
        s, acc = self._s, self._acc
        match s.kind:
            case ReduceKind.ARGMIN | ReduceKind.ARGMAX:
                _first(code, s, acc[0], self._at)
            case ReduceKind.WELFORD:
                if self._counts:
                    blocks = "(extent - tl.arange(0, RBLOCK)[None, :] + RBLOCK - 1) // RBLOCK"
                    count = f"tl.cast({blocks}, {TYPES[s.dtype]})"
                    shape = "[XBLOCK, RBLOCK]"
                    code.writer.line(f"{acc[-1]} = tl.broadcast_to({count}, {shape})")
                _points(code, s, _reduced(f"({', '.join(acc)})", "gy_welford"))
            case ReduceKind.ONLINE_SOFTMAX:
                _points(code, s, f"gy_exponentials({', '.join(acc)}, extent)")
            case _:
                _single(code, s, acc[0])
