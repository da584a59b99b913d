"""What of a body is known once places are: selections that are no choice any more."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from attrs import evolve

from gyrator_codegen.constants import wrapped
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
"""What a logical op may leave out; its opposite settles the result."""


def settled(
    body: Sequence[KernelStatement], stored: Collection[str], types: Mapping[str, DType]
) -> tuple[KernelStatement, ...]:
    """Return a body of points without collectives whose known integers and booleans are constants:
    selections by them take what they select, masks that are set or not are gone, equal values are
    computed once, and nothing that nobody needs.

    Args:
        stored: buffers that are written, whose loads stay where they are.
        types: of the elements of buffers.
    """
    writer = _Settled(stored, types)
    for s in body:
        writer.add(s)
    return live(writer.body)


class _Settled:
    def __init__(self, stored: Collection[str], types: Mapping[str, DType]) -> None:
        self.body: list[KernelStatement] = []
        self.stored = stored
        self.types = types
        self.names: dict[str, str] = {}
        self.symbols: dict[Sym, Expr] = {}
        self.known: dict[str, int] = {}
        self.made: dict[object, str | Sym] = {}

    def add(self, s: KernelStatement) -> None:
        """Append a statement, or what is left of it."""
        s = renamed(s, self.names, self.symbols)
        match s:
            case Const(name, bool() | int() as value, dtype) if not dtype.is_float:
                self.known[name] = value
            case IndexValue(name, Number(value=value), dtype) if not dtype.is_float:
                s = self._constant(name, value, dtype)
            case Let():
                known = self._computed(s)
                same = self._same(s)
                if same is not None:
                    self.names[s.name] = same
                    return
                s = s if known is None else self._constant(s.name, known, s.dtype)
            case Load() | Store() | Bind() if s.mask in self.known:
                done = evolve(s, mask=None) if self.known[s.mask] else self._masked_out(s)
                if done is None:
                    return
                s = done
        self._emit(s)

    def _masked_out(self, s: Load | Store | Bind) -> Const | None:
        """Return what stands for a statement that is not done, if anything does."""
        if isinstance(s, Bind):
            self.symbols[s.symbol] = ZERO
        if not isinstance(s, Load):
            return None
        dtype = self.types[s.buffer]
        if dtype.is_float:
            return Const(s.name, 0.0, dtype)
        return self._constant(s.name, 0, dtype)

    def _emit(self, s: KernelStatement) -> None:
        """Append a statement, or let an equal one stand for it."""
        key = None if isinstance(s, Load) and s.buffer in self.stored else value_key(s)
        if key is None:
            self.body.append(s)
        elif isinstance(s, Bind):
            known = self.made.setdefault(key, s.symbol)
            assert isinstance(known, Sym)
            if known is s.symbol:
                self.body.append(s)
            else:
                self.symbols[s.symbol] = known
        else:
            (name,) = defined(s)
            first = self.made.setdefault(key, name)
            assert isinstance(first, str)
            if first == name:
                self.body.append(s)
            else:
                self.names[name] = first

    def _constant(self, name: str, value: int, dtype: DType) -> Const:
        held = bool(value) if dtype is DType.BOOL else wrapped(value, dtype)
        self.known[name] = held
        return Const(name, held, dtype)

    def _computed(self, s: Let) -> int | None:
        """Return the integer or boolean that a value is, None where that is not known."""
        if s.dtype is not DType.BOOL and not s.dtype.is_int:
            return None
        values = [self.known[a] for a in s.args if a in self.known]
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

    def _same(self, s: Let) -> str | None:
        """Return the operand that a value is, None where it is computed."""
        if s.op == "where":
            chosen = self.known.get(s.args[0])
            return None if chosen is None else s.args[1 if chosen else 2]
        if s.dtype is DType.BOOL and s.op in _NEUTRAL:
            for one, other in (s.args, s.args[::-1]):
                if self.known.get(one) is _NEUTRAL[s.op]:
                    return other
        return None
