"""What all suites have in common."""

import gc
import sys


def pytest_runtest_setup() -> None:
    """Keep Dynamo from measuring guards: the measurement empties the processor's caches, which
    takes a third of the compilation of a small graph, and only logs and metrics show its result."""
    guards = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        vars(guards)["profile_guard_manager"] = _no_latency


def _no_latency(*_: object) -> float:
    return 0.0


def pytest_unconfigure() -> None:
    """Keep pytest from collecting what is left five times, to warn of exceptions in finalizers:
    behind thousands of tests that takes seconds, and the process ends anyway."""
    gc.freeze()
