"""The native runner's build begins when Dynamo begins to trace for a session that needs it."""

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from runner_cache import with_runner

from gyrator import Session
from gyrator.frontend.dynamo import callbacks
from gyrator.frontend.dynamo.callbacks import watch_compiles
from gyrator_runtime.cache import Cache

from .conftest import run_child

BY_NAME = """
from gyrator.frontend.dynamo import callbacks
from gyrator.session import default_session

caches, seen = [], []
callbacks.begin_runner = caches.append
compile = Session.backend

def backend(self, *args, **kwargs):
    seen.append(list(caches))
    return compile(self, *args, **kwargs)

Session.backend = backend
fast = torch.compile(torch.sin, backend="gyrator")
assert not caches and not default_session.cache_info().currsize
for x in x, w:
    torch.testing.assert_close(fast(x), x.sin())
assert seen == [[default_session().cache]] * 2, seen
report()
"""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Cache]]:
    """The caches for which the build of a runner has begun."""
    caches: list[Cache] = []
    callbacks.RUNNERS.start(None)  # what other tests have left
    monkeypatch.setattr(callbacks, "begin_runner", caches.append)
    torch._dynamo.reset()
    yield caches
    torch._dynamo.reset()
    watch_compiles()


def traced(begun: list[Cache]) -> list[Cache]:
    """Compile something in eager mode, and return the caches begun when its trace was done."""
    actual: list[Cache] = []

    def backend(gm: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        actual.extend(begun)
        return gm.forward

    torch._dynamo.reset_code_caches()
    torch.compile(torch.sin, backend=backend)(torch.randn(3))
    return actual


def test_a_session_begins_its_runner_before_a_trace_and_only_once(
    begun: list[Cache], tmp_path: Path
) -> None:
    with Session(cache=Cache(tmp_path)) as session:
        assert begun == []
        assert traced(begun) == [session.cache]
        assert traced(begun) == [session.cache]


@pytest.mark.parametrize(
    "options", [{"wrapper": "cpp"}, {"wrapper": "fx"}, {"debug_python": True},
                {"memory_asserts": True}],
    ids=str,
)  # fmt: skip
def test_sessions_whose_programs_do_not_run_in_it_begin_none(
    begun: list[Cache], options: dict[str, Any]
) -> None:
    with Session(options=options):
        assert traced(begun) == []


def test_a_session_that_is_gone_begins_none(begun: list[Cache]) -> None:
    Session()
    gc.collect()
    assert traced(begun) == []


def test_the_default_session_opens_and_begins_its_runner_with_the_first_trace(
    tmp_path: Path,
) -> None:
    run_child(BY_NAME, {}, with_runner(tmp_path / "cache"))
