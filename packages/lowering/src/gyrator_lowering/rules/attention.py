"""Scaled-dot-product attention: calls of a library."""

from gyrator_lowering.rules.extern import library
from gyrator_lowering.table import TableBuilder

KINDS = (
    "flash_attention_for_cpu",
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
    "fused_attention_overrideable",
)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for kind in KINDS:
        table.rule(f"aten._scaled_dot_product_{kind}", f"aten._scaled_dot_product_{kind}_backward")(
            library()
        )
    table.rule("aten._scaled_dot_product_attention_math", "aten.scaled_dot_product_attention")(
        library()
    )
    table.rule("aten._flash_attention_forward", "aten._flash_attention_backward")(library())
    table.rule("aten._efficient_attention_forward", "aten._efficient_attention_backward")(library())
