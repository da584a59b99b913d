"""Scans of a block or of a loop, and sorts."""

from gyrator_codegen import REDUCTION_OF, identity
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.dtypes import TYPES, cast, literal
from gyrator_codegen_triton.reduction import filled, places
from gyrator_ir.body.nodes import POSITIONS, ScanKind, ScanStep, SortStep
from gyrator_ir.types import DType

_SCANS = {
    ScanKind.SUM: "gy_add",
    ScanKind.PROD: "gy_mul",
    ScanKind.MIN: "gy_minimum",
    ScanKind.MAX: "gy_maximum",
    ScanKind.LOGSUMEXP: "gy_logaddexp",
    ScanKind.ARGMIN: "gy_scan_argmin",
    ScanKind.ARGMAX: "gy_scan_argmax",
}
_LAST = 0x7FFFFFFF
"""The highest 32-bit key, which a NaN has and what lies beyond a row."""


def scan_block(code: Code, s: ScanStep) -> None:
    """Write a scan of values that are all in the block."""
    names = _scanned(code, s)
    code.values[s.names[0]] = Value(names[-1], s.types[0], True, True)


def _scanned(code: Code, s: ScanStep) -> list[str]:
    """Write the scan of one block; return its names: of values, and of positions."""
    row = filled(code, code.values[s.args[0]].text, REDUCTION_OF[s.kind], s.dtype)
    reverse = ", reverse=True" if s.reverse else ""
    name = code.names.take(s.names[0])
    names = [name]
    if s.kind in POSITIONS:
        names = [code.names.take(f"{s.names[0]}_best"), name]
        row = f"({row}, {places(code)})"
    scan = f"tl.associative_scan({row}, 1, {_SCANS[s.kind]}{reverse})"
    code.writer.line(f"{', '.join(names)} = {scan}")
    return names


class LoopScan:
    """A scan of a loop: what it has come to, and one step.

    Args:
        code: where the loop stands.
        s: the scan.
    """

    def __init__(self, code: Code, s: ScanStep) -> None:
        self._s = s
        take = code.names.take
        self._carry = [take(f"{s.names[0]}_so_far")]
        if s.kind in POSITIONS:
            self._carry.append(take(f"{s.names[0]}_at"))

    def start(self, code: Code) -> None:
        """Write what a scan of nothing has come to."""
        dtype = self._s.dtype
        first = literal(identity(REDUCTION_OF[self._s.kind], dtype), dtype)
        shape = f"[{code.lengths[0]}, 1]"
        code.writer.line(f"{self._carry[0]} = tl.full({shape}, {first}, {TYPES[dtype]})")
        for name in self._carry[1:]:
            code.writer.line(f"{name} = tl.full({shape}, 0, tl.int64)")

    def step(self, code: Code) -> None:
        """Write the scan of one block, after what came before it."""
        s, w = self._s, code.writer
        names = _scanned(code, s)
        combine = f"{_SCANS[s.kind]}({', '.join([*self._carry, *names])})"
        w.line(f"{', '.join(names)} = {combine}")
        end = "0" if s.reverse else f"{code.lengths[1]} - 1"
        last = f"tl.full([{code.lengths[0]}, 1], {end}, tl.int32)"
        for carry, name in zip(self._carry, names, strict=True):
            w.line(f"{carry} = tl.gather({name}, {last}, 1)")
        code.values[s.names[0]] = Value(names[-1], s.types[0], True, True)


def sort_block(code: Code, s: SortStep) -> None:
    """Write a stable sort of a row that is in the block.

    Keys are integers in the values' order, with the position in the low bits, which makes all of
    them different. Keys of 64 bits are sorted by their low halves, then by their high ones.
    """
    value, w, take = code.values[s.args[0]], code.writer, code.names.take
    row = code.let(f"{s.names[0]}_row", code.full(value.text), s.dtype, True, True).text
    key, at = take(f"{s.names[0]}_key"), take(s.names[1])
    w.line(f"{key} = {'~' if s.descending else ''}{_key(row, s.dtype)}")
    if s.dtype.size < 8:
        w.line(f"{at} = {_order(key)}")
    else:
        low = take(f"{s.names[0]}_low")
        w.line(f"{low} = {_order(f'(({key} & 0xFFFFFFFF) - 0x80000000)')}")
        w.line(f"{at} = {_order(f'tl.gather({key} >> 32, {low}, 1)')}")
        w.line(f"{at} = tl.gather({low}, {at}, 1)")
    code.define(s.names[0], f"tl.gather({row}, {at}, 1)", s.dtype, True, True)
    code.values[s.names[1]] = Value(f"{at}.to(tl.int64)", DType.I64, True, True)


def _order(key: str) -> str:
    """Return the positions of 32-bit keys in order; what lies beyond the row comes last."""
    packed = f"(tl.where(r_mask, {key}, {_LAST}) << 32) | r.to(tl.int64)"
    return f"(tl.sort({packed}, 1) & 0xFFFFFFFF).to(tl.int32)"


def _key(row: str, dtype: DType) -> str:
    """Return signed 64-bit integers in the order of values; 32 bits of them count where a value has
    no more. A NaN is the largest, and the zeros are equal."""
    if dtype is DType.F64:
        return f"gy_order_f64({row})"
    if dtype.is_float:
        return f"gy_order_f32({cast(row, dtype, DType.F32)})"
    if dtype is DType.U64:
        return f"({row} ^ 0x8000000000000000).to(tl.int64, bitcast=True)"
    wide = f"{row}.to(tl.int64)"
    return f"({wide} - 0x80000000)" if dtype is DType.U32 else wide
