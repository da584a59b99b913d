"""Constant folding and common subexpression elimination in a body."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from attrs import evolve

from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Store
from gyrator_ir.body.rewrite import defined, live, renamed, value_key
from gyrator_ir.expr import ZERO, Expr, Sym
from gyrator_ir.expr import Const as Number
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.types import DType

_COMPUTE: Mapping[str, Callable[[int, int], int]] = MappingProxyType(
    {
        "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
        "le": operator.le, "gt": operator.gt, "ge": operator.ge,
        "add": operator.add, "sub": operator.sub, "mul": operator.mul,
        "bit_and": operator.and_, "bit_or": operator.or_, "bit_xor": operator.xor,
    }
)  # fmt: skip
_NEUTRAL: Mapping[str, bool] = MappingProxyType({"bit_and": True, "bit_or": False})
"""The identity of a logical op; its negation is the absorbing element."""


def folded(
    body: Sequence[KernelStatement], stored: Collection[str], types: Mapping[str, DType]
) -> tuple[KernelStatement, ...]:
    """Return a body without collectives, simplified: integers and booleans are folded to constants,
    selections and masks with constant conditions are resolved, equal values are computed once, and
    dead statements are removed.

    Args:
        body: the statements.
        stored: buffers that are written, whose loads are not merged.
        types: the element types of buffers.
    """
    folder = _Folder(stored, types)
    for s in body:
        folder.add(s)
    return live(folder.body)


class _Folder:
    def __init__(self, stored: Collection[str], types: Mapping[str, DType]) -> None:
        self.body: list[KernelStatement] = []
        self.stored = stored
        self.types = types
        self.names: dict[str, str] = {}
        self.symbols: dict[Sym, Expr] = {}
        self.constants: dict[str, int] = {}
        self.numbering: dict[object, str | Sym] = {}
        """The first value or symbol with each key."""

    def add(self, s: KernelStatement) -> None:
        """Append a statement, simplified, unless it is redundant."""
        s = renamed(s, self.names, self.symbols)
        match s:
            case Const(name, bool() | int() as value, dtype) if not dtype.is_float:
                self.constants[name] = value
            case IndexValue(name, Number(value=value), dtype) if not dtype.is_float:
                s = self._constant(name, value, dtype)
            case Let():
                constant = self._computed(s)
                operand = self._operand(s)
                if operand is not None:
                    self.names[s.name] = operand
                    return
                s = s if constant is None else self._constant(s.name, constant, s.dtype)
            case Load() | Store() | Bind() if s.mask in self.constants:
                replacement = (
                    evolve(s, mask=None) if self.constants[s.mask] else self._masked_out(s)
                )
                if replacement is None:
                    return
                s = replacement
        self._emit(s)

    def _masked_out(self, s: Load | Store | Bind) -> Const | None:
        """Return the replacement of a statement whose mask is false, or None to drop it."""
        if isinstance(s, Bind):
            self.symbols[s.symbol] = ZERO
        if not isinstance(s, Load):
            return None
        dtype = self.types[s.buffer]
        if dtype.is_float:
            return Const(s.name, 0.0, dtype)
        return self._constant(s.name, 0, dtype)

    def _emit(self, s: KernelStatement) -> None:
        """Append a statement, or replace its value by that of an equal one."""
        key = None if isinstance(s, Load) and s.buffer in self.stored else value_key(s)
        if key is None:
            self.body.append(s)
        elif isinstance(s, Bind):
            symbol = self.numbering.setdefault(key, s.symbol)
            assert isinstance(symbol, Sym)
            if symbol is s.symbol:
                self.body.append(s)
            else:
                self.symbols[s.symbol] = symbol
        else:
            (name,) = defined(s)
            first = self.numbering.setdefault(key, name)
            assert isinstance(first, str)
            if first == name:
                self.body.append(s)
            else:
                self.names[name] = first

    def _constant(self, name: str, value: int, dtype: DType) -> Const:
        constant = bool(value) if dtype is DType.BOOL else dtype.wrap(int(value))
        self.constants[name] = constant
        return Const(name, constant, dtype)

    def _computed(self, s: Let) -> int | None:
        """Return the value of an integer or boolean if it is constant, else None."""
        if s.dtype is not DType.BOOL and not s.dtype.is_int:
            return None
        values = [self.constants[a] for a in s.args if a in self.constants]
        if s.dtype is DType.BOOL and s.op in _NEUTRAL and (not _NEUTRAL[s.op]) in values:
            return not _NEUTRAL[s.op]
        if len(values) < len(s.args):
            return None
        if s.op == "cast":
            return values[0]
        if s.op == "bit_not" and s.dtype is DType.BOOL:
            return not values[0]
        compute = _COMPUTE.get(s.op)
        return None if compute is None else compute(*values)

    def _operand(self, s: Let) -> str | None:
        """Return the operand that a value equals, or None."""
        if s.op == "where":
            condition = self.constants.get(s.args[0])
            return None if condition is None else s.args[1 if condition else 2]
        if s.dtype is DType.BOOL and s.op in _NEUTRAL:
            for a, b in (s.args, s.args[::-1]):
                if self.constants.get(a) is _NEUTRAL[s.op]:
                    return b
        return None
