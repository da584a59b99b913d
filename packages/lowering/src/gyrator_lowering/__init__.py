"""Lowering of FX graphs to Loop IR.

>>> from gyrator_lowering import LoweringOptions, lower

The public names are imported lazily: a warm start needs none of the lowering rules, which take 0.1
s to import.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gyrator_lowering.default import default_table
    from gyrator_lowering.options import LoweringOptions
    from gyrator_lowering.stage import lower
    from gyrator_lowering.table import LoweringTable, TableBuilder

__all__ = ["LoweringOptions", "LoweringTable", "TableBuilder", "default_table", "lower"]

_MODULE_OF = MappingProxyType(
    {
        "LoweringOptions": "options",
        "LoweringTable": "table",
        "TableBuilder": "table",
        "default_table": "default",
        "lower": "stage",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
