"""`block-attention`: the blocks of scores of flexible attention."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import guess
from gyrator_codegen.passes.rewriting import each_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.loop.templates import literal
from gyrator_ir.source import Configuration
from gyrator_ir.tile.choices import choices_of
from gyrator_ir.tile.nodes import TiledTemplate, TileProgram

_LANES = 16
"""Numbers of the widest vectors."""


@frozen
class BlockAttention:
    """Offer sizes of the blocks of scores that a thread computes at a time: `ROWS` queries, which
    divide the blocks of the block mask, by `COLUMNS` keys, whose last block may be shorter.

    The first candidate is the largest block of at most 64 rows, by 64 columns, or by all if there
    are at most `whole` and no block mask: copies of keys and values then serve all rows of a head.
    Each of the other candidates changes one of the numbers.
    """

    name: ClassVar[str] = "block-attention"
    rows: tuple[int, ...] = (64, 48, 32, 128, 16)
    columns: tuple[int, ...] = (64, 128, 32)
    most: int = 3
    """Maximum number of values of `ROWS`."""
    whole: int = 512

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with choices for its templates of flexible attention."""
        return each_of(program, TiledTemplate, self._blocked)

    def _blocked(self, tiled: TiledTemplate, facts: ShapeFacts) -> TiledTemplate:
        if tiled.kernel.kind is not TemplateKind.FLEX_ATTENTION:
            return tiled
        block = literal(tiled.kernel.attributes, "row_block", int)
        rows = [n for n in self.rows if block % n == 0][: self.most]
        if not rows:
            return tiled
        columns = self._columns(tiled.kernel, facts)
        blocks = [(n, columns[0]) for n in rows] + [(rows[0], n) for n in columns[1:]]
        ranked = tuple(Configuration((("ROWS", n), ("COLUMNS", m))) for n, m in blocks)
        return evolve(tiled, choices=choices_of(ranked), candidates=ranked)

    def _columns(self, kernel: TemplateKernel, facts: ShapeFacts) -> tuple[int, ...]:
        count = guess(kernel.inputs[1].shape[2], facts)
        if literal(kernel.attributes, "lists", int) or not 0 < count <= self.whole:
            return self.columns
        whole = -(-count // _LANES) * _LANES
        return (whole, *(n for n in self.columns if n < whole))
