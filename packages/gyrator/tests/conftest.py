"""A strict session in a cache of its own, and child processes for what ends a process."""

import json
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gyrator.config import Config, read_config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_runtime import toolchain

sys.path.insert(0, str(Path(__file__).parent))  # modules beside the tests

from forked import run_forked
from runner_cache import with_runner


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make half of the cells of this suite's tests with independent parameters long tests.

    Each value of each parameter stays in half of its cells: of two values beside two others, the
    first one beside the first and the second one beside the second.
    """
    here = Path(__file__).parent
    own = [i for i in items if isinstance(i, pytest.Function) and here in i.path.parents]
    for item in own:
        if sum(independent_places(item)) % 2:
            item.add_marker(pytest.mark.long)


def independent_places(item: pytest.Function) -> list[int]:
    """Return where a test's values stand in each of its `parametrize` marks.

    Values that are long tests by themselves do not count, nor do marks without other values.
    """
    marks = list(item.iter_markers("parametrize"))
    places: list[int] = []
    for mark in marks if len(marks) > 1 else ():
        names, sets = mark.args[0], mark.args[1]
        names = names.replace(",", " ").split() if isinstance(names, str) else names
        chosen = [item.callspec.params[name] for name in names]
        short = [values for values, long in (_values(one, len(names)) for one in sets) if not long]
        equal = (all(map(operator.is_, values, chosen)) for values in short)
        if len(short) > 1:
            places += [k for k, same in enumerate(equal) if same][:1]
    return places if len(places) > 1 else []


def _values(one: Any, count: int) -> tuple[Sequence[Any], bool]:
    """Return the values of an entry of a `parametrize` mark, and whether it is a long test."""
    if isinstance(one, type(pytest.param())):
        return one.values, any(mark.name == "long" for mark in one.marks)
    return (one if count > 1 else (one,)), False


@pytest.fixture(scope="session")
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that every test of the run shares."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def config(cache_root: Path) -> Config:
    """Settings that name the run's cache folder."""
    return Config(cache_root, 1 << 30, "")


@pytest.fixture
def records() -> list[GraphRecord]:
    """What was compiled, in order."""
    return []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the form of the host programs that the suite compiles, how long leaks are sought, and
    which libtorch C programs load."""
    parser.addoption("--wrapper", default="python", choices=("python", "cpp", "fx"))
    parser.addoption("--calls", type=int, help="calls of each kind in the search for leaks")
    parser.addoption("--libtorch", type=Path, help="a folder of libraries, this torch's by default")


@pytest.fixture
def session(
    request: pytest.FixtureRequest, config: Config, records: list[GraphRecord]
) -> Iterator[Session]:
    """A session that raises what it cannot compile."""
    torch._dynamo.reset()
    wrapper = request.config.getoption("--wrapper", "python")
    options = {"strict": True, "progress": False, "wrapper": wrapper}
    with Session(options=options, config=config, observer=records.append) as session:
        yield session


@pytest.fixture
def bitwise(config: Config, records: list[GraphRecord]) -> Iterator[Session]:
    """A strict session whose results have eager's bits."""
    torch._dynamo.reset()
    options = {"strict": True, "progress": False, "numerics": "bitwise"}
    with Session(options=options, config=config, observer=records.append) as session:
        yield session


@pytest.fixture
def lightly_optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags that users have, followed by `-Og`: a third of the compiler's time.

    For tests that build many large kernels to compare what they compute. Flags that may change
    results, of contraction and reassociation, are independent of the level of optimisation.
    """
    flags = {isa: (*own, "-Og") for isa, own in toolchain.ISA_FLAGS.items()}
    monkeypatch.setattr(toolchain, "ISA_FLAGS", flags)


@pytest.fixture
def on_target(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A function that compiles another one for a target of `GYRATOR_TARGETS`, in a cache of the
    test's own, and returns it with the list of what was compiled."""
    torch._dynamo.reset()
    opened: list[Session] = []

    def make(function: Any, target: str, dynamic: bool = False, **options: Any) -> Any:
        cache = with_runner(tmp_path / "cache")
        inputs = os.environ | {"GYRATOR_TARGETS": target, "GYRATOR_CACHE_DIR": str(cache)}
        records: list[GraphRecord] = []
        session = Session(config=read_config(inputs), options=options, observer=records.append)
        opened.append(session)
        return torch.compile(function, backend=session.backend, dynamic=dynamic), records

    yield make
    for session in opened:
        session.close()


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    """Fresh inputs that a failing run can repeat: the seed is the test's name."""
    torch.manual_seed(sum(map(ord, request.node.nodeid)))


Child = Callable[..., dict[str, Any]]

PREAMBLE = """
import json, os, sys, warnings, threading
import torch
caught = []
warnings.simplefilter("always")
def show(message, category, *rest):
    if category.__name__ == "GyratorWarning":
        caught.append(str(message))
warnings.showwarning = show
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
records = []
def f(x, w):
    return torch.softmax(x @ w, -1).relu() + x.sum()
def report(**more):
    rows = [[r.phase, len(r.kernels), r.cached, r.fallback] for r in records]
    print("REPORT " + json.dumps({"warnings": caught, "records": rows, **more}))
torch.manual_seed(int(os.environ.get("SEED", "1")))
x, w = torch.randn(5, 7), torch.randn(7, 9)
"""


def run_child(script: str, environment: Mapping[str, str], cache: Path) -> dict[str, Any]:
    """Run a script in a process of its own with this cache; return what its `report` said.

    The script finds a function `f(x, w)`, its arguments, `records` and `report` ready.
    """
    done = run_forked(PREAMBLE + script, environment=child_environment(cache, environment))
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert done.returncode == 0 and lines, done.stderr[-3000:]
    actual: dict[str, Any] = json.loads(lines[-1].removeprefix("REPORT "))
    return actual


@pytest.fixture
def child(tmp_path: Path) -> Child:
    """Return `run_child` with a cache of this test, where no other one is given."""

    def run(
        script: str, environment: Mapping[str, str] | None = None, cache: Path | None = None
    ) -> dict[str, Any]:
        return run_child(script, environment or {}, cache or tmp_path / "cache")

    return run


def child_environment(cache: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child process."""
    return {**os.environ, "GYRATOR_CACHE_DIR": str(cache), **(more or {})}
