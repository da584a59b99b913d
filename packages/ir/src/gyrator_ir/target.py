"""Targets as data: what a device type supports, and the heuristics for fast code on it."""

from attrs import field

from gyrator_ir.checks import a_tuple, exactly, natural
from gyrator_ir.define import frozen
from gyrator_ir.modes import StoreMode
from gyrator_ir.types import DType


@frozen(kw_only=True)
class Capabilities:
    """What a device and its kernel language support. Ops that need more become extern calls."""

    dtypes: frozenset[DType]
    """Element types that kernels load, store and compute on."""
    atomics: frozenset[tuple[DType, StoreMode]] = frozenset()
    """Supported atomic store modes by element type; `set` needs no support."""
    ops_lacking: frozenset[str] = frozenset()
    """Names of the ops of the op table that kernels cannot use."""
    reductions: bool = True
    ordered_reductions: bool = False
    """Reductions follow the order that `Numerics.BATCH_INVARIANT` requires."""
    aten_bits: frozenset[str] = frozenset()
    """With `Numerics.BITWISE`: ops (`aten.gelu`) that round in several steps, for which lowering
    knows formulas that have the bits of this machine's ATen, with the suffix `:16` for a formula
    of vectors of sixteen elements rather than eight. `aten.sum` also requires that kernels
    add one value after another in the dtype of the sum."""
    ordered_stores: bool = False
    """With `Numerics.BITWISE`: of the points of a scatter that store to one address, and differ
    along one axis, the one with the lower index stores first."""
    scans: bool = True
    scan_extent: int = field(default=0, validator=natural)
    """The longest axis, of constant extent, for scans that cannot be split into parts: arg-scans
    and log-sum-exp. 0 for no limit."""
    sorts: bool = True
    sort_extent: int = field(default=0, validator=natural)
    """The longest axis, of constant extent, that kernels can sort. 0 for no limit."""
    unchecked_division: bool = False
    """Integer division by 0 returns an unspecified value instead of raising, both in ATen and in
    kernels."""
    reciprocals: bool = False
    """ATen divides a float tensor by a number by multiplying with the rounded reciprocal."""
    indirect: bool = True
    """Addresses that depend on loaded values."""
    device_checks: bool = True
    """Kernels can report out-of-bounds indices."""
    random: bool = True
    templates: frozenset[str] = frozenset()
    """`TemplateKind` values that the kernel language can generate."""
    graphs: bool = False
    """Work can be captured in a graph and replayed."""
    overlap: bool = False
    """A launch can start before the previous one ends, and wait for it (programmatic dependent
    launch)."""
    matrix_units: frozenset[DType] = frozenset()
    """Element types that matrix units can multiply."""
    tf32: bool = False
    """Matrix units can multiply `f32` values rounded to 10 mantissa bits, and the caller allows
    it."""
    converted: frozenset[DType] = frozenset()
    """8-bit floats that the device converts to and from `f32` with its own instructions, rounding
    to nearest and saturating to the largest finite value."""
    libraries: frozenset[str] = frozenset()
    """Libraries behind extern calls: `mkl`, `onednn`, `onednn-bfloat16`, `cublas`, ..."""


@frozen(kw_only=True)
class Heuristics:
    """Parameters of the compiler's heuristics. None of them changes the meaning of a result."""

    cores: int = field(default=1, validator=natural)
    """Maximum number of threads of a kernel."""
    parallel_grain: int = field(default=16384, validator=natural)
    """Work of fewer element operations than this stays on one thread."""
    split_reduction_points: int = field(default=8, validator=natural)
    """A reduction with fewer points than this is split into two steps..."""
    split_reduction_extent: int = field(default=8192, validator=natural)
    """... if it reduces at least this many elements per point."""
    split_scan_extent: int = field(default=8192, validator=natural)
    """The same for scans."""
    adjacent_points: int = field(default=1, validator=natural)
    """Number of points, adjacent in memory, that a core processes together when a reduction runs
    across them; they count as one point for `split_reduction_points`."""
    column_parts: int = field(default=0, validator=natural)
    """A reduction of runs of at most this many adjacent elements, far from each other, is split
    into one for each column, since vectors of columns are faster than short or strided runs."""
    scratch_bytes: int = field(default=32768, validator=natural)
    """Size of the fast memory for a kernel's locals: L1 cache or shared memory."""
    shared_bytes: int = field(default=0, validator=natural)
    """Memory that the threads of a program may share; 0 if unknown."""
    fusion_statements: int = field(default=512, validator=natural)
    """Maximum number of statements of a fused kernel."""
    total_elements: int = field(default=0, validator=natural)
    """Kernels of rows of at most this many elements also sum columns; 0 if the kernel language has
    no totals..."""
    total_grain: int = field(default=0, validator=natural)
    """... if all rows have at least this many elements. A cache holds fewer for a second kernel."""
    fusion_folds: int = field(default=16, validator=natural)
    """Maximum number of reductions of a fused kernel; each occupies registers of its own."""
    inline_cost: int = field(default=24, validator=natural)
    """A value used in several kernels is recomputed rather than stored if it costs less than this.
    """
    unit_statements: int = field(default=1500, validator=natural)
    """Approximate number of statements per translation unit."""
    together_elements: int = field(default=0, validator=natural)
    """Independent kernels of at most this many elements share a launch; 0 if the kernel language
    has no `KernelGroup`."""
    together_tensors: int = field(default=1024, validator=natural)
    """Maximum number of tensors passed to one launch."""
    together_kinds: int = field(default=0, validator=natural)
    """Maximum number of different kernels of one launch; 0 for any number."""
    pool_bytes: int = field(default=65536, validator=natural)
    """Temporaries up to this size share one allocation."""
    slack_bytes: int = field(default=16384, validator=natural)
    """Memory for partial results that a program may need beyond that of unfused execution..."""
    slack_parts: int = field(default=0, validator=natural)
    """... in addition to one of this many parts of that; 0 for none. A program that exceeds it by
    less costs more in kernels that are split than it saves."""
    product_bytes: int = field(default=0, validator=natural)
    """Large 16-bit matrix products are fastest if the row size of the matrices is a multiple of
    this many bytes; 0 if it makes no difference."""
    thin_products: bool = False
    """Generated kernels are faster than the library at matrix-vector products."""
    plane_convolutions: bool = False
    """Generated kernels are faster than the library at depthwise convolutions of planes."""
    depthwise_elements: int = field(default=0, validator=natural)
    """Generated kernels are faster than the library at depthwise convolutions of channels-last
    images: of 16-bit floats, if windows are apart or images have at most this many elements. 0 if
    they are not."""
    depthwise_gradients: bool = False
    """Generated kernels are faster than the library at the gradients of the weights of depthwise
    convolutions with large windows."""
    integer_products: bool = False
    """Generated kernels are faster than the library at matrix products of integers."""
    register_tiles: bool = False
    """Generated kernels compute matrix products in tiles of vector registers, so that they may be
    faster than the library: `max_autotune` measures both. They are for small batched matrices, and
    for convolutions of single pixels with few outputs."""
    panel_columns: int = field(default=0, validator=natural)
    """The columns of such a tile of `float32`: kernels prefer to read a constant matrix from panels
    of this many columns. 0 if they do not."""
    depthwise_window: int = field(default=0, validator=natural)
    """The elements of the largest window of a depthwise `float32` convolution of channels-last
    images that kernels compute faster than the library; 0 if there is none."""
    convolution_pixels: int = field(default=0, validator=natural)
    """Of several images, kernels compute convolutions with weights that are larger than a megabyte
    faster than the library if results have at most this many pixels."""
    attention_keys: int = field(default=0, validator=natural)
    """`FLEX_ATTENTION` is faster than the library's attention of `f32`, with several queries and at
    most this many keys; 0 if it is not."""
    unfused_bias: bool = False
    """The library's convolutions do not fuse the bias, so that adding it may as well be fused into
    a kernel."""
    channels_last: bool = False
    """The library's 16-bit convolutions are fastest in channels-last layout."""
    saved_conditions: bool = False
    """Conditions used by a backward pass may be saved as one byte per element instead of the values
    they were computed from."""
    saved_positions: bool = False
    """The backward pass of max pooling may save positions in windows, of one byte, instead of
    indices in planes, of eight, which are then computed from them."""
    scatter_choices: bool = False
    """The backward pass of max pooling with overlapping windows, and of reflection padding,
    scatters each gradient to its source element: less work than a gather, but partly serial."""
    quick_exp2: bool = False
    """`exp2` of `f32` is one instruction, `fma` is another, and `erf` is dozens: `gelu` of 16-bit
    floats is computed by them."""
    quick_quotients: bool = False
    """A quotient of polynomials in `f32` and `exp` take less time than `erf`: `gelu` of 16-bit
    floats and `f32` is computed by them, and its gradient by the same `exp`."""
    summed_rows: int = field(default=0, validator=natural)
    """The gradient of a table of at most this many rows, and the square of it elements, is a sum
    over all positions for each row: more work than to add each position to its row, but additions
    to few addresses wait for each other."""


@frozen(kw_only=True)
class Target:
    """One device type bound to a kernel language. Immutable, and part of cache keys."""

    device: str = field(validator=exactly(str))
    """`torch.device.type`."""
    arch: str = field(validator=exactly(str))
    """`avx512`, `sm_90`, `gfx942`."""
    kernel_backend: str = field(validator=exactly(str))
    """Name of the `KernelBackend`: `c++`, `triton`, ..."""
    wrapper_backends: tuple[str, ...] = field(default=("python",), validator=a_tuple)
    """Host languages that can launch its kernels, the preferred one first."""
    capabilities: Capabilities = field(validator=exactly(Capabilities))
    heuristics: Heuristics = field(factory=Heuristics, validator=exactly(Heuristics))
