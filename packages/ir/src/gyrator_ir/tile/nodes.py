"""Tile IR: a kernel together with every machine-specific decision about how it runs.

A `TiledKernel` states the loop nest of a kernel, which loops are parallel, the vector or block
size, how reductions accumulate, and which data is staged in fast memory. Kernel languages only
print it; they make no decisions of their own.

`loops` are nested, outermost first. Each iterates in steps over one axis, or over several axes
flattened into one (row-major). An axis may be tiled by several loops, where an inner loop iterates
within a step of the enclosing one:

    grid (i0)                     one unit of parallel work per row of a softmax,
    loop (r0) by 16               processed in vectors of 16 elements

    grid (i0, i1) by XBLOCK       one unit per XBLOCK points,
    loop (r0) by RBLOCK           whose rows are processed in blocks of RBLOCK

    grid (i0) by 512              a column reduction: strips of 512 points,
    loop (r0)                     row by row
    loop (i0) by 16               in vectors

A step of the innermost loop of an axis is computed at once: as a vector, or as one side of a block.
All stages share the grid loops and the loops before the first one over an inner axis. Of the
remaining loops, each stage has its own copy of those over its axes: all of them for an INNER stage,
only those over points for an OUTER stage. A value that a stage defines for later stages is stored
for each point in a step of the shared loops.
"""

from enum import StrEnum

from attrs import field

from gyrator_ir.checks import a_tuple, exactly, identifier, instance_of, natural
from gyrator_ir.define import frozen
from gyrator_ir.expr import ZERO, Expr, ShapeFacts, Sym, sum_of
from gyrator_ir.kernel.nodes import Kernel, TemplateKernel
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Configuration
from gyrator_ir.text.shown import Shown
from gyrator_ir.types import Device, DType


class LoopKind(StrEnum):
    """Whether the steps of a loop run in parallel."""

    GRID = "grid"
    """Steps are units of parallel work: programs of a device, or work distributed among threads.
    Grid loops precede all others; the units of the last one are numbered fastest."""
    LOOP = "loop"
    """Steps run one after another."""


@frozen
class Loop:
    """`loop (r0, r1) by RBLOCK`: a loop over flattened axes, the last varying fastest.

    A loop without axes, as a kernel with a single point has, runs once.
    """

    kind: LoopKind = field(validator=exactly(LoopKind))
    axes: tuple[Sym, ...] = field(validator=a_tuple)
    step: int | str = field(default=1, validator=exactly(int, str))
    """Elements per step, or the name of a `Choice`. The last step may be shorter."""


class Method(StrEnum):
    """How a reduction combines the elements."""

    ACCUMULATE = "accumulate"
    """Each lane of a step has an accumulator, which takes one value per step. Accumulators of the
    same point are merged after the loop."""
    AT_ONCE = "at_once"
    """One step contains all elements of a point. They are reduced as a tree, in two passes if the
    kind needs an intermediate result (mean, maximum)."""
    TWO_PASS = "two_pass"
    """For `welford` and `online_softmax`: each block of elements is staged in fast memory for a
    first pass (sum, maximum) and a second one (squares, exponentials), then merged into the
    result."""
    MATRIX = "matrix"
    """For `dot`: products of blocks on a matrix unit, or of register tiles."""


@frozen
class Reduction:
    """`reduce m two_pass unroll 2 block 2048 keep (d)`: how to run the `Reduce` whose first result
    is `m`."""

    result: str = field(validator=identifier)
    method: Method = field(validator=exactly(Method))
    unroll: int | str = field(default=1, validator=exactly(int, str))
    """Unroll factor of the last loop over an inner axis, or the name of a `Choice`. If that is the
    vector loop, each unrolled step has its own accumulators."""
    chain: int = field(default=0, validator=natural)
    """About how many values an accumulator of a sum takes before it is added to a total of a wider
    type (cascaded summation); 0 for no limit."""
    wide: bool = field(default=False, validator=exactly(bool))
    """The accumulators of a floating-point sum are `f64`, whatever its element type."""
    compensated: bool = field(default=False, validator=exactly(bool))
    """The rounding errors of the additions of a floating-point sum, of its values or of a second
    pass, are added up as well."""
    block: int | str = field(default=0, validator=exactly(int, str))
    """Elements of the last inner axis per block, or the name of a `Choice`: `two_pass` stages one
    block, and chains end with a block. 0 for the whole axis; chains then end between two runs of
    the last loop."""
    reload: bool = field(default=False, validator=exactly(bool))
    """The second pass loads the elements from memory again instead of staging them."""
    keep: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Values of later stages that equal the exp(x - max) of the second pass, and are read from the
    staged block."""
    group: int = field(default=1, validator=natural)
    """For `online_softmax`: elements of a block that are combined before an accumulator takes the
    result, which has one exponential per element, and one per group for the accumulator."""
    apart: bool = field(default=False, validator=exactly(bool))
    """The elements of a group are at equal distances in the block instead of adjacent."""
    narrow: bool = field(default=False, validator=exactly(bool))
    """The positions of an `argmin` or `argmax` are `i32`."""
    fused: bool = field(default=False, validator=exactly(bool))
    """For a floating-point `dot`: a product and the addition that takes it may round only once."""
    of: str = field(default="", validator=exactly(str))
    """For a `min` or `max`: the `argmin` or `argmax` of the same values whose accumulators have the
    result, if any."""


@frozen
class Product:
    """`product s = a * b in bf16`: the `reduce.dot` named `s`, whose left factor `a` varies along
    rows and whose right factor `b` varies along columns. With `along (r0, i1)`, `a` is read in
    vectors along `r0`, and `b` along `i1`."""

    result: str = field(validator=identifier)
    left: str = field(validator=identifier)
    right: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    """Type of the factors as passed to the matrix unit."""
    along: tuple[Sym, ...] = field(default=(), validator=a_tuple)
    """If both factors are packed into panels: the axes along which they are read in vectors."""
    direct: bool = field(default=False, validator=exactly(bool))
    """Full tiles of the right factor, a load that is contiguous along columns, are not packed. If
    both factors are read along depth, neither is packed: results are dot products of vectors."""
    tf32: bool = field(default=False, validator=exactly(bool))
    """`f32` factors may be rounded to the 10 bits of mantissa that matrix units take."""


@frozen
class Contraction:
    """`contraction rows 1 columns 2 depth 3 group 8`: the kernel is a matrix product.

    `rows`, `columns` and `depth` are indices into `loops`: grid loops over the row and column axes,
    and a loop over contracted axes. A block of a factor is a step of depth by a step of rows or
    columns. The remaining loops iterate over batch axes and further contracted axes one at a time.

    On cores, factors are packed into panels. The loops below the grid are those of depth, of row
    blocks, of the columns of a register tile, and of its rows:

        grid (i0) by 264           row units
        grid (i1) by 256           and column units;
        loop (r0) by 344           the right factor is packed for each step of depth,
        loop (i0) by 66            the left factor for each row block;
        loop (i1) by 16            register tiles
        loop (i0) by 6             of 6 by 16 accumulators
    """

    products: tuple[Product, ...] = field(validator=a_tuple)
    rows: int = field(validator=natural)
    columns: int = field(validator=natural)
    depth: int = field(validator=natural)
    group: int = field(default=1, validator=natural)
    """Row blocks whose units are numbered consecutively, so that they share columns in the cache.
    """


@frozen
class Threads:
    """`threads 2 grain 16384`: the first two grid loops are distributed among threads; the others
    run within each thread. With 0 loops, one thread runs the whole kernel."""

    loops: int = field(validator=natural)
    grain: int = field(default=0, validator=natural)
    """A kernel with fewer elements than this runs in one thread."""


@frozen
class Transposed:
    """`transposed a along i0`: the load `a` is contiguous along `i0` and not along the vectorised
    axis, so a block of both axes is read along `i0` and transposed in fast memory."""

    load: str = field(validator=identifier)
    along: Sym = field(validator=exactly(Sym))


@frozen
class Section:
    """`section 128 true (c) false (d) indices {a=i0 + 2}`: from position 128 of the vectors' axis
    up to the next section, the comparison `c` is true and `d` is false, and the load `a` has the
    index `i0 + 2`. No vector lies in two sections. The points of a `section 128 scalar` are
    computed one at a time."""

    start: int = field(validator=natural)
    true: tuple[str, ...] = field(default=(), validator=a_tuple)
    false: tuple[str, ...] = field(default=(), validator=a_tuple)
    indices: tuple[tuple[str, Expr], ...] = field(default=(), validator=a_tuple)
    """Simpler forms of indices."""
    scalar: bool = field(default=False, validator=exactly(bool))


@frozen
class Fission:
    """`fission 0 of (a, b)`: the loop over points of stage 0 is split into one loop for each of
    these values, which only loads and stores that value."""

    stage: int = field(validator=natural)
    values: tuple[str, ...] = field(validator=a_tuple)


@frozen
class Pipelined:
    """`pipelined 0 ahead 3`: in the innermost loop of stage 0, the loads of 3 steps are in flight
    at once (software pipelining)."""

    stage: int = field(validator=natural)
    ahead: int | str = field(validator=exactly(int, str))
    """Steps, or the name of a `Choice`."""


@frozen
class Prefetch:
    """`prefetch 2 x[1024*i0 + r0 + 1024] write`: stage 2 prefetches this address in each step."""

    stage: int = field(validator=natural)
    buffer: str = field(validator=identifier)
    index: Expr = field(validator=instance_of(Expr))
    write: bool = field(default=False, validator=exactly(bool))
    """Prefetch for a store."""
    second: bool = field(default=False, validator=exactly(bool))
    """Prefetch in the second pass of a two-pass reduction."""


@frozen
class Form:
    """`form [4*i0 + i1] as [i_0]`: an index rewritten in terms of the linear index over flattened
    axes instead of the index of each axis."""

    index: Expr = field(validator=instance_of(Expr))
    written: Expr = field(validator=instance_of(Expr))


class Access(StrEnum):
    """How an index varies across the lanes of a vector."""

    UNIFORM = "uniform"
    """The same for all lanes."""
    UNIT = "unit"
    """Stride 1: the elements are contiguous."""
    STRIDED = "strided"
    """A constant stride other than 0 and 1."""
    GATHERED = "gathered"
    """Linear in the lane and in values loaded for each lane."""
    RUNS = "runs"
    """From lane to lane it grows by one or jumps, and never by more than one. A vector is therefore
    contiguous if its last lane is the lane count minus one from its first."""
    LANES = "lanes"
    """Computed separately for each lane."""


@frozen
class IndexAccess:
    """`access [2*i0 + 8*i1] strided by [2] ahead [8*i1]`: how an index varies across lanes, and the
    part of it that is hoisted out of the innermost enclosing loop."""

    index: Expr = field(validator=instance_of(Expr))
    kind: Access = field(validator=exactly(Access))
    stride: Expr = field(default=ZERO, validator=instance_of(Expr))
    """The stride from lane to lane of a strided access."""
    terms: tuple[tuple[str, Expr], ...] = field(default=(), validator=a_tuple)
    """The terms of a gathered access that differ between lanes, `gathered of {t0=8, i0=1}`: symbols
    and their factors. The other terms are the same for all lanes."""
    ahead: Expr = field(default=ZERO, validator=instance_of(Expr))
    """The hoisted part."""

    @property
    def uniform(self) -> Expr:
        """The terms of a gathered access that are the same for all lanes."""
        return self.index - sum_of(factor * Sym(name) for name, factor in self.terms)


@frozen
class Pair:
    """`pair 0 statements 2 and 5`: two loads or two stores of stage 0 access interleaved elements
    (adjacent addresses, lane stride 2), such as the two parts of complex numbers. Both vectors are
    loaded at the first statement, or stored at the second, as one access."""

    stage: int = field(validator=natural)
    first: int = field(validator=natural)
    second: int = field(validator=natural)


@frozen
class Unrounded:
    """`unrounded 0 statement 5 of a`: statement 5 of stage 0 stores a cast of the `f32` value `a`
    to its buffer's type. The store takes `a` itself and does the rounding."""

    stage: int = field(validator=natural)
    statement: int = field(validator=natural)
    value: str = field(validator=identifier)


@frozen
class Reuse:
    """`reuse 1 statement 0 of 0 statement 2`: the load at statement 0 of stage 1 takes the value
    that statement 2 of stage 0 loaded or stored, and does not access memory."""

    stage: int = field(validator=natural)
    statement: int = field(validator=natural)
    first_stage: int = field(validator=natural)
    first_statement: int = field(validator=natural)


@frozen
class Barrier:
    """`barrier 1 statement 3`: before statement 3 of stage 1, the threads of a unit synchronise so
    that each sees the stores of all. A barrier at statement 0 precedes the stage's loops."""

    stage: int = field(validator=natural)
    statement: int = field(validator=natural)


@frozen
class Wait:
    """`wait after (a, b) releasing`: a launch may start before the previous one ends. Its programs
    issue the early loads `a` and `b`, then wait until the previous launch has ended."""

    after: tuple[str, ...] = field(default=(), validator=a_tuple)
    releasing: bool = field(default=False, validator=exactly(bool))
    """The next launch may start once all programs are about to wait, not once all have waited."""


@frozen
class Choice:
    """`choice XBLOCK of (128, 256)`: a tuning parameter and its finite set of values."""

    name: str = field(validator=identifier)
    values: tuple[int, ...] = field(validator=a_tuple)


APPROXIMABLE = frozenset(("div", "exp", "rsqrt", "sigmoid"))
"""Ops that a device may approximate in `f32` if the result is rounded to a narrower float."""
DRAWN = frozenset(("rand", "randn"))
"""Random-number ops for which one evaluation serves four consecutive counters."""


@frozen
class TiledKernel:
    """One kernel and the decisions about how it runs."""

    kernel: Kernel = field(validator=exactly(Kernel))
    loops: tuple[Loop, ...] = field(validator=a_tuple)
    reductions: tuple[Reduction, ...] = field(default=(), validator=a_tuple)
    """One for each `Reduce` of the kernel, in order."""
    contraction: Contraction | None = field(
        default=None, validator=exactly(Contraction, type(None))
    )
    threads: Threads | None = field(default=None, validator=exactly(Threads, type(None)))
    """None if units are programs of a device, all of which may run concurrently."""
    atomic: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Buffers in which several units may update the same address concurrently."""
    transposed: tuple[Transposed, ...] = field(default=(), validator=a_tuple)
    sections: tuple[Section, ...] = field(default=(), validator=a_tuple)
    """The vectors' axis, cut where comparisons of positions along it change; empty if it is not
    cut."""
    fissions: tuple[Fission, ...] = field(default=(), validator=a_tuple)
    pipelined: tuple[Pipelined, ...] = field(default=(), validator=a_tuple)
    """Stages not listed here load in the step that uses the value."""
    prefetches: tuple[Prefetch, ...] = field(default=(), validator=a_tuple)
    cleared: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Buffers that are zero-filled as memory, a step at a time."""
    stack: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Locals that are allocated on a thread's stack."""
    plain: tuple[Expr, ...] = field(default=(), validator=a_tuple)
    """Quotients and remainders, including subexpressions, with a nonnegative numerator and a
    positive divisor, for which truncating machine division equals floor division."""
    forms: tuple[Form, ...] = field(default=(), validator=a_tuple)
    """Indices that are rewritten."""
    accesses: tuple[IndexAccess, ...] = field(default=(), validator=a_tuple)
    """How indices vary across lanes; an index not listed is computed separately for each lane."""
    pairs: tuple[Pair, ...] = field(default=(), validator=a_tuple)
    unrounded: tuple[Unrounded, ...] = field(default=(), validator=a_tuple)
    reuses: tuple[Reuse, ...] = field(default=(), validator=a_tuple)
    barriers: tuple[Barrier, ...] = field(default=(), validator=a_tuple)
    nonempty: bool = field(default=False, validator=exactly(bool))
    """The inner axes are never empty, so loads that do not depend on them may be hoisted."""
    ahead: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Loop-invariant values, and symbols bound to values, that are hoisted out of the loops that
    their stage does not share or, if no stage reduces, out of the vector loop. Constants are
    hoisted too and not listed."""
    exact: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Casts to narrow floats that do not round: the type represents every operand exactly."""
    truncated: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Values of `bf16` that stores take without rounding: the lower half of each is zero as an
    `f32`, even if it is NaN."""
    approximate: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Functions (`APPROXIMABLE`) in `f32` that may be off by two units in the last place, an
    exponential of x by 2^-22 + |x| 2^-23 of itself, because they are only used after rounding to a
    narrower float."""
    reciprocals: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Quotients in `f32` that are computed from the reciprocal of the divisor, which is the same
    for all inner elements of a point."""
    early: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Unmasked loads from buffers that the kernel never writes, moved before everything else."""
    fours: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Random numbers (`DRAWN`) whose counters are consecutive along the last dimension of a block
    and start at a multiple of four, so that four are generated at a time."""
    packed: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Sorts, by their first result, of `f32` values that `bf16` or `f16` represents exactly: their
    13 lowest bits are zero, and can hold the position in a row of at most 8192 elements."""
    replicated: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Loads that give the same value for all points of a step, but are loaded for each point."""
    streamed: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Loads of elements that no other unit reads, which caches should evict before those of
    `replicated` loads."""
    near: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Unmasked gathers whose lanes read one row of a parameter, at positions below its length,
    mostly near each other."""
    wait: Wait | None = field(default=None, validator=exactly(Wait, type(None)))
    """None if launches start after the previous one."""
    index: DType = field(default=DType.I64, validator=exactly(DType))
    """Type of index arithmetic: `i32` where everything fits."""
    choices: tuple[Choice, ...] = field(default=(), validator=a_tuple)
    candidates: tuple[Configuration, ...] = field(default=(), validator=a_tuple)
    """Values of all choices and of the kernel compiler's options, best guess first."""


@frozen
class TiledGroup:
    """Kernels that share one launch (`KernelGroup`); `members` are indices into `kernels`."""

    name: str = field(validator=identifier)
    device: Device = field(validator=exactly(Device))
    kernels: tuple[TiledKernel, ...] = field(validator=a_tuple)
    members: tuple[int, ...] = field(validator=a_tuple)
    costs: tuple[int, ...] = field(default=(), validator=a_tuple)
    """Estimated operations per element of each of `kernels`, used to balance the work of all
    members among threads."""
    grain: int = field(default=0, validator=natural)
    """A launch with fewer operations than this runs in one thread."""
    programs: int = field(default=0, validator=natural)
    """Maximum number of programs per member, each of which may process several blocks; 0 for one
    program per block."""
    selected: int = field(default=1, validator=natural)
    """Number of members, a power of two, among which a program selects its tensors without a
    branch; it branches around the others."""


@frozen
class TiledTemplate:
    """A template kernel, which the kernel language generates as a whole: of its tiling, only the
    type of indices and the tuning parameters are visible."""

    kernel: TemplateKernel = field(validator=exactly(TemplateKernel))
    index: DType = field(default=DType.I64, validator=exactly(DType))
    """Type of index arithmetic: `i32` where everything fits."""
    choices: tuple[Choice, ...] = field(default=(), validator=a_tuple)
    candidates: tuple[Configuration, ...] = field(default=(), validator=a_tuple)
    wait: Wait | None = field(default=None, validator=exactly(Wait, type(None)))
    """As in a `TiledKernel`, with no early loads."""


@frozen
class Repeat:
    """`repeat k5 of k1`: a kernel that equals an earlier one up to the names of its values and
    parameters. Launches pass parameters by position, so both share one generated function."""

    name: str = field(validator=identifier)
    kernel: str = field(validator=identifier)


Tiled = TiledKernel | TiledGroup | TiledTemplate | Repeat
"""An entry of a `TileProgram`."""


@frozen
class TileProgram(Shown):
    """The tiled kernels of a schedule, with the facts about their sizes."""

    name: str = field(validator=identifier)
    kernels: tuple[Tiled, ...] = field(validator=a_tuple)
    facts: ShapeFacts = field(factory=ShapeFacts, validator=instance_of(ShapeFacts))
    origins: tuple[Origin, ...] = field(default=(), validator=a_tuple)

    @property
    def device(self) -> Device:
        """The device of the first kernel; all kernels run on devices of the same type."""
        first = self.kernels[0]
        assert not isinstance(first, Repeat), "a repeat follows its kernel"
        return first.device if isinstance(first, TiledGroup) else first.kernel.device
