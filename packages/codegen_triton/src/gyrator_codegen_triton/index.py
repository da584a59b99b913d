"""Index expressions as Triton source."""

from collections.abc import Callable

from gyrator_codegen.array_text import ArrayPrinter
from gyrator_ir.expr import FloorDiv, Fragment, Mod, Prec, Sym


class TritonPrinter(ArrayPrinter):
    """Prints blocks of integers. Triton's `//` and `%` round towards 0, so that they are used only
    for numerators that are provably non-negative."""

    minimum, maximum, where = "tl.minimum", "tl.maximum", "tl.where"

    def __init__(
        self, nonnegative: Callable[[FloorDiv | Mod], bool], names: Callable[[Sym], str]
    ) -> None:
        super().__init__(names)
        self._nonnegative = nonnegative

    def floordiv(self, node: FloorDiv) -> Fragment:
        """Return `a // b`, or a helper call if the numerator may be negative."""
        if self._nonnegative(node):
            return super().floordiv(node)
        return Fragment(f"gy_floor_div({self(node.a)}, {self(node.b)})", Prec.ATOM)

    def mod(self, node: Mod) -> Fragment:
        """Return `a % b`, or a helper call if the numerator may be negative."""
        if self._nonnegative(node):
            return super().mod(node)
        return Fragment(f"gy_floor_mod({self(node.a)}, {self(node.b)})", Prec.ATOM)
