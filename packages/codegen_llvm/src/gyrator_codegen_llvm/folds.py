"""Emission of reductions and scans, whose state is in variables that LLVM keeps in registers.

Floats are summed in `double`, in any order unless the sums are compensated or the numerics fix it.
The second pass over the elements of a `welford` or `online_softmax` needs the mean
or the maximum, which the first one finds.
"""

from attrs import field

from gyrator_codegen import REDUCTION_OF
from gyrator_codegen.analysis import linear_position
from gyrator_codegen_llvm.code import Cell, Code, Value
from gyrator_codegen_llvm.dtypes import TYPES, literal
from gyrator_codegen_llvm.ops import EMITTERS, cast
from gyrator_ir.body.nodes import POSITIONS, Reduce, ReduceKind, ScanKind, ScanStep, identity_of
from gyrator_ir.define import define
from gyrator_ir.modes import Numerics
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.types import DType

TWO_PASSES = frozenset({ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX})
"""Reductions that need two loops over the elements."""

_F64, _NOWHERE = DType.F64, (1 << 63) - 1
_SUMS = frozenset({ReduceKind.SUM, ReduceKind.DOT, *TWO_PASSES})
_OPS = {
    ReduceKind.PROD: "mul", ReduceKind.ANY: "bit_or", ReduceKind.ALL: "bit_and",
    ReduceKind.XOR: "bit_xor",
}  # fmt: skip
_WIDE_SCANS = {ScanKind.SUM: "add", ScanKind.PROD: "mul"}


@define(eq=False)
class Sum:
    """A sum of floats."""

    code: Code
    name: str
    compensated: bool
    """Whether the errors of the additions are added up as well."""
    cells: list[Cell] = field(factory=list)

    def start(self) -> None:
        """Emit the allocation of the state."""
        words = ("sum", "error") if self.compensated else ("sum",)
        self.cells = [self.code.variable(f"{self.name}_{w}", _F64) for w in words]

    def clear(self) -> None:
        """Emit the initial state."""
        for cell in self.cells:
            self.code.write(cell, literal(0, _F64))

    def add(self, text: str) -> None:
        """Emit the addition of a `double`."""
        code = self.code
        old = code.read(self.cells[0])
        if not self.compensated:
            any_order = code.kernel.numerics is not Numerics.BATCH_INVARIANT
            flag = "reassoc " if any_order and code.strip == 1 else ""
            code.write(self.cells[0], code.op(f"fadd {flag}double {old}, {text}"))
            return
        new = code.op(f"fadd double {old}, {text}")
        part = code.op(f"fsub double {new}, {old}")
        lost = code.op(f"fsub double {old}, {code.op(f'fsub double {new}, {part}')}")
        lost = code.op(f"fadd double {lost}, {code.op(f'fsub double {text}, {part}')}")
        code.write(self.cells[0], new)
        errors = code.read(self.cells[1])
        code.write(self.cells[1], code.op(f"fadd double {errors}, {lost}"))

    def result(self) -> str:
        """Emit the sum, as a `double`."""
        total = self.code.read(self.cells[0])
        if not self.compensated:
            return total
        errors = self.code.read(self.cells[1])
        both = self.code.op(f"fadd double {total}, {errors}")
        # The error of an infinite sum is NaN.
        known = self.code.op(f"fcmp ord double {errors}, {errors}")
        return self.code.select(known, both, total, _F64)


@define(eq=False)
class Fold:
    """The state of a reduction or scan."""

    code: Code
    step: Reduce | ScanStep
    sum: Sum | None = None
    cells: list[Cell] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        s, dtype, name = self.step, self.step.dtype, self.step.names[0]
        if isinstance(s, Reduce) and s.kind in _SUMS and dtype.is_float:
            how = next(r for r in self.code.tiled.reductions if r.result == name)
            self.sum = Sum(self.code, name, how.compensated)
            self.sum.start()
        if (
            isinstance(s, ScanStep)
            and dtype.is_float
            and s.kind in (*_WIDE_SCANS, ScanKind.LOGSUMEXP)
        ):
            dtype = _F64
        if self.sum is None or s.kind in TWO_PASSES:
            wide = s.kind is ReduceKind.WELFORD
            self.cells = [self.code.variable(f"{name}_acc", _F64 if wide else dtype)]
        if s.kind in POSITIONS:
            self.cells.append(self.code.variable(f"{name}_at", DType.I64))

    def clear(self) -> None:
        """Emit the initial state of the first pass."""
        if self.sum is not None:
            self.sum.clear()
        if not self.cells:
            return
        s, kind = self.step, self.step.kind
        of = REDUCTION_OF[kind] if isinstance(kind, ScanKind) else kind
        first = self.cells[0].dtype
        self.code.write(self.cells[0], literal(identity_of(of, first), first))
        if kind in POSITIONS:
            self.code.write(self.cells[1], str(0 if isinstance(s, ScanStep) else _NOWHERE))

    def between(self) -> None:
        """Emit what precedes the second pass."""
        if self.step.kind is ReduceKind.WELFORD:
            assert self.sum is not None
            total = self.sum.result()
            mean = self.code.op(f"fdiv double {total}, {self._count()}")
            self.code.write(self.cells[0], mean)
            self.sum.clear()

    def _count(self) -> str:
        elements = self.code.index(extent_of(self.code.kernel.inner))
        divisor = self.code.op(f"call i64 @llvm.smax.i64(i64 {elements}, i64 1)")
        return self.code.op(f"sitofp i64 {divisor} to double")

    def first_pass(self) -> None:
        """Emit the first of two passes for an element."""
        code, (v,) = self.code, (self.code.value(a) for a in self.step.args)
        if self.step.kind is ReduceKind.WELFORD:
            assert self.sum is not None
            self.sum.add(cast(code, v, _F64))
        else:
            self._extreme(v, "maximum")

    def take(self) -> None:
        """Emit the only pass, or the second one, for an element. Defines the result of a scan."""
        code, s, kind = self.code, self.step, self.step.kind
        v, *more = (code.value(a) for a in s.args)
        if isinstance(s, ScanStep):
            self._scan(s, v)
        elif kind is ReduceKind.WELFORD:
            apart = code.op(f"fsub double {cast(code, v, _F64)}, {code.read(self.cells[0])}")
            self._add(code.op(f"fmul double {apart}, {apart}"))
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            top, dtype = code.read(self.cells[0]), s.dtype
            below = Value(code.op(f"fsub {v.typed}, {top}"), dtype)
            power = Value(EMITTERS["exp"](code, [below], dtype), dtype)
            self._add(cast(code, power, _F64))
        elif self.sum is not None:
            x, *others = (cast(code, a, _F64) for a in (v, *more))
            self._add(code.op(f"fmul double {x}, {others[0]}") if others else x)
        elif kind in POSITIONS:
            self._position(v, first=True)
        elif kind in (ReduceKind.MIN, ReduceKind.MAX) and s.dtype is not DType.BOOL:
            self._extreme(v, "minimum" if kind is ReduceKind.MIN else "maximum")
        else:
            self._combine(v, more)

    def _add(self, text: str) -> None:
        assert self.sum is not None
        self.sum.add(text)

    def _combine(self, v: Value, more: list[Value]) -> None:
        code, kind, dtype = self.code, self.step.kind, self.step.dtype
        if more:
            v = Value(EMITTERS["mul"](code, [v, *more], dtype), dtype)
        if dtype is DType.BOOL:
            op = (
                "bit_and" if kind in (ReduceKind.MIN, ReduceKind.ALL, ReduceKind.PROD) else "bit_or"
            )
            op = "bit_xor" if kind is ReduceKind.XOR else op
        else:
            op = _OPS[kind] if isinstance(kind, ReduceKind) and kind in _OPS else "add"
        old = Value(code.read(self.cells[0]), dtype)
        code.write(self.cells[0], EMITTERS[op](code, [old, v], dtype))

    def _extreme(self, v: Value, op: str) -> None:
        code, dtype = self.code, self.step.dtype
        old = Value(code.read(self.cells[0]), dtype)
        if dtype.is_float:
            # Either zero of two may be the result of a reduction, so that LLVM may vectorise it.
            text = code.intrinsic(op, dtype, old, v)
        else:
            text = EMITTERS[op](code, [old, v], dtype)
        code.write(self.cells[0], text)

    def _position(self, v: Value, first: bool) -> str:
        """Emit the update of a position: the first one of equal values, or the last one."""
        code, word = self.code, TYPES[v.dtype]
        least = self.step.kind in (ReduceKind.ARGMIN, ScanKind.ARGMIN)
        old, at = code.read(self.cells[0]), code.read(self.cells[1])
        here = code.index(linear_position(code.kernel.inner))
        pair = [v, Value(old, v.dtype)]
        better = EMITTERS["lt" if least else "gt"](code, pair, DType.BOOL)
        same = EMITTERS["eq"](code, pair, DType.BOOL)
        if v.dtype.is_float:
            nan, had = (code.op(f"fcmp uno {word} {x}, {x}") for x in (v.text, old))
            new = code.op(f"and i1 {nan}, {code.op(f'xor i1 {had}, true')}")
            better = code.op(f"or i1 {better}, {new}")
            same = code.op(f"or i1 {same}, {code.op(f'and i1 {nan}, {had}')}")
        if first:
            same = code.op(f"and i1 {same}, {code.op(f'icmp slt i64 {here}, {at}')}")
        take = code.op(f"or i1 {better}, {same}")
        code.write(self.cells[0], code.select(take, v.text, old, v.dtype))
        result = code.op(f"select i1 {take}, i64 {here}, i64 {at}")
        code.write(self.cells[1], result)
        return result

    def _scan(self, s: ScanStep, v: Value) -> None:
        code, kind = self.code, s.kind
        if kind in POSITIONS:
            code.define(s.names[-1], self._position(v, first=False), DType.I64)
            if len(s.names) > 1:
                code.define(s.names[0], code.read(self.cells[0]), s.dtype)
            return
        dtype = self.cells[0].dtype
        wide, old = Value(cast(code, v, dtype), dtype), Value(code.read(self.cells[0]), dtype)
        if kind is ScanKind.LOGSUMEXP:
            text = code.op(f"call double @gy_log_add(double {old.text}, double {wide.text})")
        elif kind in _WIDE_SCANS and dtype is not DType.BOOL:
            text = EMITTERS[_WIDE_SCANS[kind]](code, [old, wide], dtype)
        elif dtype is DType.BOOL:
            op = "bit_and" if kind in (ScanKind.MIN, ScanKind.PROD) else "bit_or"
            text = EMITTERS[op](code, [old, wide], dtype)
        else:
            op = "minimum" if kind is ScanKind.MIN else "maximum"
            text = EMITTERS[op](code, [old, wide], dtype)
        code.write(self.cells[0], text)
        code.define(s.names[0], cast(code, Value(text, dtype), s.dtype), s.dtype)

    def end(self) -> None:
        """Emit the results of a reduction."""
        code, s, dtype = self.code, self.step, self.step.dtype
        if not isinstance(s, Reduce):
            return
        total = "" if self.sum is None else cast(code, Value(self.sum.result(), _F64), dtype)
        texts = [total] if total else [code.read(self.cells[-1])]
        if s.kind in POSITIONS:
            empty = code.op(f"icmp eq i64 {texts[0]}, {_NOWHERE}")
            texts = [code.op(f"select i1 {empty}, i64 0, i64 {texts[0]}")]
        elif s.kind is ReduceKind.WELFORD:
            elements = code.index(extent_of(code.kernel.inner))
            count = Value(elements, DType.I64)
            mean = Value(code.read(self.cells[0]), _F64)
            texts = [cast(code, mean, dtype), total, cast(code, count, dtype)]
        elif s.kind is ReduceKind.ONLINE_SOFTMAX:
            texts = [code.read(self.cells[0]), total]
        for name, text, result in zip(s.names, texts, s.types, strict=True):
            code.define(name, text, result)
