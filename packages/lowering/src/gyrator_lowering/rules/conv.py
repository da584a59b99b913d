"""Convolutions: calls of a library."""

from gyrator_lowering.rules.extern import library
from gyrator_lowering.table import TableBuilder


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for op in (
        "aten.convolution.default",
        "aten.convolution_backward.default",
        "aten._convolution.default",
        "aten.conv_tbc.default",
    ):
        table.rule(op)(library())
