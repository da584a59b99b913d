"""The origin of IR operations: FX nodes and the user's source lines."""

from attrs import field

from gyrator_ir.checks import exactly
from gyrator_ir.define import frozen


@frozen
class Origin:
    """One FX node. A program has a table of these; operations and kernels refer to its rows."""

    node: str = field(validator=exactly(str))
    """Name of the FX node, without the `%`."""
    target: str = field(validator=exactly(str))
    """The target that the node calls, `aten.add.Tensor`."""
    location: str = field(default="", validator=exactly(str))
    """The user's `file:line in function`; empty if torch did not record it."""
    code: str = field(default="", validator=exactly(str))
    """The user's line of code."""
    module: str = field(default="", validator=exactly(str))
    """Path of the enclosing `nn.Module`, `encoder.layers.0.norm`; empty outside of modules and in
    the outermost one."""
