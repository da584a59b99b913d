"""The nodes of index expressions: immutable, interned, and ordered by structure.

Two nodes with the same structure are the same object, so that `is`, `==` and `hash` are cheap. The
order (`sort_key`) is structural and does not depend on addresses, so that the same program prints
the same text in every process.

Normal form (maintained by the constructors of `build`, `division` and `conditions`):

* a *monomial* is an atom (anything but `Const`, `Add`, `Mul`) or a `Mul`: a product of at least two
  atoms, counted with their powers, without a coefficient;
* an `Add` is `sum(coefficient * monomial) + const`, with sorted terms and nonzero coefficients;
  `3*x` is an `Add` with one term, but `1*x + 0` is `x` itself;
* products are always expanded over sums.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, final

from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.expr.intern import Interned, intern


class ExprError(GyratorError):
    """An expression that cannot be built, converted or evaluated."""


def expr_error(code: str, message: str, where: str = "", help: str = "") -> ExprError:
    """Return (not raise) an `ExprError` with a diagnostic of these fields."""
    return ExprError.of(code, message, where=where, help=help)


class SymKind(Enum):
    """What a symbol denotes. The value is the first letter of its name."""

    SIZE = "s"  # a size (or other integer input) known when the program is called
    UNBACKED = "u"  # a size known only after some kernel has run
    ITER = "i"  # a loop variable of an output dimension, 0 <= i
    REDUCE = "r"  # a loop variable of a reduced dimension, 0 <= r
    INDIRECT = "t"  # an index loaded from memory
    CHOICE = "A"  # a tuning parameter, such as XBLOCK; its name is in capitals


_KIND_RANK = {kind: rank for rank, kind in enumerate(SymKind)}
_KIND_OF_LETTER = {kind.value: kind for kind in SymKind}
# A digit or underscore as the second character avoids keywords of Python, C and Triton.
_SYMBOL_NAME = re.compile("[suirt](?:[0-9_][A-Za-z0-9_]*)?|[A-Z][A-Z0-9_]*")

SortKey = tuple[Any, ...]


class Node(Interned):
    """Base of expressions and conditions; `sort_key` orders them by structure."""

    __slots__ = ("_free", "sort_key")

    sort_key: SortKey
    _free: frozenset[Sym]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Compute a slot lazily that the constructor left empty."""
            if name == "_free":
                value = _union(_parts(self))
                _set_free(self, value)
            elif name == "sort_key":
                value = _late_key(self)
                _set_key(self, value)
            else:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            return value

    @property
    def free_symbols(self) -> frozenset[Sym]:
        """The symbols that occur in the node (cached)."""
        return self._free

    def __repr__(self) -> str:
        return _text(self)


# Slot setters, the fastest way to bypass `__setattr__`, which raises.
_set_key = Node.__dict__["sort_key"].__set__
_set_free = Node.__dict__["_free"].__set__
_new = object.__new__
_NO_SYMBOLS: frozenset[Sym] = frozenset()

Binary: TypeAlias = "Callable[[Expr, Expr], Expr]"

# The constructors that the operators call. They are defined in modules that import this one, and
# are set once by `bind`, while the package is imported.
_add: Binary
_mul: Binary
_floordiv: Binary
_mod: Binary
_relation: Callable[[str, Expr, Expr], Cond]
_text: Callable[[Node], str]


def bind(
    add: Binary,
    mul: Binary,
    floordiv: Binary,
    mod: Binary,
    relation: Callable[[str, Expr, Expr], Cond],
    text: Callable[[Node], str],
) -> None:
    """Set the constructors that the operators of `Expr` call; called once, by the package."""
    global _add, _mul, _floordiv, _mod, _relation, _text
    _add, _mul, _floordiv, _mod, _relation, _text = add, mul, floordiv, mod, relation, text


class Expr(Node):
    """An integer expression. Operators follow Python: `//` floors, `%` has the divisor's sign."""

    __slots__ = ()

    def __add__(self, other: Expr | int) -> Expr:
        if other.__class__ is int:
            other = Const(other)
        elif not isinstance(other, Expr):
            return NotImplemented
        return _add(self, other)

    __radd__ = __add__

    def __mul__(self, other: Expr | int) -> Expr:
        if other.__class__ is int:
            other = Const(other)
        elif not isinstance(other, Expr):
            return NotImplemented
        return _mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return _mul(MINUS_ONE, self)

    def __sub__(self, other: Expr | int) -> Expr:
        if other.__class__ is int:
            return _add(self, Const(-other))
        if not isinstance(other, Expr):
            return NotImplemented
        return _add(self, _mul(MINUS_ONE, other))

    def __rsub__(self, other: int) -> Expr:
        if other.__class__ is not int:
            return NotImplemented
        return _add(_mul(MINUS_ONE, self), Const(other))

    def __floordiv__(self, other: Expr | int) -> Expr:
        if other.__class__ is int:
            other = Const(other)
        elif not isinstance(other, Expr):
            return NotImplemented
        return _floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Expr:
        return _floordiv(Const(other), self) if other.__class__ is int else NotImplemented

    def __mod__(self, other: Expr | int) -> Expr:
        if other.__class__ is int:
            other = Const(other)
        elif not isinstance(other, Expr):
            return NotImplemented
        return _mod(self, other)

    def __rmod__(self, other: int) -> Expr:
        return _mod(Const(other), self) if other.__class__ is int else NotImplemented

    def __pow__(self, power: int) -> Expr:
        if power.__class__ is not int or power < 0:
            return NotImplemented
        result: Expr = ONE
        for _ in range(power):
            result = _mul(result, self)
        return result

    def eq(self, other: Expr | int) -> Cond:
        """Return the condition `self == other`."""
        return _relation("==", self, expr(other))

    def ne(self, other: Expr | int) -> Cond:
        """Return the condition `self != other`."""
        return _relation("!=", self, expr(other))

    def lt(self, other: Expr | int) -> Cond:
        """Return the condition `self < other`."""
        return _relation("<", self, expr(other))

    def le(self, other: Expr | int) -> Cond:
        """Return the condition `self <= other`."""
        return _relation("<=", self, expr(other))

    def gt(self, other: Expr | int) -> Cond:
        """Return the condition `self > other`."""
        return _relation("<", expr(other), self)

    def ge(self, other: Expr | int) -> Cond:
        """Return the condition `self >= other`."""
        return _relation("<=", expr(other), self)


class Cond(Node):
    """A condition on integers, for masks, guards and run-time branches."""

    __slots__ = ()


@final
class Const(Expr):
    """An integer. `Const(3) is Const(3)`."""

    __slots__ = ("value",)
    value: int

    def __new__(cls, value: int) -> Const:
        """Return the node of `value`. Raises TypeError for a `bool` or a float."""
        if value.__class__ is not int:
            raise TypeError(f"Const takes an int, not {type(value).__name__}")
        small = _SMALL.get(value)
        if small is not None:
            return small
        return intern(("c", value), _make_const, value)  # type: ignore[no-any-return]


@final
class Sym(Expr):
    """A symbol, such as `Sym("i0")` or `Sym("XBLOCK")`.

    The name is the letter of a kind, optionally followed by a digit or underscore and further
    characters, or is in capitals.

    Raises:
        ExprError: GY-EXPR-001, if the name is not of that form, or contradicts `kind`.
    """

    __slots__ = ("kind", "name")
    name: str
    kind: SymKind

    def __new__(cls, name: str, kind: SymKind | None = None) -> Sym:
        """Return the symbol. `kind` is only checked against the name."""
        node: Sym = intern(("s", name), _make_sym, name)
        if kind is not None and kind is not node.kind:
            raise expr_error(
                "GY-EXPR-001",
                f"symbol {name!r} cannot be of kind {kind.name}",
                help=f"names of kind {kind.name} begin with {kind.value!r}",
            )
        return node


@final
class Mul(Expr):
    """A product of atoms: `factors` is ((atom, power >= 1), ...), sorted."""

    __slots__ = ("divides", "factors")
    factors: tuple[tuple[Expr, int], ...]
    divides: bool  # whether a factor is a FloorDiv or Mod


@final
class Add(Expr):
    """A sum: `terms` is ((monomial, coefficient != 0), ...), sorted, plus the integer `const`."""

    __slots__ = ("const", "terms")
    terms: tuple[tuple[Expr, int], ...]
    const: int


@final
class FloorDiv(Expr):
    """`a // b`, rounded towards minus infinity."""

    __slots__ = ("a", "b")
    a: Expr
    b: Expr


@final
class Mod(Expr):
    """`a % b`, with the sign of `b`."""

    __slots__ = ("a", "b")
    a: Expr
    b: Expr


@final
class Min(Expr):
    """The minimum of at least two arguments, sorted and distinct."""

    __slots__ = ("args",)
    args: tuple[Expr, ...]


@final
class Max(Expr):
    """The maximum of at least two arguments, sorted and distinct."""

    __slots__ = ("args",)
    args: tuple[Expr, ...]


@final
class Where(Expr):
    """`a` if `cond` holds, else `b`. Only the selected one need be defined."""

    __slots__ = ("a", "b", "cond")
    cond: Cond
    a: Expr
    b: Expr


@final
class Bool(Cond):
    """`TRUE` or `FALSE`, the only two instances."""

    __slots__ = ("value",)
    value: bool


@final
class Eq(Cond):
    """`a == b`."""

    __slots__ = ("a", "b")
    a: Expr
    b: Expr


@final
class Ne(Cond):
    """`a != b`."""

    __slots__ = ("a", "b")
    a: Expr
    b: Expr


@final
class Lt(Cond):
    """`a < b`."""

    __slots__ = ("a", "b")
    a: Expr
    b: Expr


@final
class Le(Cond):
    """`a <= b`."""

    __slots__ = ("a", "b")
    a: Expr
    b: Expr


@final
class And(Cond):
    """The conjunction of at least two conditions, sorted and distinct."""

    __slots__ = ("args",)
    args: tuple[Cond, ...]


@final
class Or(Cond):
    """The disjunction of at least two conditions, sorted and distinct."""

    __slots__ = ("args",)
    args: tuple[Cond, ...]


# Sort keys are (-degree, rank of the class, ...). Keys of the same rank have the same structure, so
# that an int is never compared with a tuple.
_RANK: dict[type[Node], int] = {
    cls: rank
    for rank, cls in enumerate(
        (Const, Sym, FloorDiv, Mod, Min, Max, Where, Mul, Add, Bool, Eq, Ne, Lt, Le, And, Or)
    )
}


def _setters(cls: type[Node]) -> tuple[Callable[[Node, object], None], ...]:
    return tuple(cls.__dict__[name].__set__ for name in sorted(cls.__dict__["__slots__"]))


_SET = {cls: _setters(cls) for cls in _RANK}
_set_add_const, _set_add_terms = _SET[Add]
_set_mul_divides, _set_mul_factors = _SET[Mul]
_ADD_RANK = _RANK[Add]
_MUL_RANK = _RANK[Mul]


def _union(nodes: Iterable[Node]) -> frozenset[Sym]:
    """Return the union of the free symbols, sharing the set of a node where possible."""
    result = _NO_SYMBOLS
    for node in nodes:
        free = node._free
        if free is not result:
            result = free if not result else (result if free <= result else result | free)
    return result


def _make_const(value: int) -> Const:
    node = _new(Const)
    _SET[Const][0](node, value)
    _set_key(node, (0, 0, value))
    _set_free(node, _NO_SYMBOLS)
    return node


def _make_sym(name: str) -> Sym:
    if not isinstance(name, str) or not _SYMBOL_NAME.fullmatch(name):
        raise expr_error(
            "GY-EXPR-001",
            f"{name!r} is not the name of a symbol",
            help="write the letter of its kind (s, u, i, r, t), then digits, as in i0 or s_12; "
            "or capitals, as in XBLOCK",
        )
    kind = _KIND_OF_LETTER.get(name[0], SymKind.CHOICE)
    node = _new(Sym)
    set_kind, set_name = _SET[Sym]
    set_kind(node, kind)
    set_name(node, name)
    _set_key(node, (-1, 1, _KIND_RANK[kind], len(name), name))
    _set_free(node, frozenset((node,)))
    return node


def _make_mul(factors: tuple[tuple[Expr, int], ...]) -> Mul:
    node = _new(Mul)
    _set_mul_factors(node, factors)
    divides = False
    degree = 0
    keys = []
    for atom, power in factors:
        degree -= power
        keys.append((atom.sort_key, -power))
        cls = type(atom)
        divides = divides or cls is FloorDiv or cls is Mod
    _set_mul_divides(node, divides)
    _set_key(node, (degree, _MUL_RANK, tuple(keys)))
    return node


def _make_add(terms: tuple[tuple[Expr, int], ...], const: int) -> Add:
    # Most sums are never sorted or searched, so `__getattr__` fills the other slots on demand.
    node = _new(Add)
    _set_add_const(node, const)
    _set_add_terms(node, terms)
    return node


def _late_key(node: Node) -> SortKey:
    assert isinstance(node, Add)
    key = tuple([(t.sort_key, c) for t, c in node.terms])
    return key[0][0][0], _ADD_RANK, key, node.const


def _parts(node: Node) -> Iterable[Node]:
    if isinstance(node, Add):
        return [term for term, _ in node.terms]
    assert isinstance(node, Mul)
    return [atom for atom, _ in node.factors]


def _make_pair(cls: type[Node], a: Node, b: Node) -> Node:
    node = _new(cls)
    set_a, set_b = _SET[cls]
    set_a(node, a)
    set_b(node, b)
    _set_key(node, (-1, _RANK[cls], a.sort_key, b.sort_key))
    _set_free(node, _union((a, b)))
    return node


def _make_args(cls: type[Node], args: tuple[Node, ...]) -> Node:
    node = _new(cls)
    _SET[cls][0](node, args)
    _set_key(node, (-1, _RANK[cls], tuple(a.sort_key for a in args)))
    _set_free(node, _union(args))
    return node


def _make_where(cond: Cond, a: Expr, b: Expr) -> Where:
    node = _new(Where)
    set_a, set_b, set_cond = _SET[Where]
    set_a(node, a)
    set_b(node, b)
    set_cond(node, cond)
    _set_key(node, (-1, _RANK[Where], cond.sort_key, a.sort_key, b.sort_key))
    _set_free(node, _union((cond, a, b)))
    return node


def _make_bool(value: bool) -> Bool:
    node = _new(Bool)
    _SET[Bool][0](node, value)
    _set_key(node, (0, _RANK[Bool], int(value)))
    _set_free(node, _NO_SYMBOLS)
    return node


# The `raw_*` functions intern a node as it is; the caller must ensure its normal form.


def raw_mul(factors: tuple[tuple[Expr, int], ...]) -> Expr:
    """Return the monomial of sorted `factors`; for a single one of power 1, the atom itself."""
    if len(factors) == 1 and factors[0][1] == 1:
        return factors[0][0]
    return intern(("m", factors), _make_mul, factors)  # type: ignore[no-any-return]


def raw_add(terms: tuple[tuple[Expr, int], ...], const: int) -> Expr:
    """Return the sum of sorted non-zero `terms` and `const`, in normal form."""
    if not terms:
        return Const(const)
    if const == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    return intern(("a", terms, const), _make_add, terms, const)  # type: ignore[no-any-return]


def raw_pair(cls: type[Node], a: Node, b: Node) -> Any:
    """Return the node `cls(a, b)` (FloorDiv, Mod, Eq, Ne, Lt or Le)."""
    return intern((cls, a, b), _make_pair, cls, a, b)


def raw_args(cls: type[Node], args: tuple[Node, ...]) -> Any:
    """Return the node `cls(args)` (Min, Max, And or Or) of sorted distinct `args`."""
    return intern((cls, args), _make_args, cls, args)


def raw_where(cond: Cond, a: Expr, b: Expr) -> Where:
    """Return the node `Where(cond, a, b)`."""
    return intern((Where, cond, a, b), _make_where, cond, a, b)  # type: ignore[no-any-return]


_SMALL: dict[int, Const] = {value: _make_const(value) for value in range(-64, 1025)}
ZERO = _SMALL[0]
ONE = _SMALL[1]
MINUS_ONE = _SMALL[-1]
TRUE = _make_bool(value=True)
FALSE = _make_bool(value=False)


def expr(value: Expr | int) -> Expr:
    """Return `value` as an expression.

    Raises:
        TypeError: if it is neither an expression nor an `int` (a `bool` is not).
    """
    if isinstance(value, Expr):
        return value
    if value.__class__ is int:
        return Const(value)
    raise TypeError(f"expected an expression or an int, not {type(value).__name__}")
