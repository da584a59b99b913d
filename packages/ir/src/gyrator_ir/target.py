"""Facts about one device type, as data: what it can do, and what is fast on it."""

from attrs import field, frozen

from gyrator_ir.checks import a_tuple, exactly, natural
from gyrator_ir.modes import StoreMode
from gyrator_ir.types import DType


@frozen(kw_only=True)
class Capabilities:
    """What a device and its kernel language can do. What is absent becomes an extern call."""

    dtypes: frozenset[DType]
    """Element types that kernels load, store and compute on."""
    atomics: frozenset[tuple[DType, StoreMode]] = frozenset()
    """Store modes of scatters; `set` needs none."""
    ops_lacking: frozenset[str] = frozenset()
    """Rows of the op table that kernels can't use."""
    reductions: bool = True
    ordered_reductions: bool = False
    """Kernels with `Numerics.BATCH_INVARIANT` reduce as that says."""
    scans: bool = True
    scan_extent: int = field(default=0, validator=natural)
    """The longest range, which must then be constant, of a scan that can't be shared out by parts:
    of positions, and of sums of powers. 0 for any."""
    sorts: bool = True
    sort_extent: int = field(default=0, validator=natural)
    """The longest range that kernels sort, which must then be constant; 0 for any."""
    unchecked_division: bool = False
    """Integers divided by 0 give some number, in ATen and in kernels, and no error."""
    indirect: bool = True
    """Addresses that depend on loaded values."""
    device_checks: bool = True
    """Kernels can report an index out of bounds."""
    random: bool = True
    templates: frozenset[str] = frozenset()
    """`TemplateKind` values that the kernel language generates."""
    graphs: bool = False
    """Work can be captured once and replayed."""
    matrix_units: frozenset[DType] = frozenset()
    """Element types whose products kernels can leave to matrix units."""
    tf32: bool = False
    """Those units take products of `f32` whose factors they round to 10 bits of mantissa, and the
    caller allows that."""
    converted: frozenset[DType] = frozenset()
    """Floats of 8 bits that the device's own instructions convert to `f32` and from it, to the
    nearest, and what is larger to the largest number."""
    libraries: frozenset[str] = frozenset()
    """Libraries behind extern calls: `mkl`, `onednn`, `cublas`, `flash_attention`, ..."""


@frozen(kw_only=True)
class Heuristics:
    """Numbers that guide choices. None changes a result's meaning."""

    cores: int = field(default=1, validator=natural)
    """Threads that a kernel may use at most."""
    parallel_grain: int = field(default=16384, validator=natural)
    """Work below this many element operations stays on one thread."""
    split_reduction_points: int = field(default=8, validator=natural)
    """A reduction with fewer points than this is split into two steps..."""
    split_reduction_extent: int = field(default=8192, validator=natural)
    """... if it folds at least this many elements a point."""
    split_scan_extent: int = field(default=8192, validator=natural)
    """The same of scans."""
    adjacent_points: int = field(default=1, validator=natural)
    """Points next to one another in memory that a core takes together, where folds run across
    them: so many points count as one."""
    scratch_bytes: int = field(default=32768, validator=natural)
    """Fast memory for a kernel's locals: L1, or shared memory."""
    shared_bytes: int = field(default=0, validator=natural)
    """Memory that a kernel's program may share among its threads; 0 where that is not known."""
    fusion_statements: int = field(default=512, validator=natural)
    """Kernels grow no larger than this many statements."""
    fusion_folds: int = field(default=16, validator=natural)
    """Kernels fold no more than this many values: each has registers of its own."""
    inline_cost: int = field(default=24, validator=natural)
    """A value used in several kernels is computed again rather than stored if it costs less."""
    unit_statements: int = field(default=1500, validator=natural)
    """A translation unit holds about this many statements."""
    together_elements: int = field(default=0, validator=natural)
    """Kernels of at most so many elements share a launch with others that need not wait for them;
    0 where the kernel language has no `KernelGroup`."""
    together_tensors: int = field(default=1024, validator=natural)
    """A launch passes at most so many tensors."""
    together_alike: bool = False
    """Only kernels that do the same share a launch."""
    pool_bytes: int = field(default=65536, validator=natural)
    """Temporaries up to this size share one allocation."""
    slack_bytes: int = field(default=16384, validator=natural)
    """A plan may need so much more than running operation by operation: for partial results."""
    product_bytes: int = field(default=0, validator=natural)
    """Large products in 16 bits are fastest where their matrices' rows are multiples of so many
    bytes; 0 where that makes no difference."""
    thin_products: bool = False
    """Kernels multiply matrices with vectors quicker than the library."""
    unfused_bias: bool = False
    """The library's convolutions have no bias: adding it is work that kernels can share."""
    channels_last: bool = False
    """The library's 16-bit convolutions want the channels of a point side by side."""
    scatter_choices: bool = False
    """Gradients of choices among overlapping windows, and of mirrored borders, go from each result
    to the element that it is: less work than asking each element what it is, but in serial runs."""


@frozen(kw_only=True)
class Target:
    """One device type bound to a kernel language, immutable and part of cache keys."""

    device: str = field(validator=exactly(str))
    """`torch.device.type`."""
    arch: str = field(validator=exactly(str))
    """`avx512`, `sm_90`, `gfx942`."""
    kernel_backend: str = field(validator=exactly(str))
    """Name of the `KernelBackend`: `c++`, `triton`, ..."""
    wrapper_backends: tuple[str, ...] = field(default=("python",), validator=a_tuple)
    """Host languages that can drive it, the preferred one first."""
    capabilities: Capabilities = field(validator=exactly(Capabilities))
    heuristics: Heuristics = field(factory=Heuristics, validator=exactly(Heuristics))
