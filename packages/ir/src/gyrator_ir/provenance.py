"""Where a thing in the IR came from: the FX node and the user's source line."""

from attrs import field, frozen

from gyrator_ir.checks import exactly


@frozen
class Origin:
    """One FX node. Programs hold a table of these; operations and kernels refer to rows of it."""

    node: str = field(validator=exactly(str))
    """Name of the FX node, without the `%`."""
    target: str = field(validator=exactly(str))
    """What the node calls, `aten.add.Tensor`."""
    location: str = field(default="", validator=exactly(str))
    """The user's `file:line in function`, empty when torch recorded none."""
    code: str = field(default="", validator=exactly(str))
    """The user's line of code."""
    module: str = field(default="", validator=exactly(str))
    """Path of the `nn.Module` that runs it, `encoder.layers.0.norm`; empty outside of modules, and
    in the outermost one."""
