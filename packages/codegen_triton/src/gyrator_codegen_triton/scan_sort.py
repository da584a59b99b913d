"""Emission of scans, in a block or a loop, and of sorts."""

from gyrator_codegen import REDUCTION_OF
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.dtypes import TYPES, cast, literal
from gyrator_codegen_triton.reduction import filled, positions
from gyrator_ir.body.nodes import POSITIONS, ScanKind, ScanStep, SortStep, identity_of
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


def scan_block(code: Code, s: ScanStep) -> None:
    """Emit a scan within a block."""
    _define(code, s, _scanned(code, s))


def _define(code: Code, s: ScanStep, names: list[str]) -> None:
    """Take the results of a scan from `names`, of which positions are the last."""
    for result, name, dtype in zip(s.names, names[-len(s.names) :], s.types, strict=True):
        code.values[result] = Value(name, dtype, True, True)


def _scanned(code: Code, s: ScanStep) -> list[str]:
    """Emit the scan of a block; return the names of its values, and of positions if it has them."""
    row = filled(code, code.values[s.args[0]].text, REDUCTION_OF[s.kind], s.dtype)
    reverse = ", reverse=True" if s.reverse else ""
    name = code.names.take(s.names[0])
    names = [name]
    if s.kind in POSITIONS:
        names = [code.names.take(f"{s.names[0]}_best"), name]
        row = f"({row}, {positions(code)}.to(tl.int64))"
    scan = f"tl.associative_scan({row}, 1, {_SCANS[s.kind]}{reverse})"
    code.writer.line(f"{', '.join(names)} = {scan}")
    return names


class LoopScan:
    """A scan in a loop, with a carry.

    Args:
        code: the emission state.
        s: the scan.
    """

    def __init__(self, code: Code, s: ScanStep) -> None:
        self._s = s
        take = code.names.take
        self._carry = [take(f"{s.names[0]}_so_far")]
        if s.kind in POSITIONS:
            self._carry.append(take(f"{s.names[0]}_at"))

    def start(self, code: Code) -> None:
        """Emit the initialisation of the carry."""
        dtype = self._s.dtype
        first = literal(identity_of(REDUCTION_OF[self._s.kind], dtype), dtype)
        shape = f"[{code.lengths[0]}, 1]"
        code.writer.line(f"{self._carry[0]} = tl.full({shape}, {first}, {TYPES[dtype]})")
        for name in self._carry[1:]:
            code.writer.line(f"{name} = tl.full({shape}, 0, tl.int64)")

    def step(self, code: Code) -> None:
        """Emit the scan of a block, combined with the carry, and the update of the carry."""
        s, w = self._s, code.writer
        names = _scanned(code, s)
        combine = f"{_SCANS[s.kind]}({', '.join([*self._carry, *names])})"
        w.line(f"{', '.join(names)} = {combine}")
        end = "0" if s.reverse else f"{code.lengths[1]} - 1"
        last = f"tl.full([{code.lengths[0]}, 1], {end}, tl.int32)"
        for carry, name in zip(self._carry, names, strict=True):
            w.line(f"{carry} = tl.gather({name}, {last}, 1)")
        _define(code, s, names)


def sort_block(code: Code, s: SortStep) -> None:
    """Emit a stable sort of a row within a block. Keys are integers in the order of the values."""
    value = code.values[s.args[0]]
    row = code.let(f"{s.names[0]}_row", code.full(value.text), s.dtype, True, True).text
    key = f"{'~' if s.descending else ''}{_key(row, s.dtype)}"
    function = "gy_sorted_places_64" if s.dtype.size == 8 else "gy_sorted_places"
    if s.names[0] in code.tiled.packed:
        function = "gy_sorted_places_in_32"
    text = f"{function}({key}, r, r_mask)"
    order = code.let(s.names[1], text, DType.I32, True, True).text
    code.define(s.names[0], f"tl.gather({row}, {order}, 1)", s.dtype, True, True)
    code.values[s.names[1]] = Value(f"{order}.to(tl.int64)", DType.I64, True, True)


def _key(row: str, dtype: DType) -> str:
    """Return signed 64-bit integers in the order of the values, of which only 32 bits are
    significant for values of at most 32 bits. NaN is the largest, and both zeros are equal."""
    if dtype is DType.F64:
        return f"gy_order_f64({row})"
    if dtype.is_float:
        return f"gy_order_f32({cast(row, dtype, DType.F32)})"
    if dtype is DType.U64:
        return f"({row} ^ 0x8000000000000000).to(tl.int64, bitcast=True)"
    wide = f"{row}.to(tl.int64)"
    return f"({wide} - 0x80000000)" if dtype is DType.U32 else wide
