"""What a release of PyTorch gets wrong or lacks, for tests that cannot pass with it.

Each is a mark that skips a test, and says so in its reason.
"""

import pytest
import torch

_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12)


def _old(what: str) -> pytest.MarkDecorator:
    """Skip with the oldest release that is supported, whose own backends fail alike."""
    return pytest.mark.skipif(_OLD, reason=f"PyTorch 2.11 {what}")


ACCEPTS = _old("traces or runs some programs that eager mode refuses without an error")
BOOLEAN_CHECKS = _old("drops `torch._check` of a boolean that is read back")
BRANCHES_THAT_WRITE = _old("refuses branches of `cond` that write to their arguments")
COUNTS = _old("traces counts with the dtype of the values; such graphs run in eager mode")
ERRORS_IN_C = _old("tells a host program in C++ no reason of an error")
EXPORTED_LSTMS = _old("exports LSTMs whose last states have an axis too many")
FORMULAS = _old("rewrites in-place formulas with other roundings, with any backend")
LOGITS = _old("traces a loss of logits with their dtype; such graphs run in eager mode")
LOOPS_IN_MAPS = _old("loses sizes in gradients of a loop in a map")
OTHER_ERRORS = _old("raises errors of its own for fake tensors instead of eager mode's")
PACKED = _old("traces no packed sequences with `allow_rnn`")
SAVING = pytest.mark.skipif(
    not hasattr(torch.compile(abs), "aot_compile"), reason="PyTorch has no `aot_compile` here"
)
SCALED = _old("has no `scaled_mm` on CPUs")
SCANS = _old("takes results of the gradients of `scan` for aliases")
SUBCLASSES = _old("breaks graphs where a subclass makes itself, and then fails")
TRACED_RIGHT = _old("refuses this in an error of its own, or traces it as eager mode has it")
