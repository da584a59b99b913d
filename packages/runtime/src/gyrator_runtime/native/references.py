"""References in a plan to objects of the process that runs it. They are stored as JSON.

`gyrator_runtime.plan.link` resolves them. A plan is referred to by its index among the plans that
are stored together, each after those that it refers to.
"""

from typing import TypeAlias

from gyrator_ir.define import frozen


@frozen
class HostFunction:
    """A function of `gyrator_runtime.host`."""

    name: str


@frozen
class Operator:
    """A dispatcher operator: `aten.mm.out`."""

    target: str


@frozen
class TorchObject:
    """A dtype, layout or memory format: `torch.<name>`."""

    name: str


@frozen
class TorchDevice:
    """A device."""

    name: str


@frozen
class Carried:
    """A constant of the program."""

    key: str


@frozen
class Allocator:
    """`f(sizes, strides, dtype)`: returns an uninitialised tensor."""

    device: str


@frozen
class Conforming:
    """The function of a `Conform`, with the dtype as named in the IR."""

    rank: int
    dtype: str
    device: str
    mend: str
    name: str
    what: str


@frozen
class Operating:
    """The function of an `Operate`."""

    target: str
    layouts: tuple[tuple[int, str] | None, ...]
    """Rank and dtype of each tensor that is created for the call."""
    numbers: tuple[tuple[str, int | float], ...]


@frozen
class Within:
    """`f(*args)`: runs a plan inside a context."""

    kind: str
    """`device` or `profile`."""
    subject: str
    plan: int


@frozen
class Branching:
    """`f(condition, *args)`: runs one of two plans."""

    then: int
    otherwise: int


@frozen
class Looping:
    """`f(*carried, *captured)`: runs a plan while another returns a true value, and returns the
    last carried values."""

    condition: int
    body: int
    carried: int
    """Number of carried values."""
    stacked: bool = False
    """Return the carried values of all iterations, stacked, instead of the last ones."""


@frozen
class Repeating:
    """`f(count, *carried, *captured)`: runs a plan for each step number below `count`, its first
    argument, and returns the last carried values."""

    body: int
    carried: int
    """Number of carried values."""


@frozen
class Calling:
    """`f(*args)`: runs a boxed plan."""

    plan: int
    partition: str = ""
    """The name of the partition, if a device graph may replace the plan."""


@frozen
class UserLaunch:
    """`f(*grid_sizes, *arguments)`: launches a user-defined Triton kernel."""

    kernel: str
    grids: tuple[int, ...]
    """Number of dimensions of each grid."""
    names: tuple[str, ...]
    """Names of the arguments."""


Reference: TypeAlias = (
    HostFunction | Operator | TorchObject | TorchDevice | Carried | Allocator | Conforming
    | Operating | Within | Branching | Looping | Repeating | Calling | UserLaunch
)  # fmt: skip
