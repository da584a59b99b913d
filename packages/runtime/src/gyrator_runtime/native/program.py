"""What a plan does, as data: the instructions that both runners execute.

A plan works on numbered registers that hold Python objects (the call's arguments are registers
0 .. n_args-1) and computes sizes as 64-bit integers. Straight line: a host program with branches
or loops calls several plans.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from attrs import field, frozen

EXPR_OPS = ("arg", "const", "add", "sub", "mul", "floordiv", "mod", "min", "max")
"""Names of the operations of a `SizeProgram`; the index is the native number."""

EXPR_DEPTH = 64
"""Deepest stack of a `SizeProgram`."""


@frozen
class SizeArg:
    """The Python int that a register holds when the size is first needed."""

    register: int


@frozen
class SizeProgram:
    """A postfix integer expression: `(("arg", 0), ("const", 2), ("mul", 0))` is `2 * r0`.

    `("arg", k)` pushes the int of register k, `("const", c)` pushes c; the others take two and
    push one, with Python's floor semantics. Results outside 64 bits raise OverflowError, a zero
    divisor ZeroDivisionError.
    """

    code: tuple[tuple[str, int], ...] = field()

    @code.validator
    def _check(self, _: Any, code: tuple[tuple[str, int], ...]) -> None:
        depth = 0
        for name, _operand in code:
            if name not in EXPR_OPS:
                raise ValueError(f"unknown size operation {name!r}; known: {', '.join(EXPR_OPS)}")
            depth += 1 if name in ("arg", "const") else -1
            if not 0 < depth <= EXPR_DEPTH:
                raise ValueError(f"the stack of a size program must stay within 1..{EXPR_DEPTH}")
        if depth != 1:
            raise ValueError("a size program must leave exactly one value")


Size: TypeAlias = int | SizeArg | SizeProgram


@frozen
class Buffer:
    """A tensor in a register, and a byte offset into it (a slice of a pool or a workspace).

    A register that holds None gives the kernel a null pointer.
    """

    register: int
    offset: Size = 0


CheckHandler: TypeAlias = Callable[[int, tuple[object, ...], tuple[int, ...]], BaseException]
"""`handler(number, buffers, sizes)` makes the exception of a failed check: `buffers` are the
objects in the launch's registers and `sizes` its numbers, so that it can look for the value."""


class DeviceLaunch(Protocol):
    """How a kernel gets onto a device that has a queue of its own."""

    @property
    def address(self) -> int:
        """Of the `DeviceLaunch` block that gyrunner.cpp reads; valid as long as this object."""
        ...

    def launch(self, addresses: Sequence[int | None], sizes: Sequence[int]) -> int:
        """Do the same without native code: queue it; return 0 or the driver's error."""
        ...

    def failure(
        self, number: int, buffers: tuple[object, ...], sizes: tuple[int, ...]
    ) -> BaseException:
        """Return the exception of a launch that gave `number`: a `CheckHandler`."""
        ...


KernelFunction: TypeAlias = int | DeviceLaunch
"""A built kernel: the address of a function of the uniform signature, or what queues it."""


@frozen
class Launch:
    """Call a kernel of the uniform signature.

    `int64_t f(void *const *buffers, const int64_t *sizes)` returns 0, or the 1-based number of
    the check that failed. With `device`, queue that kernel instead, with the same two lists;
    `address` is then not used, and `handler` gets the driver's error.
    """

    address: int
    buffers: tuple[Buffer, ...]
    sizes: tuple[Size, ...] = ()
    checks: tuple[tuple[type[BaseException], str], ...] = ()  # what check 1, 2, ... raises
    handler: CheckHandler | None = None  # where a message needs the data; wins over `checks`
    release_gil: bool = False  # about 50 ns; worth it from some 20 us of work
    name: str = ""  # for reports
    device: DeviceLaunch | None = None


def launch_of(
    function: KernelFunction,
    buffers: tuple[Buffer, ...],
    sizes: tuple[Size, ...],
    checks: tuple[tuple[type[BaseException], str], ...] = (),
    *,
    release_gil: bool = False,
    name: str = "",
) -> Launch:
    """Return the launch of a built kernel of either kind."""
    if isinstance(function, int):
        return Launch(function, buffers, sizes, checks, release_gil=release_gil, name=name)
    return Launch(0, buffers, sizes, handler=function.failure, name=name, device=function)


@frozen
class Reg:
    """An argument or result: the object in a register."""

    register: int


@frozen
class Const:
    """An argument or result: any Python object known now."""

    value: object


@frozen
class IntTuple:
    """An argument: a tuple of sizes, as `empty_strided` wants them."""

    items: tuple[Size, ...]


Value: TypeAlias = Reg | Const | IntTuple | Size


@frozen
class Call:
    """Call a Python callable; `target` None forgets the result. Static sizes cost nothing."""

    target: int | None
    function: Callable[..., object]
    args: tuple[Value, ...] = ()
    kwargs: tuple[tuple[str, Value], ...] = ()


@frozen
class Layout:
    """A strided tensor in the memory of another one."""

    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype
    offset: Size = 0
    """Bytes after the other's first element; a multiple of the element's size."""


@frozen
class TensorArg:
    """The tensor in a register, or one that lies in its memory and is made for the call."""

    register: int
    layout: Layout | None = None


@frozen
class Operate:
    """Call an operator that writes into its first tensor, by the quickest way there is.

    A runner may call the function at `address`, of libtorch's C ABI, with the tensors in order and
    then the numbers. Where that is 0, or where somebody watches (a dispatch mode, the profiler),
    or where an argument is a tensor of a subclass, it calls `function` instead: with the objects in
    the registers, and with offset, sizes and strides of each tensor that has a layout.
    """

    function: Callable[[tuple[Any, ...], tuple[int, ...]], object]
    tensors: tuple[TensorArg, ...]
    address: int = 0
    numbers: tuple[float, ...] = ()


@frozen
class Conform:
    """Check the tensor in a register against a layout and a device.

    Where something differs, or cannot be told without Python, the register gets what `function`
    returns for the object in it, and for the layout's sizes and then its strides.
    """

    register: int
    function: Callable[[object, tuple[int, ...]], object]
    layout: Layout
    device: torch.device


@frozen
class Separate:
    """See whether tensors in registers have storage that another of them, or one in `others`, has.

    If so, the registers get what `function` returns for the objects in them, and for `others`.
    """

    registers: tuple[int, ...]
    others: tuple[int, ...]
    function: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[object, ...]]


@frozen
class Drop:
    """Release a register."""

    register: int


@frozen
class GetItem:
    """`target = source[index]`, for an extern call with several results."""

    target: int
    source: int
    index: int


@frozen
class Move:
    """`target = source`; both then hold the object."""

    target: int
    source: int


@frozen
class Return:
    """End the plan with a tuple. A plan without one returns None."""

    values: tuple[Value, ...]


Instruction: TypeAlias = (
    Launch | Call | Operate | Conform | Separate | Drop | GetItem | Move | Return
)


@frozen
class PlanProgram:
    """A whole plan. `boxed`: called with one list, which it empties so that inputs can die early.

    `timed`: keeps calls, total and least nanoseconds for each launch.
    """

    n_args: int
    n_regs: int
    instructions: tuple[Instruction, ...]
    boxed: bool = False
    timed: bool = False

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches in order; row i of `Plan.timings()` belongs to launch i."""
        return tuple(i for i in self.instructions if isinstance(i, Launch))


def check_handler(launch: Launch) -> CheckHandler:
    """Return what makes the exception of a failed check of `launch`."""
    if launch.handler is not None:
        return launch.handler
    checks, name = launch.checks, launch.name

    def make(number: int, _buffers: tuple[object, ...], _sizes: tuple[int, ...]) -> BaseException:
        if 1 <= number <= len(checks):
            kind, message = checks[number - 1]
            return kind(message)
        where = f" of kernel {name}" if name else ""
        return RuntimeError(f"gyrator: check {number}{where} failed")

    return make
