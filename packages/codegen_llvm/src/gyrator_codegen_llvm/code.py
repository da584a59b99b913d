"""Emission state of a kernel's function: its values, blocks, loops and index arithmetic."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from attrs import field

from gyrator_codegen import Names, Writer, index_checks
from gyrator_codegen_llvm.dtypes import STORAGE, TYPES
from gyrator_ir.body.nodes import Check
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.expr import nodes as x
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.source import KernelCheck
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

GROUP = ", !llvm.access.group !0"
"""Metadata of accesses that do not depend on one another in different iterations of a loop."""
PARALLEL = '!0 = distinct !{}\n!1 = !{!"llvm.loop.parallel_accesses", !0}\n'
"""The definition of that metadata, and the property of such a loop."""

_COMPARISONS = {x.Eq: "eq", x.Ne: "ne", x.Lt: "slt", x.Le: "sle"}


class Value(NamedTuple):
    """A value: an SSA name or a constant."""

    text: str
    dtype: DType

    @property
    def typed(self) -> str:
        """The value after its type."""
        return f"{TYPES[self.dtype]} {self.text}"


@frozen
class Cell:
    """A variable on the stack, or a row of them with one for each point of a strip."""

    pointer: str
    dtype: DType

    @property
    def type(self) -> str:
        """Its LLVM type."""
        return "i8" if self.dtype is DType.BOOL else TYPES[self.dtype]


@define(eq=False)
class Instructions:
    """The instructions of a function, in blocks."""

    loop_numbers: Iterator[int]
    """Yields the numbers of the module's metadata."""
    writer: Writer = field(factory=Writer, kw_only=True)
    names: Names = field(
        factory=lambda: Names(frozenset({"buffers", "sizes", "entry"})), kw_only=True
    )
    block: str = field(default="entry", kw_only=True)
    """The label of the current block."""
    failures: dict[int, str] = field(factory=dict, kw_only=True)
    """The label of the block that returns each code."""

    def op(self, text: str, name: str = "v") -> str:
        """Emit an instruction and return the name of its result."""
        word = f"%{self.names.take(name)}"
        self.writer.line(f"{word} = {text}")
        return word

    def call(self, function: str, result: DType, *args: Value) -> str:
        """Emit a call of a function that takes and returns values."""
        operands = ", ".join(a.typed for a in args)
        return self.op(f"call {TYPES[result]} @{function}({operands})")

    def intrinsic(self, name: str, result: DType, *args: Value) -> str:
        """Emit a call of LLVM's intrinsic function for a type."""
        word = TYPES[result]
        suffix = {"float": "f32", "double": "f64"}.get(word, word)
        return self.call(f"llvm.{name}.{suffix}", result, *args)

    def select(self, condition: str, a: str, b: str, dtype: DType) -> str:
        """Emit a selection and return its name."""
        word = TYPES[dtype]
        return self.op(f"select i1 {condition}, {word} {a}, {word} {b}")

    def start(self, label: str) -> None:
        """Start a block, which becomes the current one."""
        self.writer.line(f"{label}:")
        self.block = label

    @contextmanager
    def when(self, condition: str, name: str = "if") -> Iterator[tuple[str, str]]:
        """Run the instructions of the `with` body if a condition holds.

        Yields the labels of the block before, and of that of the body, which must be one block.
        """
        inside, end = self.names.take(name), self.names.take(f"{name}_end")
        before = self.block
        self.writer.line(f"br i1 {condition}, label %{inside}, label %{end}")
        self.start(inside)
        yield before, inside
        self.writer.line(f"br label %{end}")
        self.start(end)

    def fail_if(self, condition: str, code: int) -> None:
        """Return a code from the function if a condition holds."""
        label = self.failures.setdefault(code, f"failure_{code}")
        after = self.names.take("checked")
        self.writer.line(f"br i1 {condition}, label %{label}, label %{after}")
        self.start(after)


@define(eq=False)
class Code(Instructions):
    """The state while a function is emitted."""

    tiled: TiledKernel
    strip: int
    """Number of consecutive points that are computed together; 1 for one after another."""
    vectorises: bool
    """Whether functions are to be vectorised: the instruction set has fused multiplication."""
    stack: list[str] = field(factory=list)
    """The instructions of the entry block that allocate variables."""
    metadata: list[str] = field(factory=list)
    pointers: dict[str, str] = field(factory=dict)
    """Addresses of parameters and locals."""
    symbols: dict[Sym, str] = field(factory=dict)
    values: dict[str, Value] = field(factory=dict)
    cells: dict[str, Cell] = field(factory=dict)
    """Values and symbols that later stages of a strip use."""
    stored: frozenset[str] = frozenset()
    """Those that the current stage defines."""
    constants: dict[str, Value] = field(factory=dict)
    """Constants of the stages so far."""
    lane: str = ""
    """The number of the current point in its strip, inside a loop over the strip."""
    indices: dict[x.Node, str] = field(factory=dict)
    """The index expressions that are computed in the current scope."""
    checks: dict[Check, KernelCheck] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.checks = index_checks(self.kernel)

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self.tiled.kernel

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget the values, symbols and indices of the `with` body after it."""
        outside = self.values, self.symbols, self.indices, self.lane
        self.values, self.symbols = dict(self.values), dict(self.symbols)
        self.indices = dict(self.indices)
        yield
        self.values, self.symbols, self.indices, self.lane = outside

    @contextmanager
    def loop(
        self, name: str, high: str, *, backwards: bool = False, parallel: bool = False
    ) -> Iterator[str]:
        """Emit a loop from 0 to `high` around the `with` body; yields the loop variable.

        A `parallel` loop contains no other, and its accesses do not depend on one another.
        """
        begin, latch, end = (self.names.take(f"{name}_{w}") for w in ("loop", "next", "end"))
        at, after = f"%{self.names.take(name)}", f"%{self.names.take(f'{name}_after')}"
        line, first, step = self.writer.line, "0", "1"
        nonempty = self.op(f"icmp sgt i64 {high}, 0", f"{name}_nonempty")
        if backwards:
            first, step = self.op(f"add nsw i64 {high}, -1", f"{name}_last"), "-1"
        before = self.block
        line(f"br i1 {nonempty}, label %{begin}, label %{end}")
        self.start(begin)
        line(f"{at} = phi i64 [ {first}, %{before} ], [ {after}, %{latch} ]")
        with self.scope():
            yield at
        line(f"br label %{latch}")
        self.start(latch)
        line(f"{after} = add nsw i64 {at}, {step}")
        test = f"icmp sge i64 {after}, 0" if backwards else f"icmp slt i64 {after}, {high}"
        more, mark = self.op(test, f"{name}_more"), ""
        if parallel:
            number = next(self.loop_numbers)
            mark = f", !llvm.loop !{number}"
            self.metadata.append(f"!{number} = distinct !{{!{number}, !1}}")
        line(f"br i1 {more}, label %{begin}, label %{end}{mark}")
        self.start(end)

    def variable(self, name: str, dtype: DType) -> Cell:
        """Allocate a variable for each point of a strip."""
        cell = Cell(f"%{self.names.take(name)}", dtype)
        self.stack.append(f"{cell.pointer} = alloca [{self.strip} x {cell.type}], align 64")
        return cell

    def at(self, cell: Cell) -> str:
        """Return the address of the variable of the current point."""
        if self.strip == 1:
            return cell.pointer
        return self.op(f"getelementptr {cell.type}, ptr {cell.pointer}, i64 {self.lane}")

    def read(self, cell: Cell) -> str:
        """Emit a load of a variable of the current point."""
        text = self.op(f"load {cell.type}, ptr {self.at(cell)}{self.strip_mark}")
        return self.op(f"trunc i8 {text} to i1") if cell.dtype is DType.BOOL else text

    def write(self, cell: Cell, text: str) -> None:
        """Emit a store to a variable of the current point."""
        if cell.dtype is DType.BOOL:
            text = self.op(f"zext i1 {text} to i8")
        self.writer.line(f"store {cell.type} {text}, ptr {self.at(cell)}{self.strip_mark}")

    @property
    def strip_mark(self) -> str:
        """The metadata of accesses to variables, which differ for the points of a strip."""
        return GROUP if self.strip > 1 else ""

    def value(self, name: str) -> Value:
        """Return a value by its name in the IR."""
        if name in self.values:
            return self.values[name]
        if name in self.constants:
            return self.constants[name]
        cell = self.cells[name]
        value = self.values[name] = Value(self.read(cell), cell.dtype)
        return value

    def define(self, name: str, text: str, dtype: DType) -> None:
        """Define a value of the IR."""
        self.values[name] = Value(text, dtype)
        self.constants.pop(name, None)
        if name in self.stored:
            self.write(self.cells[name], text)

    def bind(self, symbol: Sym, text: str) -> None:
        """Define a symbol of index expressions."""
        self.symbols[symbol] = text
        stale = [e for e in self.indices if symbol in e.free_symbols]
        for e in stale:
            del self.indices[e]
        if symbol.name in self.stored:
            self.write(self.cells[symbol.name], text)

    def index(self, e: x.Node) -> str:
        """Emit an index expression or condition, and return it as an `i64` or `i1`."""
        if isinstance(e, x.Const):
            return str(e.value)
        if isinstance(e, x.Bool):
            return "true" if e.value else "false"
        if isinstance(e, Sym):
            if e not in self.symbols:
                self.symbols[e] = self.read(self.cells[e.name])
            return self.symbols[e]
        if e not in self.indices:
            self.indices[e] = self._index(e)
        return self.indices[e]

    def _index(self, e: x.Node) -> str:
        if isinstance(e, x.Add):
            terms = [self._term(t, factor) for t, factor in e.terms]
            return self._folded("add nsw i64", terms + ([str(e.const)] if e.const else []))
        if isinstance(e, x.Mul):
            factors = [self.index(a) for a, n in e.factors for _ in range(n)]
            return self._folded("mul nsw i64", factors)
        if isinstance(e, x.FloorDiv | x.Mod):
            return self._quotient(e)
        if isinstance(e, x.Min | x.Max):
            word = "smin" if isinstance(e, x.Min) else "smax"
            text, *rest = map(self.index, e.args)
            for other in rest:
                text = self.op(f"call i64 @llvm.{word}.i64(i64 {text}, i64 {other})")
            return text
        if isinstance(e, x.Where):
            condition, a, b = map(self.index, (e.cond, e.a, e.b))
            return self.op(f"select i1 {condition}, i64 {a}, i64 {b}")
        if isinstance(e, x.And | x.Or):
            word = "and" if isinstance(e, x.And) else "or"
            return self._folded(f"{word} i1", [self.index(a) for a in e.args])
        assert isinstance(e, x.Eq | x.Ne | x.Lt | x.Le), e
        a, b = self.index(e.a), self.index(e.b)
        return self.op(f"icmp {_COMPARISONS[type(e)]} i64 {a}, {b}")

    def _term(self, term: Expr, factor: int) -> str:
        text = self.index(term)
        return text if factor == 1 else self.op(f"mul nsw i64 {text}, {factor}")

    def _folded(self, operation: str, parts: list[str]) -> str:
        text, *rest = parts
        for other in rest:
            text = self.op(f"{operation} {text}, {other}")
        return text

    def _quotient(self, e: x.FloorDiv | x.Mod) -> str:
        a, b = self.index(e.a), self.index(e.b)
        if not isinstance(e.b, x.Const):
            # A division that a selection discards must not trap.
            zero = self.op(f"icmp eq i64 {b}, 0")
            b = self.op(f"select i1 {zero}, i64 1, i64 {b}")
        divides = isinstance(e, x.FloorDiv)
        if e in self.tiled.plain:
            return self.op(f"{'udiv' if divides else 'urem'} i64 {a}, {b}")
        return self.op(f"call i64 @gy_floor_{'div' if divides else 'mod'}(i64 {a}, i64 {b})")

    def address(self, buffer: str, index: Expr) -> str:
        """Emit the address of an element of a parameter or local."""
        element = STORAGE[self.kernel.storage[buffer]]
        pointer, at = self.pointers[buffer], self.index(index)
        return self.op(f"getelementptr {element}, ptr {pointer}, i64 {at}", "at")
