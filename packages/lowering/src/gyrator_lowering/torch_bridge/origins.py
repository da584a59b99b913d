"""From an FX node to the user's line of code."""

import re
from typing import Any

from attrs import define, field
from torch.fx import Node

from gyrator_ir.provenance import Origin

_FRAME = re.compile(r'  File "([^"]*)", line (\d+), in (.*)')


@define
class Locator:
    """Makes origins; a stack trace that many nodes share is read once."""

    _memo: dict[str, tuple[str, str]] = field(factory=dict)

    def origin(self, node: Node) -> Origin:
        """Return the row for one node."""
        trace = node.meta.get("stack_trace") or ""
        found = self._memo.get(trace)
        if found is None:
            found = self._memo[trace] = innermost(trace)
        return Origin(node.name, str(node.target), *found)


def innermost(trace: Any) -> tuple[str, str]:
    """Return `file:line in function` and the line of code of the last frame of a stack trace."""
    lines = str(trace).rstrip().splitlines()
    for place in range(len(lines) - 1, -1, -1):
        frame = _FRAME.match(lines[place])
        if frame is not None:
            code = lines[place + 1].strip() if place + 1 < len(lines) else ""
            return f"{frame[1]}:{frame[2]} in {frame[3]}", code
    return "", ""
