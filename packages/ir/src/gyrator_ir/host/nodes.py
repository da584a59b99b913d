"""Wrapper IR: the host program, a closed set of typed instructions.

It contains no text of any host language. Names denote tensors and memory pools and are bound once
(the carried names of a loop once per iteration); symbols denote integers. Each wrapper backend
translates every class of `INSTRUCTIONS`.
"""

from enum import StrEnum
from typing import get_args

from attrs import field

from gyrator_ir.checks import a_tuple, exactly, identifier, instance_of, natural
from gyrator_ir.define import frozen
from gyrator_ir.expr import Cond, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Launchable
from gyrator_ir.loop.nodes import Constant, Literal, TypeArg, UserKernel
from gyrator_ir.modes import Failure
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
    """A parameter of the program: a tensor, an integer, or an opaque object."""

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
    """`name` = the constant tensor with this key in the program's `constants`."""

    name: str = field(validator=identifier)
    key: str = field(validator=exactly(str))


# Checks ---------------------------------------------------------------------------------------


class Mend(StrEnum):
    """The differences that `Conform` corrects by a copy; any other difference is an error."""

    ALL = "all"
    """Element type, device, strides, and a lazy conjugation or negation."""
    PENDING = "pending"
    """A lazy conjugation or negation only."""
    NOTHING = "nothing"
    """None: the program needs the tensor itself, or its producer must be corrected."""


@frozen
class Conform:
    """Check that a tensor has the properties that the program was compiled for, or convert it.

    Raises if its sizes differ. If its element type, device or strides (of dimensions longer than 1)
    differ, or if its conjugate or negative bit is set, it is replaced by a copy under the same name
    where `mend` allows that, and raises otherwise.
    """

    tensor: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    device: Device = field(validator=exactly(Device))
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    strides: tuple[Expr, ...] = field(validator=a_tuple)
    mend: Mend = field(default=Mend.ALL, validator=exactly(Mend))
    what: str = field(default="", validator=exactly(str))
    """The op that returned the tensor; empty for a parameter of the program."""


@frozen
class Separate:
    """Copy, under the same name, each of `tensors` that shares its storage with one of `others` or
    with an earlier one of `tensors`. Names may occur more than once."""

    tensors: tuple[str, ...] = field(validator=a_tuple)
    others: tuple[str, ...] = field(validator=a_tuple)


@frozen
class AssertNoNan:
    """Raise if a float or complex tensor contains NaN or infinity; `what` describes its origin."""

    tensor: str = field(validator=identifier)
    what: str = field(default="", validator=exactly(str))


@frozen
class AssertTrue:
    """Raise `error` with `message` unless the condition on sizes holds."""

    condition: Cond = field(validator=instance_of(Cond))
    message: str = field(validator=exactly(str))
    error: Failure = field(default=Failure.RUNTIME, validator=exactly(Failure))


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
    """`name` = a pool of `bytes` bytes of uninitialised memory, aligned to 64 bytes."""

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
    """Unbind the name. Its storage is freed once nothing else refers to it."""

    name: str = field(validator=identifier)


@frozen
class Reuse:
    """`name` = a tensor over the storage of `source`, which is unbound.

    The storage of `source` is at least as large, and `source` starts at its first byte.
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
    """Launch a kernel of the program with tensors in the order of `Kernel.parameters`, and `sizes`
    in the order of `Kernel.sizes`."""

    kernel: str = field(validator=identifier)
    tensors: tuple[str, ...] = field(validator=a_tuple)
    sizes: tuple[Expr, ...] = field(validator=a_tuple)
    overlap: bool = field(default=False, validator=exactly(bool))
    """The launch may start before the previous one, which is of this program too, ends."""


@frozen
class ExternCall:
    """Call a dispatcher op.

    `results` has one entry per return: a new name, a tuple of new names for a tensor list, a symbol
    for an integer, or None. With `out`, that overload is called instead, and the results are
    tensors allocated beforehand and passed by the keywords `out_names`.
    """

    target: str = field(validator=exactly(str))
    args: tuple[Value, ...] = field(validator=a_tuple)
    kwargs: tuple[tuple[str, Value], ...] = field(validator=a_tuple)
    results: tuple[str | tuple[str, ...] | Sym | None, ...] = field(validator=a_tuple)
    out: str | None = None
    out_names: tuple[str, ...] = field(default=(), validator=a_tuple)
    uncaptured: str = field(default="", validator=exactly(str))
    """Why the call cannot be captured in a device graph; empty if it can."""


@frozen
class TmaDescriptor:
    """`name` = a TMA descriptor of a tensor, for a user-written Triton kernel."""

    name: str = field(validator=identifier)
    tensor: str = field(validator=identifier)
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    block: tuple[Expr, ...] = field(validator=a_tuple)
    element_bytes: Expr = field(validator=instance_of(Expr))
    stable: bool = False
    """Use Triton's `TensorDescriptor` instead of its experimental API."""


@frozen
class TritonLaunch:
    """Launch a user-written Triton kernel. `grid` has one grid per configuration of the kernel."""

    kernel: str = field(validator=exactly(str))
    grid: tuple[tuple[Expr, ...], ...] = field(validator=a_tuple)
    args: tuple[tuple[str, Value], ...] = field(validator=a_tuple)
    constants: tuple[tuple[str, Value], ...] = field(validator=a_tuple)


@frozen
class Copy:
    """Copy `source` into `destination`, which may be on another device."""

    destination: str = field(validator=identifier)
    source: str = field(validator=identifier)
    non_blocking: bool = False


@frozen
class ReadScalar:
    """`symbol` = the value of a one-element tensor, waiting for its device."""

    symbol: Sym = field(validator=exactly(Sym))
    tensor: str = field(validator=identifier)


@frozen
class CollectiveStart:
    """Start a collective. Its `results` are new names, and a `CollectiveFinish` must precede reads
    of them."""

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
    """Run `body` with `device` as the current device."""

    device: Device = field(validator=exactly(Device))
    body: tuple["Instruction", ...] = field(validator=a_tuple)


@frozen
class ProfileRange:
    """Run `body` inside a named range of the profiler."""

    label: str = field(validator=exactly(str))
    body: tuple["Instruction", ...] = field(validator=a_tuple)


@frozen
class Branch:
    """Run `then` or `otherwise`, and bind `results` to `then_values` or `otherwise_values`."""

    condition: Ref | Cond = field(validator=instance_of(Ref, Cond))
    """A one-element bool tensor, or a condition on sizes."""
    then: tuple["Instruction", ...] = field(validator=a_tuple)
    then_values: tuple[str, ...] = field(validator=a_tuple)
    otherwise: tuple["Instruction", ...] = field(validator=a_tuple)
    otherwise_values: tuple[str, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)


@frozen
class Loop:
    """Run `body` while the tensor `test` that `condition` computes is true.

    `carried` is initially bound to `initial`, and after each run of `body` to `next`. Afterwards
    `results` are bound to the final `carried`. If `stacked`, they are bound to new tensors that
    stack the `next` of all iterations along a new first dimension, or only `initial` if `body`
    never ran.
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
    """Run `body` for `symbol` = 0, 1, ..., `count` - 1.

    `carried` is initially bound to `initial`, and after each run of `body` to `next`. Afterwards
    `results` are bound to the final `carried`.
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
    """Run a subprogram that has a `Capture`, which the runtime may record and replay as a graph."""

    program: str = field(validator=identifier)
    args: tuple[Value, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)


@frozen
class Comment:
    """A comment in the generated program."""

    text: str = field(validator=exactly(str))


@frozen
class Return:
    """Return values; the last instruction of every program, and allowed nowhere else."""

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
ASIDE = (
    BindSize, BindParameter, DefineSymbol, Allocate, AllocatePool, AllocateFromPool, Free, Reuse,
    View, Comment,
)  # fmt: skip
"""Instructions that queue no work on a device."""


@frozen
class Capture:
    """Allows a program to be captured in a graph of `device`."""

    device: Device = field(validator=exactly(Device))
    mutated: tuple[int, ...] = field(default=(), validator=a_tuple)
    """Indices of the parameters that the program writes to."""


@frozen
class HostProgram(Shown):
    """The work of the host in one call of the compiled function."""

    name: str = field(validator=identifier)
    parameters: tuple[Parameter, ...] = field(validator=a_tuple)
    constants: tuple[Constant, ...] = field(validator=a_tuple)
    kernels: tuple[Launchable, ...] = field(validator=a_tuple)
    """The launched kernels. They are canonical, with parameters `p0`, `p1`, ... and numbered values
    and symbols, so that identical kernels are stored once."""
    instructions: tuple[Instruction, ...] = field(validator=a_tuple)
    facts: ShapeFacts = field(factory=ShapeFacts, validator=instance_of(ShapeFacts))
    origins: tuple[Origin, ...] = field(default=(), validator=a_tuple)
    subprograms: tuple["HostProgram", ...] = field(default=(), validator=a_tuple)
    user_kernels: tuple[UserKernel, ...] = field(default=(), validator=a_tuple)
    capture: Capture | None = field(default=None, validator=exactly(Capture, type(None)))
    """How the program may be captured in a device graph; None if it cannot."""
    home: Device | None = field(default=None, validator=exactly(Device, type(None)))
    """The device to make current while the program runs; None to leave the caller's."""
