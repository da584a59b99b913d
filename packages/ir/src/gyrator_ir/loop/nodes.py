"""Loop IR: one operation per ATen op, with a traced body and no scheduling decisions.

A node validates only its own fields. Properties that depend on context (definition before use,
matching types, addresses inside their buffers) are checked by `gyrator_ir.loop.verify`, which runs
at every stage boundary.
"""

from collections.abc import Iterable
from enum import StrEnum
from types import NoneType

from attrs import field

from gyrator_ir.body.nodes import Axis, Reduce, ScanStep, SortStep, Statement, Store
from gyrator_ir.checks import a_tuple, bits, exactly, identifier, instance_of, natural
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Cond, Const, Expr, ShapeFacts, Sym
from gyrator_ir.modes import Failure
from gyrator_ir.provenance import Origin
from gyrator_ir.text.shown import Shown
from gyrator_ir.types import Device, DType

_PARTS = Const(2)


@frozen
class Buffer:
    """`x: f32[4, 8] strides [8, 1] on cpu`: a strided tensor that owns its storage from offset 0.

    The storage spans `1 + sum((shape[d] - 1) * strides[d])` elements, or none if a size is 0.
    Bodies address a complex buffer through its real view, `parts`.
    """

    name: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    device: Device = field(validator=exactly(Device))
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    strides: tuple[Expr, ...] = field(validator=a_tuple)

    @property
    def parts(self) -> "Buffer":
        """The buffer as bodies address it. A complex buffer is viewed as real, with interleaved
        real and imaginary parts along an extra last axis; any other buffer is itself."""
        if not self.dtype.is_complex:
            return self
        strides = tuple(s * 2 for s in self.strides)
        return Buffer(
            self.name, self.dtype.part, self.device, (*self.shape, _PARTS), (*strides, ONE)
        )


@frozen
class TensorRef:
    """A strided view of a buffer, as an argument of a call or a result of the program.

    `shape`, `strides` and `offset` count elements of `dtype`, which may differ from the buffer's
    (a bit view); the offset is from the start of the buffer.
    """

    buffer: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    strides: tuple[Expr, ...] = field(validator=a_tuple)
    offset: Expr = field(validator=instance_of(Expr))
    twin: int = field(default=0, validator=natural)
    """Which of the objects it is that a program returns for one view: equal results are one object,
    so that a caller who resizes it changes all of them."""


@frozen
class Literal:
    """A constant argument of a call: None, a Python scalar or a string."""

    value: bool | int | float | complex | str | None = field(
        validator=exactly(NoneType, bool, int, float, complex, str), eq=bits
    )


@frozen
class TypeArg:
    """A dtype, device, layout or memory format as an argument: `kind` says which."""

    kind: str = field(validator=exactly(str))
    value: str = field(validator=exactly(str))
    """torch's name without `torch.`: `float32`, `cpu`, `strided`, `channels_last`."""


@frozen
class ListArg:
    """A list argument."""

    items: tuple["Arg", ...] = field(validator=a_tuple)


Arg = TensorRef | Literal | TypeArg | ListArg | Expr
"""An argument of a call. An `Expr` is an integer that is computed at run time."""


# Inputs and results of a program ------------------------------------------------------------


@frozen
class TensorInput:
    """A tensor parameter; its buffer's shape and strides hold for every call."""

    buffer: Buffer = field(validator=exactly(Buffer))
    packed: bool = field(default=False, validator=exactly(bool))
    """The elements are in a library's private packed format: only calls to that library can read
    the tensor, and its layout cannot be checked."""


@frozen
class SizeInput:
    """An integer parameter that binds a size symbol, or checks that it equals `expr`."""

    expr: Expr = field(validator=instance_of(Expr))
    name: str = field(validator=identifier)


@frozen
class OpaqueInput:
    """A parameter that is only passed on to calls (a generator, process group or Python number)."""

    name: str = field(validator=identifier)


Input = TensorInput | SizeInput | OpaqueInput


@frozen
class Constant:
    """A tensor that is part of the program: the attribute `key` of the graph module."""

    buffer: Buffer = field(validator=exactly(Buffer))
    key: str = field(validator=exactly(str))


Output = TensorRef | Expr | Literal
"""A result: a tensor, an integer, or a constant (None, a number)."""


# Operations ---------------------------------------------------------------------------------


@frozen
class Pointwise:
    """Run `body`, which ends in stores, independently for every point of `axes`."""

    name: str = field(validator=identifier)
    axes: tuple[Axis, ...] = field(validator=a_tuple)
    body: tuple[Statement, ...] = field(validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class Scatter:
    """A pointwise operation whose stores may collide: indirect addresses, atomic modes.

    Stores update buffers that are already initialised; elements not stored to keep their values.
    """

    name: str = field(validator=identifier)
    axes: tuple[Axis, ...] = field(validator=a_tuple)
    body: tuple[Statement, ...] = field(validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class Reduction:
    """For every point of `axes`, reduce the values that `body` computes over `inner`, and store the
    results.

    Reducing an empty `inner` range gives the identity of the reduction.
    """

    name: str = field(validator=identifier)
    axes: tuple[Axis, ...] = field(validator=a_tuple)
    inner: tuple[Axis, ...] = field(validator=a_tuple)
    body: tuple[Statement, ...] = field(validator=a_tuple)
    reduce: Reduce = field(validator=exactly(Reduce))
    stores: tuple[Store, ...] = field(validator=a_tuple)
    """Stores of the results; their addresses use symbols of `axes` only."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class Scan:
    """For every point of `axes`, a prefix scan of the value of `body` along the axis `inner`."""

    name: str = field(validator=identifier)
    axes: tuple[Axis, ...] = field(validator=a_tuple)
    inner: Axis = field(validator=exactly(Axis))
    body: tuple[Statement, ...] = field(validator=a_tuple)
    scan: ScanStep = field(validator=exactly(ScanStep))
    stores: tuple[Store, ...] = field(validator=a_tuple)
    """Stores at every point of `axes` and `inner`."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class Sort:
    """For every point of `axes`, sort the values of `body` along the axis `inner`."""

    name: str = field(validator=identifier)
    axes: tuple[Axis, ...] = field(validator=a_tuple)
    inner: Axis = field(validator=exactly(Axis))
    body: tuple[Statement, ...] = field(validator=a_tuple)
    sort: SortStep = field(validator=exactly(SortStep))
    stores: tuple[Store, ...] = field(validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


_ACCUMULATING = frozenset({"aten.addmm.default", "aten.baddbmm.default"})


@frozen
class Extern:
    """A call of any dispatcher op, with arguments according to its schema.

    `results` has one entry per return of the schema: the buffer that receives it, a tuple of
    buffers for a tensor list, a symbol for an integer, or None if the return is unused or
    undefined. With `out`, the result buffers are allocated beforehand and passed to the out-variant
    of the overload. Without it, an unbacked symbol that first occurs in the size of a result is
    bound by the call.
    """

    name: str = field(validator=identifier)
    target: str = field(validator=exactly(str))
    """Overload, `aten.mm.default`; always that of the functional form, even if `out` is set."""
    args: tuple[Arg, ...] = field(validator=a_tuple)
    kwargs: tuple[tuple[str, Arg], ...] = field(validator=a_tuple)
    results: tuple[str | tuple[str, ...] | Sym | None, ...] = field(validator=a_tuple)
    out: str | None = field(default=None, validator=exactly(str, type(None)))
    """Overload with `out=` arguments, `aten.mm.out`."""
    out_names: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Keyword of each result in the out-variant."""
    mutates: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Buffers among the arguments that the call writes."""
    reason: str = field(default="", validator=exactly(str))
    """Why this is a call and not a kernel: `library` for a dense product or attention, otherwise a
    sentence that `gyrator explain` prints."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)
    uncaptured: str = field(default="", validator=exactly(str))
    """Why the call cannot be captured in a device graph; empty if it can."""

    @property
    def accumulator(self) -> str | None:
        """The buffer whose storage the result may reuse because ATen can accumulate in place."""
        first = self.args[0] if self.args else None
        if self.target not in _ACCUMULATING or self.out is None or type(first) is not TensorRef:
            return None
        again = any(type(a) is TensorRef and a.buffer == first.buffer for a in self.args[1:])
        return None if again else first.buffer


class TemplateKind(StrEnum):
    """Dense computations for which kernel backends may have a template."""

    ATTENTION = "attention"
    """Scaled-dot-product attention, `softmax(scale * q k^T + mask) v`, computed in `f32`.

    Inputs: q [B, H, L, E], k [B, G, S, E] and v [B, G, S, F] of one element type, where query head
    h attends to key head `h // (H // G)`; optionally a mask [B, H, L, S], either booleans (true
    where a row may attend) or numbers to add to the scores. Outputs: [B, H, L, F] of the same type,
    0 in fully masked rows; optionally the log-sum-exp of the scores, `f32` [B, H, P] with P >= L
    and infinity beyond L. Attributes: `scale`, a number, and `causal`: row l attends only to
    columns s <= l.
    """
    ATTENTION_GRADIENTS = "attention_gradients"
    """The gradients of attention with respect to queries, keys and values.

    Inputs: q, k and v as above, the gradient of the result [B, H, L, F] of their type, and in `f32`
    the log-sum-exp [B, H, P] of the forward pass and the dot product of each row of the result with
    its gradient [B, H, L]; optionally the mask. Outputs: like q, k and v. Attributes as above.
    """
    FLEX_ATTENTION = "flex_attention"
    """Block-sparse attention with user-defined formulas applied to the scores `scale * q k^T`.

    Inputs: q, k and v as above. Then, in `i32`, for each of the X blocks of `row_block` rows of a
    head, the number of blocks of `column_block` columns that it attends to [B, H, X], and their
    indices [B, H, X, N]; with two `lists`, the same two for blocks that need no mask; without
    lists, rows attend to all blocks. Then the tensors that formulas load from. Formulas: `score`,
    which maps a `score` to a new one, and `mask`, which has no parameters and is true where a row
    attends; it does not apply to the blocks of the second list. Outputs: [B, H, L, F], 0 in fully
    masked rows; optionally, in `f32`, the base-2 log-sum-exp of each row's scores, and each row's
    largest score divided by log 2. Attributes: `scale`, `row_block`, `column_block`, `lists`.
    """
    FLEX_ATTENTION_PARTS = "flex_attention_parts"
    """Flexible attention over each of P parts of the columns (split-KV), for few rows that attend
    to many columns.

    Inputs, formulas and attributes as above, and two more attributes: `parts` is P, and `together`
    is the number of query heads with the same keys and the same blocks that may be packed as rows
    of one block; if it is more than 1, L is a constant of at most `row_block`. Each block is cut
    into pieces of `gcd(column_block, 128)` columns; a block of 2**20 columns or more spans all
    existing columns, and only those are cut. Of the n pieces listed for a block of rows, part p
    takes those from `n * p // P` to `n * (p + 1) // P`, counted separately for each list. Outputs
    as above, with a leading dimension of P, all in `f32`; the log-sum-exp is not optional.
    """
    FLEX_ATTENTION_GRADIENTS = "flex_attention_gradients"
    """The gradients of flexible attention with respect to queries, keys and values.

    Inputs: q, k and v, the gradient of the result, the base-2 log-sum-exp [B, H, L], and the dot
    product of each row of the result with its gradient [B, H, L]. Then the blocks of columns that
    each block of rows attends to, as above, and, in the same form, the blocks of rows that attend
    to each block of columns. Then the tensors that formulas load from. Formulas: `score` and `mask`
    as above, and `slope`, which maps a `score` and the gradient (`slope`) of the modified score to
    the gradient of the score. Outputs: like q, k and v. Attributes as above.
    """
    CONVOLUTION = "convolution"
    """A convolution of channels-last images in `f32`, and what often follows it.

    Inputs: images [N, H, W, C], the weight in panels of F features [P, K, L, C, F], and the bias
    [P * F]; optionally images of the output's shape, which are added. Output: [N, X, Y, G] with the
    first G features, which leave no panel unused, where window (x, y) begins at row
    `x * down - top` and column `y * right - left`, and elements outside of the image are 0.
    Attributes: `down`, `right`, `top` and `left`. Formula: `after`, the
    function of a sum that is stored; it loads nothing.
    """
    DEPTHWISE = "depthwise"
    """A convolution of each channel of channels-last images in `f32` separately.

    Inputs: an image [N, H, W, C], the weight [K, L, C], and optionally the bias [C]. Output:
    [N, X, Y, C], where the window of (x, y) has the rows `x * down - top + k * below` and the
    columns `y * right - left + l * beside`, and elements outside of the image are left out.
    Attributes: `down`, `right`, `top`, `left`, `below` and `beside`. Formula: `after`, as above.
    """


@frozen
class Formula:
    """`formula mask () -> v2`: a scalar computation that a template runs for each score.

    Its statements use the batch `i0`, the head `i1`, the row `i2` and the column `i3`, and load
    from buffers of the template's inputs.
    """

    name: str = field(validator=identifier)
    parameters: tuple[str, ...] = field(validator=a_tuple)
    """Names of the `f32` values that the template passes in."""
    body: tuple[Statement, ...] = field(validator=a_tuple)
    result: str = field(validator=identifier)


@frozen
class Template:
    """A dense computation whose kernel a backend generates from a template."""

    name: str = field(validator=identifier)
    kind: TemplateKind = field(validator=exactly(TemplateKind))
    inputs: tuple[TensorRef, ...] = field(validator=a_tuple)
    outputs: tuple[TensorRef, ...] = field(validator=a_tuple)
    """Each covers a whole buffer, and no two share one."""
    attributes: tuple[tuple[str, Arg], ...] = field(validator=a_tuple)
    """The attributes that the kind requires."""
    fallback: Extern | None = field(validator=exactly(Extern, NoneType))
    """The library call that computes the same buffers, for targets without the template. Its
    arguments may differ from `inputs`, and count as reads. None for kinds that no library has."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)
    formulas: tuple[Formula, ...] = field(default=(), validator=a_tuple)
    """The formulas that the kind requires."""


@frozen
class UserKernel:
    """The source text of a user-written Triton kernel, and its compile options."""

    key: str = field(validator=exactly(str))
    source: str = field(validator=exactly(str))
    parameters: tuple[str, ...] = field(validator=a_tuple)
    settings: tuple[tuple[str, int], ...] = field(default=(), validator=a_tuple)
    """`num_warps`, `num_stages`, ..."""


@frozen
class UserTritonKernel:
    """A launch of a user-written Triton kernel. `kernel` is a key into the program's
    `user_kernels`; `constants` are compile-time arguments."""

    name: str = field(validator=identifier)
    kernel: str = field(validator=exactly(str))
    grid: tuple[tuple[Expr, ...], ...] = field(validator=a_tuple)
    args: tuple[tuple[str, Arg], ...] = field(validator=a_tuple)
    constants: tuple[tuple[str, Arg], ...] = field(validator=a_tuple)
    mutates: tuple[str, ...] = field(validator=a_tuple)
    descriptors: tuple[tuple[str, Arg], ...] = field(default=(), validator=a_tuple)
    """Arguments that are passed as tensor descriptors, each with the list of its block's sizes."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class CollectiveCall:
    """Start a collective of a process group; a `CollectiveWait` must precede reads of results."""

    name: str = field(validator=identifier)
    target: str = field(validator=exactly(str))
    """`_c10d_functional.all_reduce.default`."""
    args: tuple[Arg, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)
    mutates: tuple[str, ...] = field(default=(), validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class CollectiveWait:
    """Wait until the collective that fills `buffer` is done."""

    name: str = field(validator=identifier)
    buffer: str = field(validator=identifier)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class DeviceCopy:
    """Copy a tensor to a buffer of the same shape on another device."""

    name: str = field(validator=identifier)
    source: TensorRef = field(validator=exactly(TensorRef))
    destination: str = field(validator=identifier)
    non_blocking: bool = False
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class ScalarRead:
    """Bind `symbol` to the value of a one-element tensor, waiting for its device."""

    name: str = field(validator=identifier)
    source: TensorRef = field(validator=exactly(TensorRef))
    symbol: Sym = field(validator=exactly(Sym))
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class AssertCond:
    """Raise `error` with `message` unless the condition on sizes holds."""

    name: str = field(validator=identifier)
    condition: Cond = field(validator=instance_of(Cond))
    message: str = field(validator=exactly(str))
    error: Failure = field(default=Failure.RUNTIME, validator=exactly(Failure), kw_only=True)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class CondOp:
    """Run one of two subprograms with the same operands; both return the same kinds of results."""

    name: str = field(validator=identifier)
    predicate: TensorRef | Cond = field(validator=instance_of(TensorRef, Cond))
    then: str = field(validator=exactly(str))
    otherwise: str = field(validator=exactly(str))
    operands: tuple[Arg, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class WhileOp:
    """While the subprogram `condition` returns true, replace the carried operands by the results of
    the subprogram `body`. Both take the carried operands, then `invariants`.

    The results are the final carried values. If `stacked`, they are the values of all iterations,
    stacked along a new first dimension, or only the initial operands if `body` never runs.
    """

    name: str = field(validator=identifier)
    condition: str = field(validator=exactly(str))
    body: str = field(validator=exactly(str))
    carried: tuple[Arg, ...] = field(validator=a_tuple)
    invariants: tuple[Arg, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)
    stacked: bool = field(default=False, validator=exactly(bool))
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class RepeatOp:
    """Replace the carried operands by the results of the subprogram `body`, `count` times.

    `body` takes the iteration number, counted from 0, then the carried operands, then `operands`,
    then `stacks`: buffers that exist before the first iteration and that `body` fills. It must not
    write to any other buffer of its caller.
    """

    name: str = field(validator=identifier)
    count: Expr = field(validator=instance_of(Expr))
    body: str = field(validator=exactly(str))
    carried: tuple[Arg, ...] = field(validator=a_tuple)
    operands: tuple[Arg, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)
    """The final carried values."""
    stacks: tuple[str, ...] = field(default=(), validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class CallOp:
    """Run a subprogram, so that a repeated region of the graph is compiled only once."""

    name: str = field(validator=identifier)
    program: str = field(validator=exactly(str))
    operands: tuple[Arg, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


LoopOperation = Pointwise | Scatter | Reduction | Scan | Sort
"""Operations that become kernels."""

CallOperation = (
    Extern
    | Template
    | UserTritonKernel
    | CollectiveCall
    | CollectiveWait
    | DeviceCopy
    | ScalarRead
    | AssertCond
    | CondOp
    | WhileOp
    | RepeatOp
    | CallOp
)
"""Operations that the host program executes."""

Operation = LoopOperation | CallOperation


def declared(
    inputs: Iterable[Input], constants: Iterable[Constant], created: Iterable[Buffer]
) -> tuple[Buffer, ...]:
    """Return inputs, constants and created buffers, in that order."""
    tensors = (i.buffer for i in inputs if isinstance(i, TensorInput))
    return (*tensors, *(c.buffer for c in constants), *created)


@frozen
class LoopProgram(Shown):
    """The output of lowering and the input of the scheduler.

    Operations run in order, and a read sees all preceding writes. A buffer is written by one
    operation, except that `Scatter`, mutating calls and stores to inputs update existing buffers.
    """

    name: str = field(validator=identifier)
    inputs: tuple[Input, ...] = field(validator=a_tuple)
    constants: tuple[Constant, ...] = field(validator=a_tuple)
    buffers: tuple[Buffer, ...] = field(validator=a_tuple)
    """Buffers that operations create, in order of creation."""
    operations: tuple[Operation, ...] = field(validator=a_tuple)
    outputs: tuple[Output, ...] = field(validator=a_tuple)
    facts: ShapeFacts = field(factory=ShapeFacts, validator=instance_of(ShapeFacts))
    origins: tuple[Origin, ...] = field(default=(), validator=a_tuple)
    subprograms: tuple["LoopProgram", ...] = field(default=(), validator=a_tuple)
    user_kernels: tuple[UserKernel, ...] = field(default=(), validator=a_tuple)

    @property
    def all_buffers(self) -> tuple[Buffer, ...]:
        """Inputs, constants and created buffers, in that order."""
        return declared(self.inputs, self.constants, self.buffers)
