"""Loop IR: one operation an ATen op, traced bodies, and no policy.

A node checks what it can see alone. What needs the surroundings (defined before use, types that
agree, addresses inside their buffers) belongs to `gyrator_ir.loop.verify`, which runs at every
stage border.
"""

from enum import StrEnum
from types import NoneType

from attrs import field, frozen

from gyrator_ir.body.nodes import Axis, Reduce, ScanStep, SortStep, Statement, Store
from gyrator_ir.checks import a_tuple, bits, exactly, identifier, instance_of
from gyrator_ir.expr import ONE, Cond, Const, Expr, ShapeFacts, Sym
from gyrator_ir.provenance import Origin
from gyrator_ir.text.shown import Shown
from gyrator_ir.types import Device, DType

_PARTS = Const(2)


@frozen
class Buffer:
    """`x: f32[4, 8] strides [8, 1] on cpu`: a strided tensor that owns its storage from offset 0.

    The storage spans `1 + sum((shape[d] - 1) * strides[d])` elements, or none if a size is 0.
    Bodies address a complex buffer as `parts` says.
    """

    name: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    device: Device = field(validator=exactly(Device))
    shape: tuple[Expr, ...] = field(validator=a_tuple)
    strides: tuple[Expr, ...] = field(validator=a_tuple)

    @property
    def parts(self) -> "Buffer":
        """The buffer as bodies address it: a complex one has real and imaginary parts in turn
        along one more axis; others are as they are."""
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
"""An argument of a call. An `Expr` is an integer known at run time."""


# Inputs and results of a program ------------------------------------------------------------


@frozen
class TensorInput:
    """A tensor parameter; its buffer's shape and strides hold for every call."""

    buffer: Buffer = field(validator=exactly(Buffer))
    packed: bool = field(default=False, validator=exactly(bool))
    """Its elements lie as some library packs them: calls of that alone can read it, and nothing can
    check its layout."""


@frozen
class SizeInput:
    """An integer parameter that binds a size symbol, or checks that it equals `expr`."""

    expr: Expr = field(validator=instance_of(Expr))
    name: str = field(validator=identifier)


@frozen
class OpaqueInput:
    """A parameter that only calls use (a generator, a process group, a Python number)."""

    name: str = field(validator=identifier)


Input = TensorInput | SizeInput | OpaqueInput


@frozen
class Constant:
    """A tensor that the program carries with it: an attribute `key` of the graph module."""

    buffer: Buffer = field(validator=exactly(Buffer))
    key: str = field(validator=exactly(str))


Output = TensorRef | Expr | Literal
"""A result: a tensor, an integer, or a constant (None, a number)."""


# Operations ---------------------------------------------------------------------------------


@frozen
class Pointwise:
    """For every point of `axes`, independently: run `body`, which ends in stores."""

    name: str = field(validator=identifier)
    axes: tuple[Axis, ...] = field(validator=a_tuple)
    body: tuple[Statement, ...] = field(validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class Scatter:
    """A pointwise operation whose stores may meet: indirect addresses, atomic modes.

    Stores go to buffers that already hold values, which stay where nothing is stored.
    """

    name: str = field(validator=identifier)
    axes: tuple[Axis, ...] = field(validator=a_tuple)
    body: tuple[Statement, ...] = field(validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class Reduction:
    """For every point of `axes`: run `body` at every point of `inner`, fold, store the results.

    An empty `inner` range gives the fold's identity.
    """

    name: str = field(validator=identifier)
    axes: tuple[Axis, ...] = field(validator=a_tuple)
    inner: tuple[Axis, ...] = field(validator=a_tuple)
    body: tuple[Statement, ...] = field(validator=a_tuple)
    reduce: Reduce = field(validator=exactly(Reduce))
    stores: tuple[Store, ...] = field(validator=a_tuple)
    """Stores of the fold's results; addresses over `axes`."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class Scan:
    """For every point of `axes`: a running fold of `body`'s value along `inner` (one axis)."""

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
    """For every point of `axes`: sort `body`'s value along `inner` (one axis)."""

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
    """A call of any dispatcher op by its schema.

    `results` has an entry for each return of the schema: the buffer that receives it, a tuple of
    buffers for a tensor list, a symbol for an integer, None for a return that is not used or is
    undefined. With `out`, the overload's out-variant takes the result buffers, allocated before;
    without, a size of a result that is an unbacked symbol not known before is known from then on.
    """

    name: str = field(validator=identifier)
    target: str = field(validator=exactly(str))
    """Overload, `aten.mm.default`; of the functional form, also when `out` is given."""
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
    """Why this is a call and not a kernel: `library` for a dense product or attention, else a
    sentence that `gyrator explain` shows."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)
    uncaptured: str = field(default="", validator=exactly(str))
    """Why no device graph can hold the call; empty where one can."""

    @property
    def accumulator(self) -> str | None:
        """The buffer whose storage the result may take over: ATen adds to it in place."""
        first = self.args[0] if self.args else None
        if self.target not in _ACCUMULATING or self.out is None or type(first) is not TensorRef:
            return None
        again = any(type(a) is TensorRef and a.buffer == first.buffer for a in self.args[1:])
        return None if again else first.buffer


class TemplateKind(StrEnum):
    """Dense computations that backends have templates for."""

    ATTENTION = "attention"
    """Scaled-dot-product attention, `softmax(scale * q k^T + mask) v`, computed in `f32`.

    Inputs: q [B, H, L, E], k [B, G, S, E] and v [B, G, S, F] of one element type, where query head
    h looks at head `h // (H // G)`; optionally a mask [B, H, L, S], booleans that say where to look
    or numbers that are added to the scores. Outputs: [B, H, L, F] of that type, 0 in rows that look
    nowhere; optionally the logarithm of the sum of the exponentials of the scores, `f32` [B, H, P]
    with P >= L, infinity beyond L. Attributes: `scale`, a number, and `causal`, whether row l looks
    at columns s <= l alone.
    """
    ATTENTION_GRADIENTS = "attention_gradients"
    """The gradients of attention's queries, keys and values.

    Inputs: q, k and v as above, the gradient of the result [B, H, L, F] of their type, and in `f32`
    the logarithms that attention gave [B, H, P], and for each row the product of the result and
    its gradient [B, H, L]; optionally the mask. Outputs: like q, k and v. Attributes as above.
    """
    FLEX_ATTENTION = "flex_attention"
    """Attention whose scores are what formulas make of `scale * q k^T`, over blocks of them.

    Inputs: q, k and v as above. Then, `i32`, for each block of `row_block` rows of a head, X of
    them, how many blocks of `column_block` columns it looks at [B, H, X], and which [B, H, X, N];
    with `full`, the same for blocks that are looked at whole. Then what formulas load from.
    Formulas: `score`, given a `score`, and `mask`, given nothing, which says where the rows of a
    block that is not full look. Outputs: [B, H, L, F], 0 in rows that look nowhere; optionally, in
    `f32`, for each row the logarithm to base 2 of the sum of the exponentials of its scores, and
    its largest score divided by log 2. Attributes: `scale`, `row_block`, `column_block`, `full`.
    """
    FLEX_ATTENTION_GRADIENTS = "flex_attention_gradients"
    """The gradients of flexible attention's queries, keys and values.

    Inputs: q, k and v, the gradient of the result, the logarithms to base 2 [B, H, L], and for each
    row the product of the result and its gradient [B, H, L]. Then which blocks of columns each
    block of rows looks at, as above, and then, in the same form, which blocks of rows look at each
    block of columns. Then what formulas load from. Formulas: `score` and `mask` as above, and
    `slope`, given a `score` and the `slope` of what becomes of it, its slope. Outputs: like q, k
    and v. Attributes as above.
    """


@frozen
class Formula:
    """`formula mask () -> v2`: what a template computes at each place of its scores.

    Its statements are over the batch `i0`, the head `i1`, the row `i2` and the column `i3`; they
    load from buffers of the template's inputs.
    """

    name: str = field(validator=identifier)
    given: tuple[str, ...] = field(validator=a_tuple)
    """Names of values in `f32`."""
    body: tuple[Statement, ...] = field(validator=a_tuple)
    result: str = field(validator=identifier)


@frozen
class Template:
    """A dense computation whose kernel a backend generates from a template."""

    name: str = field(validator=identifier)
    kind: TemplateKind = field(validator=exactly(TemplateKind))
    inputs: tuple[TensorRef, ...] = field(validator=a_tuple)
    outputs: tuple[TensorRef, ...] = field(validator=a_tuple)
    """Each of a buffer of its own, which it covers."""
    attributes: tuple[tuple[str, Arg], ...] = field(validator=a_tuple)
    """Numbers that the kind needs."""
    fallback: Extern | None = field(validator=exactly(Extern, NoneType))
    """The library call that gives the same buffers, for targets without the template. Its
    arguments may be others: they count as read. None for kinds that no library has."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)
    formulas: tuple[Formula, ...] = field(default=(), validator=a_tuple)
    """What the kind asks for."""


@frozen
class UserKernel:
    """The text of a Triton kernel that the user wrote, and how it is compiled."""

    key: str = field(validator=exactly(str))
    source: str = field(validator=exactly(str))
    parameters: tuple[str, ...] = field(validator=a_tuple)
    settings: tuple[tuple[str, int], ...] = field(default=(), validator=a_tuple)
    """`num_warps`, `num_stages`, ..."""


@frozen
class UserTritonKernel:
    """A launch of a Triton kernel that the user wrote. `kernel` is a key of the program's
    table of such kernels; constants are compile-time arguments."""

    name: str = field(validator=identifier)
    kernel: str = field(validator=exactly(str))
    grid: tuple[tuple[Expr, ...], ...] = field(validator=a_tuple)
    args: tuple[tuple[str, Arg], ...] = field(validator=a_tuple)
    constants: tuple[tuple[str, Arg], ...] = field(validator=a_tuple)
    mutates: tuple[str, ...] = field(validator=a_tuple)
    descriptors: tuple[tuple[str, Arg], ...] = field(default=(), validator=a_tuple)
    """Arguments that the kernel gets as descriptors of tensors, each with the list of the sizes of
    its block."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class CollectiveCall:
    """Start a collective of a process group; the results may be read after a `CollectiveWait`."""

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
    """Copy a tensor to a buffer on another device, of equal shape."""

    name: str = field(validator=identifier)
    source: TensorRef = field(validator=exactly(TensorRef))
    destination: str = field(validator=identifier)
    non_blocking: bool = False
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class ScalarRead:
    """Bind `symbol` to the value of a one-element tensor: waits for its device."""

    name: str = field(validator=identifier)
    source: TensorRef = field(validator=exactly(TensorRef))
    symbol: Sym = field(validator=exactly(Sym))
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class AssertCond:
    """Raise RuntimeError with `message` unless the condition on sizes holds."""

    name: str = field(validator=identifier)
    condition: Cond = field(validator=instance_of(Cond))
    message: str = field(validator=exactly(str))
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class CondOp:
    """Run one of two subprograms with the same operands; both give the same kinds of results."""

    name: str = field(validator=identifier)
    predicate: TensorRef | Cond = field(validator=instance_of(TensorRef, Cond))
    then: str = field(validator=exactly(str))
    otherwise: str = field(validator=exactly(str))
    operands: tuple[Arg, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class WhileOp:
    """While the subprogram `condition` gives true, replace the carried operands by what `body`
    gives; `invariants` are passed to both, after the carried ones.

    The results are the last carried ones; if `stacked`, all that `body` gave, in order along a new
    first dimension, or where it never ran, the operands alone.
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
    """For each of `count` steps, replace the carried operands by what `body` gives.

    `body` takes the number of the step, which is counted from 0, then the carried operands, then
    `operands`, then `stacks`: buffers that exist before the first step and that it fills. It must
    not write any other.
    """

    name: str = field(validator=identifier)
    count: Expr = field(validator=instance_of(Expr))
    body: str = field(validator=exactly(str))
    carried: tuple[Arg, ...] = field(validator=a_tuple)
    operands: tuple[Arg, ...] = field(validator=a_tuple)
    results: tuple[str, ...] = field(validator=a_tuple)
    """The last carried ones."""
    stacks: tuple[str, ...] = field(default=(), validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)


@frozen
class CallOp:
    """Run a subprogram: a region that occurs several times is compiled once."""

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
"""Operations that the host program carries out."""

Operation = LoopOperation | CallOperation


@frozen
class LoopProgram(Shown):
    """What lowering hands to the scheduler.

    Operations run in order. A buffer is written by one operation, except that `Scatter`, mutating
    calls and stores to inputs write what exists; a reader sees the writes that precede it.
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
        given = tuple(i.buffer for i in self.inputs if isinstance(i, TensorInput))
        return given + tuple(c.buffer for c in self.constants) + self.buffers
