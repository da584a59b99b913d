"""Emission state of a kernel: names, values, and which of a point's threads write."""

from attrs import field

from gyrator_codegen import Names, Writer, index_checks
from gyrator_codegen_metal.dtypes import TYPES
from gyrator_ir.body.nodes import Check
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.expr.printer import CPrinter
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.source import KernelCheck
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType


@frozen
class Value:
    """A value in the source."""

    text: str
    dtype: DType


@define(eq=False)
class Code:
    """The state while a kernel is emitted."""

    tiled: TiledKernel
    lanes: int
    """Threads that share a point's elements: one, a SIMD group, or a threadgroup."""
    names: Names
    at: CPrinter = field(init=False)
    """Prints an index expression."""
    writer: Writer = field(factory=Writer)
    values: dict[str, Value] = field(factory=dict)
    dirty: set[str] = field(factory=set)
    """Buffers stored to since the last barrier."""
    checks: dict[Check, KernelCheck] = field(init=False)
    """The kernel's checks, with their codes."""
    bound: set[Sym] = field(factory=set)
    """Symbols bound to checked values."""
    inner: bool = False
    """Whether the current code runs for every inner element."""
    live: bool = False
    """Whether threads without an element participate, because of a scan or sort."""

    def __attrs_post_init__(self) -> None:
        self.checks = index_checks(self.kernel)
        plain, suffix = frozenset(self.tiled.plain), "" if self.tiled.index is DType.I32 else "L"
        names = ("gy_floor_div", "gy_floor_mod", suffix)
        self.at = CPrinter(plain.__contains__, lambda s: self.names.stable(s.name), *names)

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self.tiled.kernel

    @property
    def index(self) -> str:
        """Metal type of indices."""
        return TYPES[self.tiled.index]

    def value(self, name: str, text: str, dtype: DType) -> None:
        """Emit the definition of an IR value."""
        word = self.names.take(name)
        self.writer.line(f"{TYPES[dtype]} {word} = {text};")
        self.values[name] = Value(word, dtype)

    def condition(self, index: Expr | None, mask: str | None, store: bool) -> str:
        """Return the condition of an access or check; empty for always.

        Args:
            index: the address of an access.
            mask: the value that must be true.
            store: only one of the threads that compute the same value writes it.
        """
        parts = []
        if self.live:
            parts.append("live")
        elif store and not self.inner and self.lanes > 1:
            parts.append("lane == 0")
        if index is not None and not self.bound.isdisjoint(index.free_symbols):
            parts.append("sound")
        if mask is not None:
            parts.append(self.values[mask].text)
        return " && ".join(parts)

    def barrier(self) -> None:
        """Emit a barrier that makes stores by a point's threads visible to all of them."""
        if self.lanes > 1:
            scope = "simdgroup" if self.lanes == 32 else "threadgroup"
            self.writer.line(f"{scope}_barrier(mem_flags::mem_device);")
        self.dirty.clear()
