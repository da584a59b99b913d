"""The default lowering table: an explicit list of rule families, in registration order."""

from gyrator_lowering.rules import (
    activation,
    attention,
    collective,
    complex,
    conv,
    creation,
    extern,
    index,
    loss,
    matmul,
    norm,
    pointwise,
    pool,
    quantized,
    random,
    reduction,
    scan,
    scatter,
    sort,
    view,
)
from gyrator_lowering.rules.index import embedding_bag, ragged, search
from gyrator_lowering.rules.norm import batch_norm, softmax
from gyrator_lowering.rules.pool import pad, unfold
from gyrator_lowering.rules.quantized import products as quantized_products
from gyrator_lowering.table import LoweringTable, TableBuilder

FAMILIES = (
    pointwise.register, activation.register, creation.register, view.register, reduction.register,
    softmax.register, norm.register, batch_norm.register, loss.register, index.register,
    random.register, pool.register, unfold.register, pad.register, scan.register, sort.register,
    search.register, scatter.register, ragged.register, embedding_bag.register, quantized.register,
    quantized_products.register, matmul.register, conv.register, attention.register,
    extern.register, collective.register, complex.register,
)  # fmt: skip


def default_table() -> LoweringTable:
    """Build a new table of all families. Cheap, and safe to extend: nothing is shared between
    tables."""
    table = TableBuilder()
    for register in FAMILIES:
        register(table)
    return table.build()
