"""Plans as data: the instructions that both runners execute.

A plan works on numbered registers of Python objects (the arguments of the call are registers
0 .. n_args-1) and computes sizes as 64-bit integers. Plans are straight-line code: a host program
with branches or loops calls several plans.

Instructions contain Python objects, for tests and measurements, or references. A plan with
references is pure data, and is linked with the objects that they name (`gyrator_runtime.plan`).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from attrs import field

from gyrator_ir.define import frozen
from gyrator_runtime.native.kernels import CheckHandler, Checks, KernelFunction
from gyrator_runtime.native.references import Reference
from gyrator_runtime.native.words import EXPR_DEPTH, EXPR_OPS


@frozen
class SizeArg:
    """The Python int in a register at the time when the size is first needed."""

    register: int


@frozen
class SizeProgram:
    """A postfix integer expression: `(("arg", 0), ("const", 2), ("mul", 0))` is `2 * r0`.

    `("arg", k)` pushes the int in register k, `("const", c)` pushes c. `("unless", n)` pops a value
    and skips the next n operations if it is 0; `("skip", n)` always skips them, as the other side
    of a choice. All other operations pop two values and push one: integers with Python's floor
    semantics, or 1 or 0 for comparisons. Results outside of 64 bits raise OverflowError, a zero
    divisor raises ZeroDivisionError.
    """

    code: tuple[tuple[str, int], ...] = field()

    @code.validator
    def _check(self, _: Any, code: tuple[tuple[str, int], ...]) -> None:
        depth = 0
        for at, (name, operand) in enumerate(code):
            if name in ("arg", "const"):
                depth += 1
            elif name in EXPR_OPS:
                # Only one side of a choice leaves a value on the stack.
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

    For a register that contains None, the kernel gets a null pointer.
    """

    register: int
    offset: Size = 0


@frozen
class Launch:
    """Run a kernel.

    A function of the uniform signature `int64_t f(void *const *buffers, const int64_t *sizes)`
    returns 0, or the 1-based number of the check that failed. A `DeviceLaunch` gets the same two
    lists and creates the exception of a failure itself.
    """

    kernel: KernelFunction | str
    """The kernel, or its name, which is resolved when the plan is linked."""
    buffers: tuple[Buffer, ...]
    sizes: tuple[Size, ...] = ()
    checks: Checks = ()
    handler: CheckHandler | None = (
        None  # for messages that need the data; takes precedence over `checks`
    )
    release_gil: bool = False  # costs about 50 ns; pays for kernels of at least about 20 us
    name: str = ""  # for reports
    overlap: bool = False  # a `DeviceLaunch` may start before the previous one ends


@frozen
class Reg:
    """An argument or result: the object in a register."""

    register: int


@frozen
class Const:
    """An argument or result: a constant Python object, or a reference to one."""

    value: object


@frozen
class IntTuple:
    """An argument: a tuple of sizes, for example for `empty_strided`."""

    items: tuple[Size, ...]


Value: TypeAlias = Reg | Const | IntTuple | Size


@frozen
class Call:
    """Call a Python callable. With `target` None, the result is discarded. An argument tuple that
    is static is built only once."""

    target: int | None
    function: Callable[..., object] | Reference
    args: tuple[Value, ...] = ()
    kwargs: tuple[tuple[str, Value], ...] = ()


@frozen
class Layout:
    """The layout of a strided tensor in the memory of another one."""

    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype
    offset: Size = 0
    """Byte offset from the other's first element; a multiple of the element size."""


@frozen
class TensorArg:
    """The tensor in a register, or with `layout`, one in its memory that is created for the
    call."""

    register: int
    layout: Layout | None = None


@frozen
class Operate:
    """Call an operator that writes to its first tensor, in the fastest way available.

    A runner may call the function of libtorch's C ABI that `operator` names, with the tensors in
    order followed by the numbers. If there is none, or a dispatch mode or the profiler observes
    operators, or an argument is of a tensor subclass, it calls `function` instead, with the objects
    in the registers, and the offset, sizes and strides of each tensor that has a layout.
    """

    function: Callable[[tuple[Any, ...], tuple[int, ...]], object] | Reference
    tensors: tuple[TensorArg, ...]
    operator: tuple[str, str] | None = None
    """One of `shim.OPERATORS`, and the device type."""
    numbers: tuple[float, ...] = ()


@frozen
class Conform:
    """Check the tensor in a register against a layout and a device.

    If it differs, or the check needs Python, the register is set to the result of `function` for
    its object and the layout's sizes followed by its strides.
    """

    register: int
    function: Callable[[object, tuple[int, ...]], object] | Reference
    layout: Layout
    device: torch.device


@frozen
class Separate:
    """Check whether tensors in registers share storage with each other or with one in `others`.

    If so, the registers are set to the results of `function` for their objects and `others`.
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
    """`target = source`; both registers then refer to the object."""

    target: int
    source: int


@frozen
class Return:
    """End the plan and return a tuple. A plan without `Return` returns None."""

    values: tuple[Value, ...]


Instruction: TypeAlias = (
    Launch | Call | Operate | Conform | Separate | Drop | GetItem | Move | Return
)


@frozen
class PlanProgram:
    """A complete plan.

    A `boxed` plan is called with one list, which it empties so that inputs can be freed early. A
    `timed` plan records the number of calls and the total and minimum time in ns of each launch.
    """

    n_args: int
    n_regs: int
    instructions: tuple[Instruction, ...]
    boxed: bool = False
    timed: bool = False
