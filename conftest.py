"""What all suites have in common."""

import sys


def pytest_runtest_setup() -> None:
    """Keep Dynamo from measuring guards: the measurement empties the processor's caches, which
    takes a third of the compilation of a small graph, and only logs and metrics show its result."""
    guards = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        vars(guards)["profile_guard_manager"] = _no_latency


def _no_latency(*_: object) -> float:
    return 0.0
