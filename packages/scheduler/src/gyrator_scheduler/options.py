"""Options of the scheduler. Every field has a default."""

from attrs import field

from gyrator_ir.checks import a_tuple, exactly, natural
from gyrator_ir.define import frozen
from gyrator_ir.kernel.nodes import Numerics
from gyrator_ir.passes import PassEdits


@frozen(kw_only=True)
class SchedulerOptions:
    """Options of `schedule` and `plan_host`. They affect speed and checks, never the meaning of
    results."""

    fusion: bool = field(default=True, validator=exactly(bool))
    """Fuse several operations into one kernel."""
    inline: bool = field(default=True, validator=exactly(bool))
    """Recompute cheap values in their readers instead of storing them in buffers."""
    together: bool = field(default=True, validator=exactly(bool))
    """Launch small independent kernels together."""
    reorder: bool = field(default=True, validator=exactly(bool))
    """Reorder nodes to shorten buffer lifetimes."""
    reuse: bool = field(default=True, validator=exactly(bool))
    """Let a buffer reuse the storage of a dead one."""
    pool: bool = field(default=True, validator=exactly(bool))
    """Allocate small temporaries from a shared pool."""
    numerics: Numerics = field(default=Numerics.EAGER, validator=exactly(Numerics))
    """`FAST` enables the pass `elide-roundings`. `BATCH_INVARIANT` and `BITWISE` keep the axes of
    reductions in program order. The former does not split them, the latter does not split those
    that round."""
    passes: PassEdits = field(default=PassEdits(), validator=exactly(PassEdits))
    """Edits to `passes.loop_pipeline` and `passes.kernel_pipeline`."""
    verify_each: bool = field(default=False, validator=exactly(bool))
    """Verify the program after every pass that changes it."""
    keep_peak: bool = field(default=True, validator=exactly(bool))
    """Fuse less if the plan would need more memory than running operation by operation with each
    buffer freed after its last use."""
    released: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Tensor parameters that the caller keeps for this program only, such as the activations that a
    forward pass saves for its backward pass: they occupy memory until they are read for the last
    time. Others are not counted."""
    hold_operands: bool = field(default=True, validator=exactly(bool))
    """Allow producers to be computed later than in program order, which extends the lifetimes of
    their operands."""
    reach: int = field(default=1 << 60, validator=natural)
    """Operations farther apart in the program than this are not fused."""
    merge_candidates: int = field(default=8, validator=natural)
    """Maximum number of kernels that fusion tries to join an operation with."""
    search_steps: int = field(default=96, validator=natural)
    """Maximum number of nodes visited to prove that fusing two kernels creates no cycle. If the
    proof takes more, the kernels are not fused."""
    device_graphs: bool = field(default=False, validator=exactly(bool))
    """Plan which nodes device graphs capture, and group those nodes."""
    graph_parts: bool = field(default=True, validator=exactly(bool))
    """Allow graphs to capture parts of a program, not only whole programs."""
    size_asserts: bool = field(default=False, validator=exactly(bool))
    """Raise an error when the result of a custom op differs from its meta function, instead of
    converting the result."""
    inputs_checked: bool = field(default=True, validator=exactly(bool))
    """Check that the caller's tensors have the dtypes, devices, sizes and strides that the program
    was compiled for."""
    nan_asserts: bool = field(default=False, validator=exactly(bool))
    """Check every tensor written by a kernel or call for NaN and infinity."""
    profile: bool = field(default=False, validator=exactly(bool))
    """Run each kernel and call inside a named range of the profiler."""

    comments: bool = field(default=True, validator=exactly(bool))
    """Name, in comments of the host program, the operations that each launch or call implements."""

    @property
    def in_order(self) -> bool:
        """Whether reductions must accumulate in program order."""
        return self.numerics in (Numerics.BATCH_INVARIANT, Numerics.BITWISE)
