"""Rules of a user that no op can use, because there is none of that name."""

from difflib import get_close_matches

import torch

from gyrator_lowering.default import default_table
from gyrator_lowering.table import LoweringTable


def misspelt_ops(table: LoweringTable) -> dict[str, str]:
    """Return the names of a table that are no op of PyTorch, with the nearest one that is, or "".

    Ops of a library that is not imported yet are left out, unless their name is like another.
    """
    known = default_table()
    added = {*table.rules, *table.complex_rules} - {*known.rules, *known.complex_rules}
    if not added:
        return {}
    overloads = set()
    for name in torch._C._dispatch_get_all_op_names():
        library, _, op = name.partition("::")
        overloads.add(f"{library}.{op}" if "." in op else f"{library}.{op}.default")
    packets = {name.rpartition(".")[0] for name in overloads}
    libraries = {name.partition(".")[0] for name in packets}
    misspelt = {}
    for name in sorted(added - overloads - packets):
        near = get_close_matches(name.replace("::", "."), sorted(overloads | packets), 1, 0.8)
        if near or name.partition(".")[0] in libraries:
            misspelt[name] = near[0] if near else ""
    return misspelt
