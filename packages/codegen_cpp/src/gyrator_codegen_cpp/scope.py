"""Emission state of C++ code for whole vectors, partial vectors, or single elements.

`Frame` is the state of a kernel function. `Scope` is that of a block in it: the vectorised loop,
the visible values, and the parts of addresses that are already computed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from attrs import evolve, field

from gyrator_codegen import Writer
from gyrator_codegen.stage_loops import Decisions
from gyrator_codegen_cpp.dtypes import RESERVED, lane_type, literal
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import CPrinter, Expr, Sym
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.tile.nodes import IndexAccess, TiledKernel
from gyrator_ir.types import DType


@frozen
class Value:
    """A named value: its text, and whether it varies by lane."""

    text: str
    dtype: DType
    varying: bool


@frozen
class Span:
    """The range [low, high) of a loop. `low` is a multiple of the lanes or starts a section."""

    low: str
    high: str
    exact: int | None = None
    """`high - low`, if it is static."""
    multiple: int = 1
    """A divisor of `high - low`."""


@frozen
class Array:
    """An array of the values of a loop's iterations."""

    name: str
    dtype: DType
    symbol: Sym
    """The loop's symbol."""
    low: str = "0"
    """The loop's start."""
    pitch: str = ""
    """`GY_LANES*` if each iteration has a vector."""

    def _at(self, scope: "Scope") -> str:
        text = scope.at(self.symbol)
        return f"{self.name} + {self.pitch}{text if self.low == '0' else f'({text} - {self.low})'}"

    def load(self, scope: "Scope") -> str:
        """Return the load of the value, or vector of values, of the current iteration."""
        return f"gy_{scope.form}load({self._at(scope)})"

    def store(self, scope: "Scope", text: str) -> None:
        """Emit the store to the location that `load` reads."""
        scope.line(f"gy_store({self._at(scope)}, {text});")


class Frame(Decisions):
    """The state of a kernel function while it is emitted."""

    def __init__(self, tiled: TiledKernel, isa: Isa) -> None:
        super().__init__(tiled, RESERVED)
        self.symbol = f"gy_k_{tiled.kernel.name}"
        self.width = isa.lanes
        self.writer = Writer()
        self.pointers: dict[str, str] = {}
        self.arrays: dict[str, Array] = {}
        """Arrays of values over a loop, by value name."""
        self.kept: set[str] = set()
        """Values in arrays that later stages do not recompute."""
        plain, calls = frozenset(tiled.plain), ("gy_floor_div", "gy_floor_mod")
        self.printer = cache(lambda names: CPrinter(plain.__contains__, dict(names), *calls))
        """Returns the printer of index expressions for a mapping of symbols to names."""


@define
class Scope:
    """A block of a kernel function."""

    frame: Frame
    lanes: Sym | None
    """The vectorised axis, or None."""
    live: str | None = None
    """Text of the number of active lanes; None if all are active."""
    env: dict[str, Value] = field(factory=dict)
    varying: frozenset[Sym] = frozenset()
    """Symbols whose values vary by lane."""
    narrow: dict[Sym, str] = field(factory=dict)
    """Vectors of 32-bit integers that are equal to symbols which vary by lane."""
    windows: dict[Sym, str] = field(factory=dict)
    """Windows of elements that those vectors are the indices of."""
    symbols: dict[Sym, str] = field(factory=dict)
    """Texts of symbols, if different from their names."""
    pointers: dict[tuple[str, Expr], str] = field(factory=dict)
    """Hoisted addresses: (buffer, part of the index) -> name of the pointer."""
    collective: Callable[["Scope", KernelStatement], None] | None = None
    """Emits a Reduce, ScanStep or SortStep."""

    @property
    def form(self) -> str:
        """Prefix of lane types in this scope: `v` or `s`."""
        return "s" if self.lanes is None else "v"

    def nested(self, **changes: Any) -> "Scope":
        """Return a nested scope, whose definitions are not visible in this one."""
        return evolve(self, env=dict(self.env), pointers=dict(self.pointers),
                      narrow=dict(self.narrow), windows=dict(self.windows), **changes)  # fmt: skip

    def block(self, head: str) -> AbstractContextManager[None]:
        """Emit a block in braces."""
        return self.frame.writer.block(head)

    def line(self, *texts: str) -> None:
        """Emit lines."""
        self.frame.writer.lines(*texts)

    def scratch(self, name: str, element: str, length: str) -> None:
        """Declare heap memory for the duration of the block."""
        self.line(f"const gy_scratch {name}_memory((si64)sizeof({element}) * {length});")
        self.line(f"{element} *const {name} = ({element} *){name}_memory.aligned();")

    def array(self, array: Array, length: int) -> Array:
        """Declare an array under a unique name, and return it with that name."""
        array = evolve(array, name=self.frame.names.take(array.name))
        self.line(f"alignas(64) s{lane_type(array.dtype)} {array.name}[{length}];")
        return array

    def index(self, e: Expr, **names: str) -> str:
        """Return an index expression as text; `names` overrides symbols by name."""
        symbols = self.symbols
        if names:
            symbols = symbols | {Sym(name): text for name, text in names.items()}
        return self.frame.printer(frozenset(symbols.items()))(e)

    def at(self, symbol: Sym) -> str:
        """Return the text of a loop's symbol."""
        return self.symbols.get(symbol, symbol.name)

    def value(self, name: str) -> Value:
        """Return a value, loading it first if it is in an array."""
        if name not in self.env:
            array = self.frame.arrays[name]
            self.define(name, array.load(self), array.dtype, varying=True)
        return self.env[name]

    def operand(self, name: str, varying: bool) -> str:
        """Return a value's text, broadcast to all lanes if it must be `varying` and is not."""
        value = self.value(name)
        return value.text if value.varying or not varying else self.spread(value.text, self.form)

    def spread(self, text: str, form: str) -> str:
        """Return a scalar's text as a value of a form."""
        return f"gy_vsplat({text})" if form == "v" else text

    def constant(self, number: bool | int | float, dtype: DType, form: str) -> str:
        """Return a literal as a value of a form."""
        return self.spread(f"(s{lane_type(dtype)}){literal(number, dtype)}", form)

    def define(self, name: str, text: str, dtype: DType, varying: bool) -> None:
        """Emit the definition of value `name` as `text`."""
        varying = varying and self.lanes is not None
        form = "v" if varying else "s"
        word = self.frame.names.stable(name)
        # A mask of 64-bit numbers may have a type of its own.
        mask = varying and dtype is DType.BOOL
        self.line(f"const {'auto' if mask else form + lane_type(dtype)} {word} = {text};")
        self.env[name] = Value(word, dtype, varying)

    def access(self, e: Expr) -> IndexAccess:
        """Return how an index varies in this scope."""
        return self.frame.access(e, lanes=self.lanes is not None)

    def one_lane(self, name: str) -> str:
        """Return a value's text for lane `lane`; a varying value is stored to an array first."""
        value = self.value(name)
        if not value.varying:
            return value.text
        array = self.frame.names.take(f"{value.text}_lanes")
        self.line(f"s{lane_type(value.dtype)} {array}[GY_LANES];")
        self.line(f"gy_store({array}, {value.text});")
        return f"{array}[lane]"

    def by_lane(self, name: str, dtype: DType, lane_text: str, test: str = "") -> str:
        """Return a vector of `lane_text`, computed for each lane `lane` that meets `test`."""
        array = self.frame.names.take(f"{name}_lanes")
        self.line(f"s{lane_type(dtype)} {array}[GY_LANES] = {{}};")
        self.line(f"{self.each_lane} {test}{array}[lane] = {lane_text};")
        return f"gy_vload({array})"

    @property
    def each_lane(self) -> str:
        """The head of a loop over the active lanes."""
        return f"for (si64 lane = 0; lane < {self.live or 'GY_LANES'}; lane++)"

    def live_mask(self, mask: str | None) -> str | None:
        """Return the conjunction of `mask` and the active lanes; None if all are active."""
        parts = [] if mask is None else [self.operand(mask, varying=True)]
        if self.live is not None:
            parts.append(f"gy_lane_mask({self.live})")
        return " & ".join(parts) if parts else None
