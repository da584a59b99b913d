"""The table we ship: an explicit list of families, in the order they are read."""

from gyrator_lowering.rules import (
    activation,
    attention,
    batch_norm,
    collective,
    complex,
    conv,
    creation,
    embedding_bag,
    extern,
    index,
    loss,
    matmul,
    norm,
    pad,
    pointwise,
    pool,
    quantized,
    quantized_products,
    ragged,
    random,
    reduction,
    scan,
    scatter,
    search,
    softmax,
    sort,
    unfold,
    view,
)
from gyrator_lowering.table import LoweringTable, TableBuilder

FAMILIES = (
    pointwise.register,
    activation.register,
    creation.register,
    view.register,
    reduction.register,
    softmax.register,
    norm.register,
    batch_norm.register,
    loss.register,
    index.register,
    random.register,
    pool.register,
    unfold.register,
    pad.register,
    scan.register,
    sort.register,
    search.register,
    scatter.register,
    ragged.register,
    embedding_bag.register,
    quantized.register,
    quantized_products.register,
    matmul.register,
    conv.register,
    attention.register,
    extern.register,
    collective.register,
    complex.register,
)


def default_table() -> LoweringTable:
    """Build the table afresh; cheap, and safe to extend without touching anyone else's."""
    table = TableBuilder()
    for register in FAMILIES:
        register(table)
    return table.build()
