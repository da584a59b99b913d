"""Straight-line bodies as C++ text: one vector, the last part of one, or one element at a time.

`Frame` is what a whole kernel function shares; `Scope` is a place in it: which loop runs along the
lanes, which values are in reach, which parts of addresses are already computed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache

from attrs import define, evolve, field, frozen

from gyrator_codegen import Names, Nest, Writer, index_checks, linear_position, nest
from gyrator_codegen_cpp.dtypes import lane_type, literal
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import ZERO, CPrinter, Expr, Sym
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.tile.nodes import Access, IndexAccess, TiledKernel
from gyrator_ir.types import DType


@frozen
class Value:
    """A named value: its text, and whether each lane has its own."""

    text: str
    dtype: DType
    varying: bool


@frozen
class Lanes:
    """Vectors run along `symbol`; `live` is the text of the number of lanes in use, or None if all
    are."""

    symbol: Sym
    live: str | None = None


@frozen
class Array:
    """Values of a loop's steps, side by side."""

    name: str
    dtype: DType
    symbol: Sym
    """The loop's."""
    low: str = "0"
    """Where it starts."""
    pitch: str = ""
    """`GY_LANES*` where each step has a vector."""

    def moved(self, low: str) -> "Array":
        """Return the array for a loop that starts at `low`."""
        return evolve(self, low=low)

    def _at(self, scope: "Scope") -> str:
        text = scope.at(self.symbol)
        return f"{self.name} + {self.pitch}{text if self.low == '0' else f'({text} - {self.low})'}"

    def load(self, scope: "Scope") -> str:
        """Return the value, or the vector of values, here."""
        return f"gy_{scope.form}load({self._at(scope)})"

    def store(self, scope: "Scope", text: str) -> None:
        """Write the store of what `load` returns."""
        scope.line(f"gy_store({self._at(scope)}, {text});")


_UNIFORM = IndexAccess(ZERO, Access.UNIFORM)


class Frame:
    """What one kernel function has in common. It grows while the function is written."""

    def __init__(self, tiled: TiledKernel, isa: Isa, reserved: frozenset[str]) -> None:
        self.tiled = tiled
        self.kernel = kernel = tiled.kernel
        self.nest = nest(tiled)
        self.width = isa.lanes
        self.writer = Writer()
        self.names = Names(reserved)
        self.storage = kernel.storage
        self.position = linear_position(kernel.inner)
        self.pointers: dict[str, str] = {}
        self.local_rows: set[str] = set()
        """Locals that hold a vector of points at each address, not one value."""
        self.drawn: dict[str, str] = {}
        """What holds the words ahead of a random number, by its name."""
        self.checks = index_checks(kernel)
        self.arrays: dict[str, Array] = {}
        """Values that an array over a loop holds, by name."""
        self.given: set[str] = set()
        """Those of them that are not computed again where a stage names them."""
        self.ahead = frozenset(tiled.ahead)
        self._accesses = {a.index: a for a in tiled.accesses}
        self.pairs: dict[int, tuple[KernelStatement, KernelStatement]] = {}
        """Two statements that are one access, by the identity of either."""
        self.stored: dict[int, str] = {}
        """What stores are given in the place of their values, by the identity of the store."""
        for u in tiled.unrounded:
            self.stored[id(kernel.stages[u.stage].body[u.statement])] = u.value
        for pair in tiled.pairs:
            body = kernel.stages[pair.stage].body
            both = body[pair.first], body[pair.second]
            self.pairs |= {id(s): both for s in both}
        self.reductions = {r.result: r for r in tiled.reductions}
        for name in (name for stage in kernel.stages for s in stage.body for name in defined(s)):
            self.names.stable(name)
        self._plain = frozenset(tiled.plain)
        self.printer = cache(self._printer)
        """Returns the writer of index expressions under a naming of symbols."""

    @property
    def loops(self) -> Nest:
        """The loops of a kernel that has some."""
        assert self.nest is not None
        return self.nest

    def _printer(self, symbols: frozenset[tuple[Sym, str]]) -> CPrinter:
        return CPrinter(self._plain.__contains__, dict(symbols), "gy_floor_div", "gy_floor_mod")

    def access(self, e: Expr) -> IndexAccess:
        """Return what an index is for a vector."""
        return self._accesses.get(e) or IndexAccess(e, Access.LANES)


@define
class Scope:
    """A place in a kernel function."""

    frame: Frame
    lanes: Lanes | None
    env: dict[str, Value] = field(factory=dict)
    varying: frozenset[Sym] = frozenset()
    """Symbols bound to one value a lane."""
    symbols: dict[Sym, str] = field(factory=dict)
    """Symbols whose text is not their name."""
    pointers: dict[tuple[str, Expr], str] = field(factory=dict)
    """Addresses computed ahead: (buffer, part of the index) -> name of the pointer."""
    collective: Callable[["Scope", KernelStatement], None] | None = None
    """What to do at a Reduce, ScanStep or SortStep."""

    @property
    def form(self) -> str:
        """Prefix of lane types here: `v` or `s`."""
        return "s" if self.lanes is None else "v"

    @property
    def live(self) -> str | None:
        """Text of the number of lanes in use, None if all are."""
        return None if self.lanes is None else self.lanes.live

    def nested(self, **changes: object) -> "Scope":
        """Return a place inside this one: names given there are not seen here."""
        inside = Scope(
            self.frame, self.lanes, dict(self.env), self.varying, self.symbols,
            dict(self.pointers), self.collective,
        )  # fmt: skip
        for name, value in changes.items():
            setattr(inside, name, value)
        return inside

    def block(self, head: str) -> AbstractContextManager[None]:
        """Write a block in braces."""
        return self.frame.writer.block(head)

    def line(self, *texts: str) -> None:
        """Write lines."""
        self.frame.writer.lines(*texts)

    def scratch(self, name: str, element: str, length: str) -> None:
        """Declare memory of the heap that lives as long as the block."""
        self.line(f"const gy_scratch {name}_memory((si64)sizeof({element}) * {length});")
        self.line(f"{element} *const {name} = ({element} *){name}_memory.aligned();")

    def array(self, array: Array, length: int) -> Array:
        """Declare an array of a name that is still to be taken; return it."""
        array = evolve(array, name=self.frame.names.take(array.name))
        self.line(f"alignas(64) s{lane_type(array.dtype)} {array.name}[{length}];")
        return array

    # Values ---------------------------------------------------------------------------------

    def index(self, e: Expr, **names: str) -> str:
        """Return an index expression as text; `names` overrides symbols by name."""
        symbols = self.symbols
        if names:
            symbols = symbols | {Sym(name): text for name, text in names.items()}
        return self.frame.printer(frozenset(symbols.items()))(e)

    def at(self, symbol: Sym) -> str:
        """Return a loop's symbol as text."""
        return self.symbols.get(symbol, symbol.name)

    def value(self, name: str) -> Value:
        """Return a value; one that an array holds is loaded here."""
        if name not in self.env:
            array = self.frame.arrays[name]
            self.define(name, array.load(self), array.dtype, varying=True)
        return self.env[name]

    def operand(self, name: str, varying: bool) -> str:
        """Return a value's text, spread over the lanes if asked for and not so already."""
        value = self.value(name)
        return value.text if value.varying or not varying else self.spread(value.text, self.form)

    def spread(self, text: str, form: str) -> str:
        """Return a scalar's text as a value of a form."""
        return f"gy_vsplat({text})" if form == "v" else text

    def zero(self, dtype: DType, varying: bool) -> str:
        """Return the zero of a type."""
        return self.constant(0, dtype, self.form if varying else "s")

    def constant(self, number: bool | int | float, dtype: DType, form: str) -> str:
        """Return a literal as a value of a form."""
        return self.spread(f"(s{lane_type(dtype)}){literal(number, dtype)}", form)

    def define(self, name: str, text: str, dtype: DType, varying: bool) -> None:
        """Declare the value `name` as `text`."""
        varying = varying and self.lanes is not None
        form = "v" if varying else "s"
        word = self.frame.names.stable(name)
        self.line(f"const {form}{lane_type(dtype)} {word} = {text};")
        self.env[name] = Value(word, dtype, varying)

    # Addresses ------------------------------------------------------------------------------

    def access(self, e: Expr) -> IndexAccess:
        """Return what an index is here."""
        return _UNIFORM if self.lanes is None else self.frame.access(e)

    def one_lane(self, name: str) -> str:
        """Return a value's text for the lane called `lane`; a varying one is put into an array."""
        value = self.value(name)
        if not value.varying:
            return value.text
        array = self.frame.names.take(f"{value.text}_lanes")
        self.line(f"s{lane_type(value.dtype)} {array}[GY_LANES];")
        self.line(f"gy_store({array}, {value.text});")
        return f"{array}[lane]"

    def by_lane(self, name: str, dtype: DType, one: str, test: str = "") -> str:
        """Return a vector that is computed lane by lane: `one` for the lane called `lane`, if
        `test` says so."""
        array = self.frame.names.take(f"{name}_lanes")
        self.line(f"s{lane_type(dtype)} {array}[GY_LANES] = {{}};")
        self.line(f"{self.each_lane} {test}{array}[lane] = {one};")
        return f"gy_vload({array})"

    @property
    def each_lane(self) -> str:
        """The head of a loop over the lanes in use, one by one."""
        return f"for (si64 lane = 0; lane < {self.live or 'GY_LANES'}; lane++)"

    def live_mask(self, mask: str | None) -> str | None:
        """Return the mask of lanes that count, None if all do: `mask` and the live ones."""
        parts = [] if mask is None else [self.operand(mask, varying=True)]
        if self.live is not None:
            parts.append(f"gy_lane_mask({self.live})")
        return " & ".join(parts) if parts else None
