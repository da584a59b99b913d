"""What a caller may choose of a schedule. Every field has a default."""

from attrs import field, frozen

from gyrator_ir.checks import exactly, natural
from gyrator_ir.kernel.nodes import Numerics
from gyrator_ir.passes import PassEdits


@frozen(kw_only=True)
class SchedulerOptions:
    """Options of `schedule` and `plan_host`. They change speed and checks, not what results
    mean."""

    fusion: bool = field(default=True, validator=exactly(bool))
    """Put several operations into one kernel."""
    inline: bool = field(default=True, validator=exactly(bool))
    """Compute cheap values again where they are read, instead of keeping them in buffers."""
    together: bool = field(default=True, validator=exactly(bool))
    """Launch small kernels together where none waits for another."""
    reorder: bool = field(default=True, validator=exactly(bool))
    """Move nodes to shorten the lives of buffers."""
    reuse: bool = field(default=True, validator=exactly(bool))
    """Let a buffer take over the storage of a dead one."""
    pool: bool = field(default=True, validator=exactly(bool))
    """Place small temporaries in one allocation."""
    numerics: Numerics = field(default=Numerics.EAGER, validator=exactly(Numerics))
    """`FAST` lets the pass `elide-roundings` run. `BATCH_INVARIANT` keeps reductions whole, their
    axes in the program's order."""
    passes: PassEdits = field(default=PassEdits(), validator=exactly(PassEdits))
    """Changes of `passes.loop_pipeline` and `passes.kernel_pipeline`."""
    verify_each: bool = field(default=False, validator=exactly(bool))
    """Verify the program after every pass that changed it."""
    keep_peak: bool = field(default=True, validator=exactly(bool))
    """Fuse less where the plan would need more memory than running operation by operation, each
    buffer freed after its last use."""
    hold_operands: bool = field(default=True, validator=exactly(bool))
    """Producers may be computed later than the program says, holding their operands longer."""
    reach: int = field(default=1 << 60, validator=natural)
    """Operations farther apart in the program than this do not join."""
    merge_candidates: int = field(default=8, validator=natural)
    """The most kernels that an operation tries to join."""
    search_steps: int = field(default=96, validator=natural)
    """The most nodes visited to prove that joining two kernels makes no cycle; beyond, they stay
    apart."""
    device_graphs: bool = field(default=False, validator=exactly(bool))
    """Plan what device graphs capture, and bring it together."""
    graph_parts: bool = field(default=True, validator=exactly(bool))
    """Graphs may capture parts of a program, and not only whole ones."""
    size_asserts: bool = field(default=False, validator=exactly(bool))
    """Raise where an op that is not torch's own returns something other than its meta function
    says, instead of mending it."""
    inputs_checked: bool = field(default=True, validator=exactly(bool))
    """Compare what the caller passes with what the program takes it for."""
    nan_asserts: bool = field(default=False, validator=exactly(bool))
    """Check every tensor that a kernel or call writes for NaN and infinity."""
    profile: bool = field(default=False, validator=exactly(bool))
    """Run each kernel and call inside a named range of the profiler."""

    comments: bool = field(default=True, validator=exactly(bool))
    """Say in the host program which operations each launch and call came from."""

    @property
    def in_order(self) -> bool:
        """Whether reductions take their terms in the program's order."""
        return self.numerics is Numerics.BATCH_INVARIANT
