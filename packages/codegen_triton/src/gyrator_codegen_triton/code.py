"""Emission state of a kernel: names, and values with the dimensions along which they vary."""

from attrs import field

from gyrator_codegen import Names, Writer
from gyrator_codegen.positions import BlockDecisions, Flat
from gyrator_codegen_triton.index import TritonPrinter
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import Const, Expr, Sym
from gyrator_ir.types import DType

LENGTHS = "XBLOCK", "RBLOCK"
"""Names of the block lengths of kernels that are not matrix products."""


@frozen
class Value:
    """A value in the source: a name, and the dimensions along which it varies."""

    text: str
    dtype: DType
    x: bool
    r: bool


@define(eq=False)
class Code(BlockDecisions):
    """The state while a kernel is emitted."""

    writer: Writer
    names: Names
    wide: bool
    """Whether indices have 64 bits."""
    converted: frozenset[DType] = frozenset()
    """8-bit float types with hardware conversions."""
    letters: tuple[str, str] = ("x", "r")
    """Names of the positions along each dimension."""
    lengths: tuple[str, str] = LENGTHS
    """Names of the block lengths along each dimension."""
    bound: dict[Sym, Value] = field(factory=dict)
    """Values of index symbols that are loaded."""
    values: dict[str, Value] = field(factory=dict)
    positions: dict[str, Expr] = field(factory=dict)
    """Index expressions of values."""
    read: dict[tuple[int, int], Value] = field(factory=dict)
    """Values loaded and stored so far, by stage and statement."""
    rows: dict[str, Value] = field(factory=dict)
    """Locals, which are stored as blocks in registers."""
    totals: dict[str, str] = field(factory=dict)
    """Accumulators of sums over points, by buffer."""
    inner: bool = False
    """Whether the current code has both dimensions: an inner stage, or a tile."""

    @property
    def rank(self) -> int:
        """Rank of blocks, 1 or 2."""
        return 2 if self.blocks.second else 1

    @property
    def index_type(self) -> str:
        """Triton's type of indices."""
        return "tl.int64" if self.wide else "tl.int32"

    def printer(self) -> TritonPrinter:
        """Return a printer of index expressions for the current names."""
        return TritonPrinter(self.plain, self._symbol)

    def end(self, extent: Expr) -> str:
        """Return the end of a loop. Triton takes a literal from 2^31 on as unsigned, and compares
        it as signed; and a loop variable of 32 bits wraps in the step past an end just below."""
        text = self.printer()(extent)
        far = isinstance(extent, Const) and extent.value >= 1 << 30
        return f"tl.cast({text}, tl.int64)" if far else text

    def fours(self, e: Expr) -> str:
        """Return an index expression at every fourth position along the last dimension."""
        last, letter = self.flats[self.rank - 1].symbol, self.letters[self.rank - 1]
        show = TritonPrinter(
            self.plain, lambda s: f"{letter}_fours" if s is last else self._symbol(s)
        )
        return show(self.form(e))

    def _symbol(self, symbol: Sym) -> str:
        for flat, name in zip(self.flats, self.letters, strict=True):
            if symbol is flat.symbol:
                return name
        value = self.bound.get(symbol)
        return self.names.stable(symbol.name) if value is None else value.text

    def index(self, e: Expr) -> Value:
        """Return an index expression as an atom or a sum, with its dimensions."""
        written, (x, r) = self.form(e), self.along(e)
        for value in (self.bound[s] for s in written.free_symbols & self.bound.keys()):
            x, r = x or value.x, r or value.r
        return Value(self.printer()(written), DType.I64 if self.wide else DType.I32, x, r)

    def scalar(self, e: Expr) -> bool:
        """Return whether an index expression is a scalar, over sizes only."""
        flats = (*self.flats[0].digits, *self.flats[1].digits, *self.bound)
        return self.form(e).free_symbols.isdisjoint(flats) and not (
            self.form(e).free_symbols & {flat.symbol for flat in self.flats}
        )

    def digits(self, flat: Flat, used: set[Sym]) -> None:
        """Emit the used axes of a flat group. Axes that are constant within a block are computed
        from `first`."""
        still = TritonPrinter(self.plain, lambda s: "first")
        for symbol in reversed(flat.digits):
            if symbol in used:
                show = still if symbol in self.blocks.still else self.printer()
                name = self.names.stable(symbol.name)
                self.writer.line(f"{name} = {show(flat.digits[symbol])}")

    def block(self, x: bool, r: bool) -> str:
        """Return the shape of a block that varies along these dimensions."""
        first = self.lengths[0] if x else "1"
        if self.rank == 1:
            return f"[{first}]"
        return f"[{first}, {self.lengths[1] if r else '1'}]"

    def full(self, text: str) -> str:
        """Return `text` broadcast to the full shape of the stage."""
        return f"tl.broadcast_to({text}, {self.block(True, self.inner)})"

    def let(self, name: str, text: str, dtype: DType, x: bool, r: bool) -> Value:
        """Emit `name = text` and return the value."""
        word = self.names.take(name)
        self.writer.line(f"{word} = {text}")
        return Value(word, dtype, x, r)

    def define(self, name: str, text: str, dtype: DType, x: bool, r: bool) -> None:
        """Emit the definition of an IR value."""
        self.values[name] = self.let(name, text, dtype, x, r)
