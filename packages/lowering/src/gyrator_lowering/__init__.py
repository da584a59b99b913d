"""From an FX graph to Loop IR.

>>> from gyrator_lowering import LoweringOptions, lower
"""

from gyrator_lowering.default import default_table
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_lowering.table import LoweringTable, TableBuilder

__all__ = ["LoweringOptions", "LoweringTable", "TableBuilder", "default_table", "lower"]
