"""Wrapper IR: the host program, a closed set of typed instructions.

It holds no text of a host language. Names stand for tensors and pools of memory, and are bound once
(a loop's carried names once an iteration); symbols stand for integers. Each wrapper backend
translates every class of `INSTRUCTIONS`.
"""

from enum import StrEnum
from typing import get_args

from attrs import field, frozen

from gyrator_ir.checks import a_tuple, exactly, identifier, instance_of, natural
from gyrator_ir.expr import Cond, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Launchable
from gyrator_ir.loop.nodes import Constant, Literal, TypeArg, UserKernel
from gyrator_ir.provenance import Origin
from gyrator_ir.text.shown import Shown
from gyrator_ir.types import Device, DType


@frozen
class Ref:
    """A bound name as an argument."""

    name: str = field(validator=identifier)


@frozen
class ListValue:
    """A list argument."""

    items: tuple["Value", ...] = field(validator=a_tuple)


Value = Ref | Expr | Literal | TypeArg | ListValue
"""An operand of a call, or a result of the program."""


@frozen
class Parameter:
    """What the caller passes at one position: a tensor, an integer, or something opaque."""

    name: str = field(validator=identifier)
    kind: str = field(validator=exactly(str))
    """`tensor`, `size` or `opaque`."""


# Inputs and symbols ---------------------------------------------------------------------------


@frozen
class BindSize:
    """`symbol` = size (or stride) `dim` of a tensor."""

    symbol: Sym = field(validator=exactly(Sym))
    tensor: str = field(validator=identifier)
    dim: int = field(validator=natural)
    stride: bool = False


@frozen
class BindParameter:
    """`symbol` = the integer parameter called `name`."""

    symbol: Sym = field(validator=exactly(Sym))
    name: str = field(validator=identifier)


@frozen
class DefineSymbol:
    """`symbol` = the value of `expr`: a size computed once."""

    symbol: Sym = field(validator=exactly(Sym))
    expr: Expr = field(validator=instance_of(Expr))


@frozen
class BindConstant:
    """`name` = the tensor that the program carries under `key`."""

    name: str = field(validator=identifier)
    key: str = field(validator=exactly(str))


# Checks ---------------------------------------------------------------------------------------


class Mend(StrEnum):
    """What `Conform` may replace; it raises for any other difference."""

    ALL = "all"
    """Element type, device, strides, and a conjugation or negation that is still to be done."""
    PENDING = "pending"
    """A conjugation or negation that is still to be done."""
    NOTHING = "nothing"
    """Nothing: the tensor itself is needed, or whoever made it is to mend it."""


@frozen
class Conform:
    """Make a tensor from outside what the program takes it for.

    Raises where it has other sizes. One of another element type, on another device, with other
    strides (in dimensions longer than 1), or whose conjugation or negation is still to be done, is
    replaced by a copy, under the same name, as far as `mend` allows; else this raises too.
    """

    tensor: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    device: Device = field(validator=exactly(Device))
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    strides: tuple[Expr, ...] = field(validator=a_tuple)
    mend: Mend = field(default=Mend.ALL, validator=exactly(Mend))
    what: str = field(default="", validator=exactly(str))
    """The op that returned it; empty for a parameter of the program."""


@frozen
class Separate:
    """Replace, under the same name, each of `tensors` by a copy of it that lies in storage which
    one of `others`, or one before it, has too. Names may be given several times."""

    tensors: tuple[str, ...] = field(validator=a_tuple)
    others: tuple[str, ...] = field(validator=a_tuple)


@frozen
class AssertNoNan:
    """Raise if a floating-point tensor holds NaN or infinity; `what` says where it came from."""

    tensor: str = field(validator=identifier)
    what: str = field(default="", validator=exactly(str))


@frozen
class AssertTrue:
    """Raise RuntimeError with `message` unless the condition on sizes holds."""

    condition: Cond = field(validator=instance_of(Cond))
    message: str = field(validator=exactly(str))


# Memory ---------------------------------------------------------------------------------------


@frozen
class Allocate:
    """`name` = a new strided tensor, uninitialised."""

    name: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    device: Device = field(validator=exactly(Device))
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    strides: tuple[Expr, ...] = field(validator=a_tuple)


@frozen
class AllocatePool:
    """`name` = `bytes` of uninitialised memory, aligned to 64, that tensors are placed in."""

    name: str = field(validator=identifier)
    bytes: Expr = field(validator=instance_of(Expr))
    device: Device = field(validator=exactly(Device))


@frozen
class AllocateFromPool:
    """`name` = a strided tensor at byte `offset` of a pool."""

    name: str = field(validator=identifier)
    pool: str = field(validator=identifier)
    offset: Expr = field(validator=instance_of(Expr))
    dtype: DType = field(validator=exactly(DType))
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    strides: tuple[Expr, ...] = field(validator=a_tuple)


@frozen
class Free:
    """Drop the name; its storage goes when nothing else holds it."""

    name: str = field(validator=identifier)


@frozen
class Reuse:
    """`name` = a tensor over the storage of `source`, which is dropped.

    The storage of `source` is at least as large, and starts at the same address.
    """

    name: str = field(validator=identifier)
    source: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    strides: tuple[Expr, ...] = field(validator=a_tuple)


@frozen
class View:
    """`name` = a strided view of `source`; offset and strides count elements of `dtype`.

    The offset is from the first element of `source`, not from the start of its storage.
    """

    name: str = field(validator=identifier)
    source: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    strides: tuple[Expr, ...] = field(validator=a_tuple)
    offset: Expr = field(validator=instance_of(Expr))


# Work -----------------------------------------------------------------------------------------


@frozen
class Launch:
    """Run a kernel of the program: tensors in the order of `Kernel.parameters`, then `sizes`."""

    kernel: str = field(validator=identifier)
    tensors: tuple[str, ...] = field(validator=a_tuple)
    sizes: tuple[Expr, ...] = field(validator=a_tuple)


@frozen
class ExternCall:
    """Call a dispatcher op.

    `results` has an entry for each return: a new name, a tuple of new names for a tensor list, a
    symbol for an integer, or None. With `out`, that overload is called and the names, allocated
    before, are passed by the keywords `out_names`.
    """

    target: str = field(validator=exactly(str))
    args: tuple[Value, ...] = field(validator=a_tuple)
    kwargs: tuple[tuple[str, Value], ...] = field(validator=a_tuple)
    results: tuple[str | tuple[str, ...] | Sym | None, ...] = field(validator=a_tuple)
    out: str | None = None
    out_names: tuple[str, ...] = field(default=(), validator=a_tuple)
    uncaptured: str = field(default="", validator=exactly(str))
    """Why no device graph can hold the call; empty where one can."""


@frozen
class TmaDescriptor:
    """`name` = a tensor-map descriptor of a tensor, for a user's Triton kernel."""

    name: str = field(validator=identifier)
    tensor: str = field(validator=identifier)
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    block: tuple[Expr, ...] = field(validator=a_tuple)
    element_bytes: Expr = field(validator=instance_of(Expr))
    stable: bool = False
    """Built with Triton's `TensorDescriptor` and not with the experimental API."""


@frozen
class TritonLaunch:
    """Launch a user's Triton kernel over each grid that its configurations choose from."""

    kernel: str = field(validator=exactly(str))
    grid: tuple[tuple[Expr, ...], ...] = field(validator=a_tuple)
    args: tuple[tuple[str, Value], ...] = field(validator=a_tuple)
    constants: tuple[tuple[str, Value], ...] = field(validator=a_tuple)


@frozen
class Copy:
    """Copy `source` into `destination`, across devices if need be."""

    destination: str = field(validator=identifier)
    source: str = field(validator=identifier)
    non_blocking: bool = False


@frozen
class ReadScalar:
    """`symbol` = the value of a one-element tensor; waits for its device."""

    symbol: Sym = field(validator=exactly(Sym))
    tensor: str = field(validator=identifier)


@frozen
class CollectiveStart:
    """Start a collective; `results` are new names that may be read after a `CollectiveFinish`."""

    target: str = field(validator=exactly(str))
    args: tuple[Value, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)


@frozen
class CollectiveFinish:
    """Wait for the collective that fills `tensor`."""

    tensor: str = field(validator=identifier)


# Structure ------------------------------------------------------------------------------------


@frozen
class WithDevice:
    """Run `body` with `device` current."""

    device: Device = field(validator=exactly(Device))
    body: tuple["Instruction", ...] = field(validator=a_tuple)


@frozen
class ProfileRange:
    """Run `body` inside a named range of the profiler."""

    label: str = field(validator=exactly(str))
    body: tuple["Instruction", ...] = field(validator=a_tuple)


@frozen
class Branch:
    """Run `then` or `otherwise`; each ends with a name for every one of `results`."""

    condition: Ref | Cond = field(validator=instance_of(Ref, Cond))
    """A one-element bool tensor, or a condition on sizes."""
    then: tuple["Instruction", ...] = field(validator=a_tuple)
    then_values: tuple[str, ...] = field(validator=a_tuple)
    otherwise: tuple["Instruction", ...] = field(validator=a_tuple)
    otherwise_values: tuple[str, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)


@frozen
class Loop:
    """While `condition` gives a true tensor called `test`, run `body` and replace `carried`.

    `carried` starts as `initial`; after each run of `body` it takes the values `next`. Afterwards
    `results` are bound to the last `carried`; if `stacked`, to new tensors that hold, along a new
    first dimension, what each `next` was in order, or where `body` never ran, `initial` alone.
    """

    carried: tuple[str, ...] = field(validator=a_tuple)
    initial: tuple[str, ...] = field(validator=a_tuple)
    condition: tuple["Instruction", ...] = field(validator=a_tuple)
    test: str = field(validator=identifier)
    body: tuple["Instruction", ...] = field(validator=a_tuple)
    next: tuple[str, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)
    stacked: bool = field(default=False, validator=exactly(bool))


@frozen
class Repeat:
    """Run `body` with `symbol` = 0, 1, ... below `count`, and replace `carried` each time.

    `carried` starts as `initial`; after each run of `body` it takes the values `next`. Afterwards
    `results` are bound to the last `carried`.
    """

    symbol: Sym = field(validator=exactly(Sym))
    count: Expr = field(validator=instance_of(Expr))
    carried: tuple[str, ...] = field(validator=a_tuple)
    initial: tuple[str, ...] = field(validator=a_tuple)
    body: tuple["Instruction", ...] = field(validator=a_tuple)
    next: tuple[str, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)


@frozen
class CallProgram:
    """Run a subprogram of this program."""

    program: str = field(validator=identifier)
    args: tuple[Value, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)


@frozen
class CallPartition:
    """Run a subprogram that has a `Capture`: the runtime may record a graph and replay it."""

    program: str = field(validator=identifier)
    args: tuple[Value, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)


@frozen
class Comment:
    """A remark for readers of the generated program."""

    text: str = field(validator=exactly(str))


@frozen
class Return:
    """The last instruction of a program, and of no other sequence."""

    values: tuple[Value, ...] = field(validator=a_tuple)


Instruction = (
    BindSize
    | BindParameter
    | DefineSymbol
    | BindConstant
    | Conform
    | Separate
    | AssertNoNan
    | AssertTrue
    | Allocate
    | AllocatePool
    | AllocateFromPool
    | Free
    | Reuse
    | View
    | Launch
    | ExternCall
    | TmaDescriptor
    | TritonLaunch
    | Copy
    | ReadScalar
    | CollectiveStart
    | CollectiveFinish
    | WithDevice
    | ProfileRange
    | Branch
    | Loop
    | Repeat
    | CallProgram
    | CallPartition
    | Comment
    | Return
)

INSTRUCTIONS: tuple[type, ...] = get_args(Instruction)
"""Every instruction class, for wrappers and tests to enumerate."""


@frozen
class Capture:
    """A graph of `device` may stand for a program."""

    device: Device = field(validator=exactly(Device))
    mutated: tuple[int, ...] = field(default=(), validator=a_tuple)
    """Places of the parameters that the program writes."""


@frozen
class HostProgram(Shown):
    """What the host does in one call."""

    name: str = field(validator=identifier)
    parameters: tuple[Parameter, ...] = field(validator=a_tuple)
    constants: tuple[Constant, ...] = field(validator=a_tuple)
    kernels: tuple[Launchable, ...] = field(validator=a_tuple)
    """Kernels that launches name. They are canonical: parameters are called `p0`, `p1`, ..., values
    and symbols are numbered in order, so that kernels that do the same are one."""
    instructions: tuple[Instruction, ...] = field(validator=a_tuple)
    facts: ShapeFacts = field(factory=ShapeFacts, validator=instance_of(ShapeFacts))
    origins: tuple[Origin, ...] = field(default=(), validator=a_tuple)
    subprograms: tuple["HostProgram", ...] = field(default=(), validator=a_tuple)
    user_kernels: tuple[UserKernel, ...] = field(default=(), validator=a_tuple)
    capture: Capture | None = field(default=None, validator=exactly(Capture, type(None)))
    """How a graph may stand for the program; None where none can."""
    home: Device | None = field(default=None, validator=exactly(Device, type(None)))
    """The device to make current while the program runs; None leaves the caller's."""
