"""What stands in a plan for an object of the process that runs it: frozen, and stored as JSON.

`gyrator_runtime.plan.link` makes the objects. A number of a plan is its place among the plans that
are stored together; each comes after those that it refers to.
"""

from typing import TypeAlias

from attrs import frozen


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
    """An element type, a layout or a memory format: `torch.<name>`."""

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
    """`f(sizes, strides, dtype)`, which makes an uninitialised tensor."""

    device: str


@frozen
class Conforming:
    """The function of a `Conform`; element types as the IR calls them."""

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
    """Number of dimensions and element type of each tensor that is made for the call."""
    numbers: tuple[tuple[str, int | float], ...]


@frozen
class Within:
    """`f(*args)`: a plan inside a context."""

    kind: str
    """`device` or `profile`."""
    subject: str
    plan: int


@frozen
class Branching:
    """`f(condition, *args)`: one of two plans."""

    then: int
    otherwise: int


@frozen
class Looping:
    """`f(*carried, *captured)`: the carried values after the last run of a plan, which goes on as
    long as another gives a true value."""

    condition: int
    body: int
    carried: int
    """How many there are."""
    stacked: bool = False
    """All carried values, stacked, and not the last."""


@frozen
class Repeating:
    """`f(count, *carried, *captured)`: the carried values after a plan ran for each number below
    `count`, which it takes first."""

    body: int
    carried: int
    """How many there are."""


@frozen
class Calling:
    """`f(*args)`: a plan that takes a list."""

    plan: int
    partition: str = ""
    """The name of a part that a device's graph may stand for."""


@frozen
class UserLaunch:
    """`f(*sizes of the grids, *arguments)`: launches a user's Triton kernel."""

    kernel: str
    grids: tuple[int, ...]
    """Dimensions of each."""
    names: tuple[str, ...]
    """Of the arguments."""


Reference: TypeAlias = (
    HostFunction | Operator | TorchObject | TorchDevice | Carried | Allocator | Conforming
    | Operating | Within | Branching | Looping | Repeating | Calling | UserLaunch
)  # fmt: skip
