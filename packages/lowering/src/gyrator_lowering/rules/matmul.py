"""Dense matrix products: calls of a library."""

from gyrator_lowering.rules.extern import library
from gyrator_lowering.table import TableBuilder


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for op in ("mm", "bmm", "addmm", "baddbmm"):
        table.rule(f"aten.{op}.default")(library(f"aten.{op}.out"))
    for name in (
        "aten.mv.default",
        "aten.dot.default",
        "aten.vdot.default",
        "aten.addmv.default",
        "aten.linear.default",
        "aten.matmul.default",
        "aten.linear_backward.default",
        "aten._int_mm.default",
        "aten.addbmm.default",
        "aten._addmm_activation.default",
    ):
        table.rule(name)(library())
