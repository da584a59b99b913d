"""What a plan does, as data: the instructions that both runners execute.

A plan works on numbered registers that hold Python objects (the call's arguments are registers
0 .. n_args-1) and computes sizes as 64-bit integers. Straight line: a host program with branches
or loops calls several plans.

Instructions hold Python objects, as tests and measurements want them, or references: then the plan
is data, and is linked with what they name (`gyrator_runtime.plan`).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from attrs import field, frozen

from gyrator_runtime.native.kernels import CheckHandler, Checks, KernelFunction
from gyrator_runtime.native.references import Reference
from gyrator_runtime.native.words import EXPR_DEPTH, EXPR_OPS


@frozen
class SizeArg:
    """The Python int that a register holds when the size is first needed."""

    register: int


@frozen
class SizeProgram:
    """A postfix integer expression: `(("arg", 0), ("const", 2), ("mul", 0))` is `2 * r0`.

    `("arg", k)` pushes the int of register k, `("const", c)` pushes c. `("unless", n)` takes one,
    and where it is 0 the next n operations are left out; `("skip", n)` leaves them out always, for
    they are the other side of a choice. The others take two and push one: numbers with Python's
    floor semantics, comparisons 1 or 0. Results outside 64 bits raise OverflowError, a zero divisor
    ZeroDivisionError.
    """

    code: tuple[tuple[str, int], ...] = field()

    @code.validator
    def _check(self, _: Any, code: tuple[tuple[str, int], ...]) -> None:
        depth = 0
        for at, (name, operand) in enumerate(code):
            if name in ("arg", "const"):
                depth += 1
            elif name in EXPR_OPS:
                # What is skipped leaves a value where the other side of the choice has left one.
                depth -= 1
                if name in ("unless", "skip") and not 0 < operand < len(code) - at:
                    raise ValueError("a choice of a size program ends beyond the program")
            else:
                raise ValueError(f"unknown size operation {name!r}; known: {', '.join(EXPR_OPS)}")
            least = 0 if name in ("unless", "skip") else 1
            if not least <= depth <= EXPR_DEPTH:
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


@frozen
class Launch:
    """Run a kernel.

    A function of the uniform signature, `int64_t f(void *const *buffers, const int64_t *sizes)`,
    returns 0, or the 1-based number of the check that failed. What queues a kernel on a device gets
    the same two lists, and makes the exception of a failure itself.
    """

    kernel: KernelFunction | str
    """A name is that of a kernel that is not built yet: the plan is linked with it."""
    buffers: tuple[Buffer, ...]
    sizes: tuple[Size, ...] = ()
    checks: Checks = ()
    handler: CheckHandler | None = None  # where a message needs the data; wins over `checks`
    release_gil: bool = False  # about 50 ns; worth it from some 20 us of work
    name: str = ""  # for reports


@frozen
class Reg:
    """An argument or result: the object in a register."""

    register: int


@frozen
class Const:
    """An argument or result: any Python object known now, or what stands for one."""

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
    function: Callable[..., object] | Reference
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

    A runner may call the function of libtorch's C ABI that `operator` names, with the tensors in
    order and then the numbers. Where there is none, or where somebody watches (a dispatch mode, the
    profiler), or where an argument is a tensor of a subclass, it calls `function` instead: with the
    objects in the registers, and with offset, sizes and strides of each tensor that has a layout.
    """

    function: Callable[[tuple[Any, ...], tuple[int, ...]], object] | Reference
    tensors: tuple[TensorArg, ...]
    operator: tuple[str, str] | None = None
    """One of `shim.OPERATORS`, and the type of the device."""
    numbers: tuple[float, ...] = ()


@frozen
class Conform:
    """Check the tensor in a register against a layout and a device.

    Where something differs, or cannot be told without Python, the register gets what `function`
    returns for the object in it, and for the layout's sizes and then its strides.
    """

    register: int
    function: Callable[[object, tuple[int, ...]], object] | Reference
    layout: Layout
    device: torch.device


@frozen
class Separate:
    """See whether tensors in registers have storage that another of them, or one in `others`, has.

    If so, the registers get what `function` returns for the objects in them, and for `others`.
    """

    registers: tuple[int, ...]
    others: tuple[int, ...]
    function: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[object, ...]] | Reference


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

    `timed`: keeps calls, total and least nanoseconds for each launch, in order.
    """

    n_args: int
    n_regs: int
    instructions: tuple[Instruction, ...]
    boxed: bool = False
    timed: bool = False
