"""Tile IR: a kernel with every decision about the machine that runs it.

A `TiledKernel` says in which loops a kernel runs, which of them are shared out, how many elements
are computed at once, how reductions accumulate, and what goes through fast memory. Kernel languages
print it; they decide nothing.

`loops` are nested, the outermost first. Each walks one axis, or several taken as one (row-major),
in steps; an axis may be cut by several loops, an inner one walking the step of the one outside:

    grid (i0)                     a unit of parallel work for each row of a softmax,
    loop (r0) by 16               and in it vectors of 16 elements

    grid (i0, i1) by XBLOCK       a unit for each XBLOCK points,
    loop (r0) by RBLOCK           whose rows are walked in blocks of RBLOCK

    grid (i0) by 512              a reduction of columns: strips of 512 points,
    loop (r0)                     row by row
    loop (i0) by 16               in vectors

A step of the innermost loop of an axis is computed at once: as a vector, or as one side of a block.
All stages share the loops before the first one over an inner axis (and all grid loops). In what
follows, each stage has its own copy of the loops over the axes that it runs over: all of them for
an INNER stage, those of points for an OUTER one. What a stage names for later ones is kept for each
point of a step of the shared loops.
"""

from enum import StrEnum

from attrs import field, frozen

from gyrator_ir.checks import a_tuple, exactly, identifier, instance_of, natural
from gyrator_ir.expr import ZERO, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, TemplateKernel
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Configuration
from gyrator_ir.text.shown import Shown
from gyrator_ir.types import Device, DType


class LoopKind(StrEnum):
    """How the steps of a loop relate."""

    GRID = "grid"
    """Steps are units of parallel work: programs of a device, or what threads share out. Grid loops
    come before all others; the last one's units are numbered fastest."""
    LOOP = "loop"
    """Steps follow one another."""


@frozen
class Loop:
    """`loop (r0, r1) by RBLOCK`: axes walked as one, the last fastest.

    Without axes, which only a kernel of one point has, it is a loop over that point.
    """

    kind: LoopKind = field(validator=exactly(LoopKind))
    axes: tuple[Sym, ...] = field(validator=a_tuple)
    step: int | str = field(default=1, validator=exactly(int, str))
    """Elements of a step, or the name of a `Choice`. A last step may be shorter."""


class Method(StrEnum):
    """How a reduction gets from elements to its results."""

    ACCUMULATE = "accumulate"
    """Each element of a step has an accumulator, which takes one value a step; accumulators of the
    same point are merged at the end."""
    AT_ONCE = "at_once"
    """One step holds all elements of a point: they are reduced as a tree, in two passes where the
    kind needs a first result (mean, maximum) for the second."""
    TWO_PASS = "two_pass"
    """Of `welford` and `online_softmax`: blocks of elements are kept in fast memory, go through a
    first pass (sum, maximum) and a second (squares, exponentials), and then into the result."""
    MATRIX = "matrix"
    """Of `dot`: products of blocks, for a matrix unit."""


@frozen
class Reduction:
    """`reduce m two_pass unroll 2 block 2048 keep (d)`: how the `Reduce` whose first result is `m`
    runs."""

    result: str = field(validator=identifier)
    method: Method = field(validator=exactly(Method))
    unroll: int | str = field(default=1, validator=exactly(int, str))
    """Steps of the last loop over an inner axis that are written out side by side. Where that is
    the loop of vectors, each has accumulators of its own. Or the name of a `Choice`."""
    chain: int = field(default=0, validator=natural)
    """About how many values an accumulator of a sum takes before it is added to a total of a wider
    type (cascaded summation); 0 for any number."""
    wide: bool = field(default=False, validator=exactly(bool))
    """The accumulators of a sum of floats are `f64`, whatever its elements are."""
    block: int | str = field(default=0, validator=exactly(int, str))
    """Elements of the last inner axis that are taken at a time: what `two_pass` keeps, and where
    chains end; or the name of a `Choice`. 0 for all of them; chains then end between two runs of
    the last loop."""
    reload: bool = field(default=False, validator=exactly(bool))
    """The second pass loads from memory again, rather than from what is kept."""
    keep: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Values of later stages that equal what the second pass computes, exp(x - max): they are read
    from what is kept."""


@frozen
class Product:
    """`product s = a * b in bf16`: the `reduce.dot` named `s` of blocks of the values `a`, which
    varies along the rows, and `b`, along the columns."""

    result: str = field(validator=identifier)
    left: str = field(validator=identifier)
    right: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    """Of the factors, as a matrix unit takes them."""


@frozen
class Contraction:
    """`contraction rows 1 columns 2 depth 3 group 8`: the kernel is a product of matrices.

    Rows, columns and depth are loops, by position: grid loops over the axes of rows and of columns,
    and a loop over axes that are summed over. A block of the factors is a step of depth by a step
    of rows or of columns; other loops walk batches and axes summed over one by one.
    """

    products: tuple[Product, ...] = field(validator=a_tuple)
    rows: int = field(validator=natural)
    columns: int = field(validator=natural)
    depth: int = field(validator=natural)
    group: int = field(default=1, validator=natural)
    """Blocks of rows whose units are numbered together, so that they share columns in a cache."""


@frozen
class Threads:
    """`threads 2 grain 16384`: the first two grid loops are shared out among threads; the others
    run in each thread. With 0 loops, one thread does all."""

    loops: int = field(validator=natural)
    grain: int = field(default=0, validator=natural)
    """A kernel of fewer elements runs in one thread."""


@frozen
class Transposed:
    """`transposed a along i0`: the load `a` is consecutive along another axis than the vectors: a
    block of both axes is read along `i0` and turned in fast memory."""

    load: str = field(validator=identifier)
    along: Sym = field(validator=exactly(Sym))


@frozen
class Pipelined:
    """`pipelined 0 ahead 3`: in the innermost loop of stage 0, the loads of 3 steps are under way
    at once (software pipelining)."""

    stage: int = field(validator=natural)
    ahead: int | str = field(validator=exactly(int, str))
    """Steps, or the name of a `Choice`."""


@frozen
class Prefetch:
    """`prefetch 2 x[1024*i0 + r0 + 1024] write`: stage 2 asks for an address at each step."""

    stage: int = field(validator=natural)
    buffer: str = field(validator=identifier)
    index: Expr = field(validator=instance_of(Expr))
    write: bool = field(default=False, validator=exactly(bool))
    """What is asked for will be stored to."""
    second: bool = field(default=False, validator=exactly(bool))
    """It is asked for in the second pass of a reduction in two passes."""


@frozen
class Form:
    """`form [4*i0 + i1] as [i_0]`: an index as it is written, over the position in axes that are
    walked as one rather than over each of them."""

    index: Expr = field(validator=instance_of(Expr))
    written: Expr = field(validator=instance_of(Expr))


class Access(StrEnum):
    """How an index goes on from lane to lane of a vector."""

    UNIFORM = "uniform"
    """It is the same for all lanes."""
    UNIT = "unit"
    """It grows by one: elements are consecutive."""
    STRIDED = "strided"
    """It grows by the same number from each lane to the next."""
    GATHERED = "gathered"
    """It is linear in the lane and in what is loaded for each lane."""
    LANES = "lanes"
    """Each lane computes its own."""


@frozen
class IndexAccess:
    """`access [2*i0 + 8*i1] strided by [2] ahead [8*i1]`: what an index is for a vector, and what
    of it is computed ahead of the innermost loop around it."""

    index: Expr = field(validator=instance_of(Expr))
    kind: Access = field(validator=exactly(Access))
    stride: Expr = field(default=ZERO, validator=instance_of(Expr))
    """From lane to lane, where that is a number but neither 0 nor 1."""
    terms: tuple[tuple[str, Expr], ...] = field(default=(), validator=a_tuple)
    """Of a gathered one, `gathered of {t0=8, i0=1}`: what each lane has of its own, symbols and
    their factors; all lanes share the rest."""
    ahead: Expr = field(default=ZERO, validator=instance_of(Expr))
    """The part that is computed ahead."""


@frozen
class Pair:
    """`pair 0 statements 2 and 5`: two loads, or two stores, of stage 0 are of neighbours that lie
    two apart from lane to lane, as the parts of complex numbers do: whole vectors of both are
    loaded where the first stands, or stored where the second does, as one access."""

    stage: int = field(validator=natural)
    first: int = field(validator=natural)
    second: int = field(validator=natural)


@frozen
class Unrounded:
    """`unrounded 0 statement 5 of a`: the store that is statement 5 of stage 0 is of a cast of `a`,
    an `f32`, to its buffer's type. It is given `a`, and rounds it."""

    stage: int = field(validator=natural)
    statement: int = field(validator=natural)
    value: str = field(validator=identifier)


@frozen
class Reuse:
    """`reuse 1 statement 0 of 0 statement 2`: the load that is statement 0 of stage 1 gives what
    statement 2 of stage 0 has read or stored, and reads nothing."""

    stage: int = field(validator=natural)
    statement: int = field(validator=natural)
    first_stage: int = field(validator=natural)
    first_statement: int = field(validator=natural)


@frozen
class Barrier:
    """`barrier 1 statement 3`: ahead of statement 3 of stage 1, a unit's threads wait until all of
    them see what any has stored; of statement 0, ahead of the stage's loops."""

    stage: int = field(validator=natural)
    statement: int = field(validator=natural)


@frozen
class Choice:
    """`choice XBLOCK of (128, 256)`: a number to be tuned, and its finite set."""

    name: str = field(validator=identifier)
    values: tuple[int, ...] = field(validator=a_tuple)


QUOTIENTS = frozenset(("div", "rsqrt", "sigmoid"))
"""Ops that a device may approximate in `f32` where a narrower float holds the result."""
DRAWN = frozenset(("rand", "randn"))
"""Ops of which four consecutive counters share their work."""


@frozen
class TiledKernel:
    """One kernel and its decisions."""

    kernel: Kernel = field(validator=exactly(Kernel))
    loops: tuple[Loop, ...] = field(validator=a_tuple)
    reductions: tuple[Reduction, ...] = field(default=(), validator=a_tuple)
    """One for each `Reduce` of the kernel, in order."""
    contraction: Contraction | None = field(
        default=None, validator=exactly(Contraction, type(None))
    )
    threads: Threads | None = field(default=None, validator=exactly(Threads, type(None)))
    """None where units are programs of a device, all of which may run at once."""
    atomic: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Buffers that units may combine into at the same address at once."""
    transposed: tuple[Transposed, ...] = field(default=(), validator=a_tuple)
    pipelined: tuple[Pipelined, ...] = field(default=(), validator=a_tuple)
    """The loads of other stages wait for the step that needs them."""
    prefetches: tuple[Prefetch, ...] = field(default=(), validator=a_tuple)
    cleared: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Buffers whose steps are filled with zeros as memory."""
    stack: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Locals that lie on a thread's stack."""
    plain: tuple[Expr, ...] = field(default=(), validator=a_tuple)
    """Quotients and remainders, also those inside of other expressions, whose numerators are never
    negative and whose divisors are positive: a machine's division rounds them as they are meant."""
    forms: tuple[Form, ...] = field(default=(), validator=a_tuple)
    """Indices that are not written as they stand in the kernel."""
    accesses: tuple[IndexAccess, ...] = field(default=(), validator=a_tuple)
    """What indices are for vectors; one that is not among them is computed by each lane."""
    pairs: tuple[Pair, ...] = field(default=(), validator=a_tuple)
    unrounded: tuple[Unrounded, ...] = field(default=(), validator=a_tuple)
    reuses: tuple[Reuse, ...] = field(default=(), validator=a_tuple)
    barriers: tuple[Barrier, ...] = field(default=(), validator=a_tuple)
    nonempty: bool = field(default=False, validator=exactly(bool))
    """Points surely have inner elements: what does not depend on them may be loaded ahead."""
    ahead: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Values, and symbols bound to values, that are the same in all steps of the loops that their
    stage does not share, or, where no stage reduces, of the loop over vectors: they are computed
    once, ahead of those loops. So are constants, which are not named here."""
    exact: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Casts to narrow floats that round nothing: the type holds what is cast as it is."""
    approximate: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Quotients (`QUOTIENTS`) in `f32` that may be two units in the last place from what is meant:
    no more of them is seen than a narrower float holds."""
    early: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Loads of what the kernel never changes, without masks, that come before everything else."""
    fours: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Random numbers (`DRAWN`) whose counters follow one another along the last dimension of a
    block, from a multiple of four on: four are drawn at a time."""
    replicated: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Loads that are the same for all points of a step, and are read for each."""
    index: DType = field(default=DType.I64, validator=exactly(DType))
    """Type of index arithmetic: `i32` where everything fits."""
    choices: tuple[Choice, ...] = field(default=(), validator=a_tuple)
    candidates: tuple[Configuration, ...] = field(default=(), validator=a_tuple)
    """Values of all choices, and of the compiler's options, the best guess first."""


@frozen
class TiledGroup:
    """Kernels that one launch runs (`KernelGroup`): a member is one of `kernels`."""

    name: str = field(validator=identifier)
    device: Device = field(validator=exactly(Device))
    kernels: tuple[TiledKernel, ...] = field(validator=a_tuple)
    members: tuple[int, ...] = field(validator=a_tuple)
    costs: tuple[int, ...] = field(default=(), validator=a_tuple)
    """Of each of `kernels`: about how many operations an element takes, where threads share out the
    work of all members."""
    grain: int = field(default=0, validator=natural)
    """A launch of fewer operations runs in one thread."""
    programs: int = field(default=0, validator=natural)
    """Most programs of a member, where each may take several blocks in turn; 0 for one a block."""
    selected: int = field(default=1, validator=natural)
    """Members among which a program selects its tensors without a branch, a power of two; it skips
    the others."""


@frozen
class TiledTemplate:
    """A template's kernel, which its language writes as a whole: only what is to be tuned is seen
    of its decisions."""

    kernel: TemplateKernel = field(validator=exactly(TemplateKernel))
    choices: tuple[Choice, ...] = field(default=(), validator=a_tuple)
    candidates: tuple[Configuration, ...] = field(default=(), validator=a_tuple)


@frozen
class Repeat:
    """`repeat k5 of k1`: a kernel that is another one of the program but for the names of its
    values and parameters. Launches pass those by position: one text serves both."""

    name: str = field(validator=identifier)
    kernel: str = field(validator=identifier)


Tiled = TiledKernel | TiledGroup | TiledTemplate | Repeat
"""What a program holds of a launch."""


@frozen
class TileProgram(Shown):
    """The kernels of a schedule, tiled, with what is known of their sizes."""

    name: str = field(validator=identifier)
    kernels: tuple[Tiled, ...] = field(validator=a_tuple)
    facts: ShapeFacts = field(factory=ShapeFacts, validator=instance_of(ShapeFacts))
    origins: tuple[Origin, ...] = field(default=(), validator=a_tuple)

    @property
    def device(self) -> Device:
        """Where the kernels run, all of them on devices of one type: that of the first."""
        first = self.kernels[0]
        assert not isinstance(first, Repeat), "a repeat stands after its kernel"
        return first.device if isinstance(first, TiledGroup) else first.kernel.device
