"""Intervals in which the values of a body lie."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from attrs import define, field

from gyrator_ir.body.nodes import Const, IndexValue, Let, Load
from gyrator_ir.body.ops import OPS, Typing
from gyrator_ir.body.rewrite import AnyStatement, defined
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.types import DType

Range = tuple[float, float]
"""The least and the largest value: exact integers of integers, finite floats of floats that are
never NaN."""

_ROUNDED: Mapping[DType, float] = MappingProxyType({DType.F32: 2.0**-21, DType.F64: 2.0**-50})
"""More than what rounding changes a number by, relatively, and quotients that are two units in the
last place off. Of other floats nothing is known."""
_SMALLEST = 2.0**-126
"""Floats nearer to 0 may be taken for it: devices flush them."""
_LARGEST = 2.0**100
"""Floats beyond are given up, long before any overflows."""


def whole_range(dtype: DType) -> Range | None:
    """Return the values of an integer type, or None."""
    if dtype is DType.BOOL:
        return 0, 1
    if not dtype.is_int:
        return None
    bits = 8 * dtype.size
    signed = dtype in (DType.I8, DType.I16, DType.I32, DType.I64)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


@define(eq=False)
class ValueRanges:
    """What is known of values by name; grows as statements are told of in order."""

    facts: ShapeFacts
    """With the ranges of all symbols."""
    buffers: Mapping[str, DType]
    types: dict[str, DType] = field(factory=dict)
    _found: dict[str, Range | None] = field(factory=dict)

    def of(self, name: str) -> Range | None:
        """Return the range of a value, None for a float of which nothing is known."""
        return self._found[name]

    def compared(self, s: Let) -> bool | None:
        """Return what a comparison gives wherever it is made; None if that is not known."""
        if OPS[s.op].typing is not Typing.COMPARE:
            return None
        a, b = (self._found[name] for name in s.args)
        if a is None or b is None:
            return None
        below, above = a[1] < b[0], a[0] > b[1]
        at_most, at_least = a[1] <= b[0], a[0] >= b[1]
        certain, never = {
            "lt": (below, at_least), "le": (at_most, above),
            "gt": (above, at_most), "ge": (at_least, below),
            "eq": (at_most and at_least, below or above),
            "ne": (below or above, at_most and at_least),
        }[s.op]  # fmt: skip
        return True if certain else False if never else None

    def tell(self, s: AnyStatement) -> None:
        """Learn of the values that a statement defines, of those it reads being known."""
        match s:
            case Load(name, buffer):
                self._set(name, self.buffers[buffer], None)
            case Const(name, value, dtype):
                self._set(name, dtype, (value, value) if math.isfinite(value) else None)
            case IndexValue(name, e, dtype):
                low, high = self.facts.bounds(e)
                self._set(name, dtype, None if low is None or high is None else (low, high))
            case Let(name, op, args, dtype):
                self._set(name, dtype, self._result(op, args, dtype))
            case _:
                for name, dtype in zip(defined(s), getattr(s, "types", ()), strict=True):
                    self._set(name, dtype, None)

    def _set(self, name: str, dtype: DType, known: Range | None) -> None:
        whole = whole_range(dtype)
        if whole is not None:
            inside = known is not None and whole[0] <= known[0] and known[1] <= whole[1]
            known = known if inside else whole
        elif known is not None:
            known = _rounded(known, dtype)
        self.types[name], self._found[name] = dtype, known

    def _result(self, op: str, args: tuple[str, ...], dtype: DType) -> Range | None:
        operands = [self._found[a] for a in args]
        if op == "where":
            operands = operands[1:]
        if op == "cast":
            return _converted(operands[0], self.types[args[0]], dtype)
        rule = _RULES.get(op)
        given = [x for x in operands if x is not None]
        if rule is None or len(given) < len(operands):
            return None
        return rule(*given)


def _rounded(known: Range, dtype: DType) -> Range | None:
    if dtype not in _ROUNDED or max(map(abs, known)) > _LARGEST:
        return None
    low, high = known
    if 0 < low < _SMALLEST:
        low = 0.0
    if -_SMALLEST < high < 0:
        high = 0.0
    more = _ROUNDED[dtype]
    return low - abs(low) * more, high + abs(high) * more


def _converted(known: Range | None, source: DType, target: DType) -> Range | None:
    if known is None or (source.is_float and source not in _ROUNDED):
        return None
    if source.is_float and target.is_int:
        return math.trunc(known[0]), math.trunc(known[1])
    return known


def _corners(of: Callable[[float, float], float]) -> Callable[[Range, Range], Range]:
    def rule(a: Range, b: Range) -> Range:
        ends = [of(x, y) for x in a for y in b]
        return min(ends), max(ends)

    return rule


def _each(of: Callable[[float], float]) -> Callable[[Range], Range]:
    return lambda a: (of(a[0]), of(a[1]))


def _divided(of: Callable[[float, float], float]) -> Callable[[Range, Range], Range | None]:
    def rule(a: Range, b: Range) -> Range | None:
        return _corners(of)(a, b) if b[0] > 0 else None

    return rule


def _abs(a: Range) -> Range:
    low, high = sorted(map(abs, a))
    return (0 if a[0] <= 0 <= a[1] else low), high


def _mod(a: Range, b: Range) -> Range | None:
    return (0, b[1] - 1) if b[0] > 0 else None


def _rem(a: Range, b: Range) -> Range | None:
    if b[0] <= 0:
        return None
    return (0 if a[0] >= 0 else 1 - b[1]), (0 if a[1] <= 0 else b[1] - 1)


def _and(a: Range, b: Range) -> Range | None:
    ends = [x[1] for x in (a, b) if x[0] >= 0]
    return (0, min(ends)) if ends else None


def _shifted(a: Range, b: Range) -> Range | None:
    if b[0] < 0:
        return None
    return _corners(lambda x, y: int(x) >> min(int(y), 64))(a, b)


def _truncated(x: float, y: float) -> int:
    quotient = abs(int(x)) // int(y)
    return quotient if x >= 0 else -quotient


_RULES: Mapping[str, Callable[..., Range | None]] = MappingProxyType(
    {
        "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
        "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
        "mul": _corners(lambda x, y: x * y),
        "div": _divided(lambda x, y: x / y),
        "floordiv": _divided(lambda x, y: x // y),
        "truncdiv": _divided(_truncated),
        "mod": _mod,
        "rem": _rem,
        "neg": lambda a: (-a[1], -a[0]),
        "abs": _abs,
        "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
        "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
        "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
        "floor": _each(math.floor),
        "ceil": _each(math.ceil),
        "trunc": _each(math.trunc),
        "round": _each(round),
        "bit_and": _and,
        "shr": _shifted,
    }
)
"""What becomes of ranges of operands; of integers that would wrap, the whole type is left."""
