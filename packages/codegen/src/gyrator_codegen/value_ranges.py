"""Interval analysis of the values of a body."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from attrs import field

from gyrator_ir.body.nodes import Const, IndexValue, Let, Load
from gyrator_ir.body.ops import OPS, Typing
from gyrator_ir.body.rewrite import AnyStatement, defined
from gyrator_ir.define import define
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.types import DType

Range = tuple[float, float]
"""The least and the greatest value: exact integers for an integer value, finite floats for a float
that is never NaN."""

_ERRORS: Mapping[DType, float] = MappingProxyType({DType.F32: 2.0**-21, DType.F64: 2.0**-50})
"""Upper bounds of the relative error of an op, including quotients that are off by two units in the
last place. Values of other float types have no range."""
_SMALLEST = 2.0**-126
"""Smaller floats may become 0, since devices flush subnormal numbers."""
_LARGEST = 2.0**100
"""Larger floats have no range, which rules out overflow."""


def type_range(dtype: DType) -> Range | None:
    """Return the range of an integer type or of bool, or None for others."""
    if dtype is DType.BOOL:
        return 0, 1
    return dtype.limits if dtype.is_int else None


@define(eq=False)
class ValueRanges:
    """The ranges of values by name; statements are added in order."""

    facts: ShapeFacts
    """Facts that include the ranges of all symbols."""
    buffers: Mapping[str, DType]
    types: dict[str, DType] = field(factory=dict)
    _ranges: dict[str, Range | None] = field(factory=dict)

    def of(self, name: str) -> Range | None:
        """Return the range of a value, or None for a float with an unknown range."""
        return self._ranges[name]

    def compared(self, s: Let) -> bool | None:
        """Return the result of a comparison if it is always the same, else None."""
        if OPS[s.op].typing is not Typing.COMPARE:
            return None
        a, b = (self._ranges[name] for name in s.args)
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

    def add(self, s: AnyStatement) -> None:
        """Add the values that a statement defines. Its operands must have been added before."""
        match s:
            case Load(name, buffer):
                self._set(name, self.buffers[buffer], None)
            case Const(name, value, dtype):
                self._set(name, dtype, (value, value) if math.isfinite(value) else None)
            case IndexValue(name, e, dtype):
                low, high = self.facts.bounds(e)
                bounds: Range | None = None
                if low is not None and high is not None and low <= high:  # the axis is not empty
                    bounds = low, high
                self._set(name, dtype, bounds)
            case Let(name, op, args, dtype):
                self._set(name, dtype, self._result(op, args, dtype))
            case _:
                for name, dtype in zip(defined(s), getattr(s, "types", ()), strict=True):
                    self._set(name, dtype, None)

    def _set(self, name: str, dtype: DType, value: Range | None) -> None:
        limits = type_range(dtype)
        if limits is not None:
            inside = value is not None and limits[0] <= value[0] and value[1] <= limits[1]
            value = value if inside else limits
        elif value is not None:
            value = _rounded(value, dtype)
        self.types[name], self._ranges[name] = dtype, value

    def _result(self, op: str, args: tuple[str, ...], dtype: DType) -> Range | None:
        operands = [self._ranges[a] for a in args]
        if op == "where":
            operands = operands[1:]
        if op == "cast":
            return _converted(operands[0], self.types[args[0]], dtype)
        rule = _RULES.get(op)
        ranges = [x for x in operands if x is not None]
        if rule is None or len(ranges) < len(operands):
            return None
        return rule(*ranges)


def _rounded(exact: Range, dtype: DType) -> Range | None:
    if dtype not in _ERRORS or max(map(abs, exact)) > _LARGEST:
        return None
    low, high = exact
    if 0 < low < _SMALLEST:
        low = 0.0
    if -_SMALLEST < high < 0:
        high = 0.0
    error = _ERRORS[dtype]
    return low - abs(low) * error, high + abs(high) * error


def _converted(value: Range | None, source: DType, target: DType) -> Range | None:
    if value is None or (source.is_float and source not in _ERRORS):
        return None
    if source.is_float and target.is_int:
        return math.trunc(value[0]), math.trunc(value[1])
    return value


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
"""The range of each op's result from those of its operands. Integers that could wrap get the range
of their type."""
