"""What a user meets when options, targets or requests are wrong: the code and the next step."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest
import torch
from attrs import evolve
from forked import run_forked

from gyrator import OptionError, Session
from gyrator.config import read_config
from gyrator.engine import pipeline
from gyrator.targets import GROUP, TargetError, discover
from gyrator.targets.cpu import CPU
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.warn import GyratorWarning


def diagnostic(error: BaseException):
    """Return the diagnostic of the error that Dynamo may have wrapped."""
    actual: BaseException | None = error
    while actual is not None and not isinstance(actual, GyratorError):
        actual = getattr(actual, "inner_exception", None) or actual.__cause__
    assert actual is not None, f"no GyratorError behind {error!r}"
    return actual.diagnostic


def double(x):
    return x * 2


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Return a function that compiles `double` with a session of its own."""
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()

    def make(**options):
        session = Session(options={"cache": False, "progress": False, **options})
        return torch.compile(double, backend=session.backend)

    return make


@pytest.mark.parametrize(
    ("options", "code", "message", "help"),
    [
        ({"numeric": "fast"}, "GY-OPTION-001", "unknown option 'numeric'", "'numerics'?"),
        ({"zzz": 1}, "GY-OPTION-001", "unknown option 'zzz'", "known are: numerics, wrapper"),
        (
            {"numerics": "quick"},
            "GY-OPTION-003",
            "must be one of 'eager', 'fast', 'bitwise', 'batch_invariant', not 'quick'",
            "round",
        ),
        ({"numerics": True}, "GY-OPTION-003", "must be one of 'eager', 'fast'", "round"),
        ({"trace_dir": 1}, "GY-OPTION-003", "'trace_dir' must be a string, not 1", "Folder"),
        ({"fusion": 1}, "GY-OPTION-003", "'fusion' must be True or False, not 1", "Fuse"),
        ({"threads": "2"}, "GY-OPTION-003", "must be a whole number, not '2'", "processes"),
        ({1: 2}, "GY-OPTION-001", "unknown option 1", "known are: numerics, wrapper"),
        ({"threads": -1}, "GY-OPTION-003", "'threads' must not be negative, but is -1", "0 means"),
        ({"triton.cudagraphs": True}, "GY-OPTION-001", "'triton.cudagraphs'", "`device_graphs`"),
        ([1], "GY-OPTION-003", "must be a mapping of names to values, not [1]", "numerics"),
    ],
)
def test_wrong_options_are_refused(options, code, message, help) -> None:
    """Wrong options raise whether or not the session is strict: eager mode would hide them."""
    with pytest.raises(OptionError) as error:
        Session(options=options)
    assert error.value.diagnostic.code == code
    assert message in error.value.diagnostic.message
    assert help in error.value.diagnostic.help

    torch._dynamo.reset()
    with pytest.raises(Exception, match=code) as wrapped:
        torch.compile(double, backend="gyrator", options=options)(torch.ones(2))
    assert diagnostic(wrapped.value).code == code


def test_an_unknown_mode_is_refused() -> None:
    """`torch.compile` hands the mode on as it is."""
    torch._dynamo.reset()
    with pytest.raises(Exception, match="GY-OPTION-002") as error:
        torch.compile(double, backend="gyrator", mode="max-autotun")(torch.ones(2))
    actual = diagnostic(error.value)
    assert actual.code == "GY-OPTION-002"
    assert actual.message == "unknown mode 'max-autotun'"
    assert "'max-autotune'?" in actual.help


@pytest.fixture
def advertised(monkeypatch):
    """Return a function that advertises the host's target again, changed, from another module."""
    ((definition, _), *_) = discover(read_config()).values()

    def make(module: str, **changes) -> EntryPoint:
        holder = ModuleType(module)
        holder.TARGET = evolve(definition, **changes)
        monkeypatch.setitem(sys.modules, module, holder)
        return EntryPoint(module, f"{module}:TARGET", GROUP)

    return make


def test_a_target_of_another_api_is_refused(advertised) -> None:
    """A vendor's package that was built for another version of gyrator."""
    with pytest.raises(TargetError) as error:
        discover(read_config(), [advertised("gyrator_vendor", api=99)])
    problem = error.value.diagnostic
    assert problem.code == "GY-TARGET-001"
    assert problem.message.startswith(
        "target 'gyrator_vendor' has API 99, but this Gyrator has API"
    )
    assert problem.where == "gyrator_vendor:TARGET"
    assert problem.help == "upgrade the older one"


def test_two_targets_for_one_device_type_are_refused(advertised) -> None:
    """The message names both packages."""
    with pytest.raises(TargetError) as error:
        discover(read_config(), [advertised("gyrator_one"), advertised("gyrator_two")])
    problem = error.value.diagnostic
    assert problem.code == "GY-TARGET-002"
    assert problem.message == "two targets claim device type 'cpu'"
    assert problem.provenance == ("gyrator_one:TARGET", "gyrator_two:TARGET")
    assert problem.help == "uninstall one, or set GYRATOR_TARGETS to the name of the one to use"


def test_a_target_that_is_named_goes_before_others(advertised) -> None:
    """An optional one serves nothing until it is named."""
    config = read_config()
    points = [advertised("gyrator_one"), advertised("gyrator_two", name="two", optional=True)]
    for inputs in (points, points[::-1]):
        ((actual, _),) = discover(config, inputs).values()
        assert actual.name != "two"
        ((actual, _),) = discover(evolve(config, targets=frozenset({"two"})), inputs).values()
        assert actual.name == "two"


def test_a_device_that_is_not_used_yet_is_left_uninitialised(advertised) -> None:
    """Probing it would start it up, and a process that has done so can no longer fork."""
    probed: list[str] = []
    uninitialised = [True]

    def probe(config):
        probed.append("vendor")
        return evolve(CPU.probe(config), device="vendor")

    point = advertised("gyrator_vendor", probe=probe, uninitialised=lambda: uninitialised[0])
    assert list(discover(read_config(), [point], initialise=False)) == [] and probed == []
    assert list(discover(read_config(), [point])) == ["vendor"]
    uninitialised[0] = False
    assert list(discover(read_config(), [point], initialise=False)) == ["vendor"]


def test_a_session_takes_in_a_device_once_it_is_used(advertised, monkeypatch) -> None:
    """Programs that were compiled before keep their compiler."""
    uninitialised = [True]

    def probe(config):
        return evolve(CPU.probe(config), device="vendor")

    vendor = advertised("gyrator_vendor", probe=probe, uninitialised=lambda: uninitialised[0])
    points = (advertised("gyrator_host"), vendor)
    monkeypatch.setattr("gyrator.targets.entry_points", lambda: EntryPoints(points))
    with Session() as session:
        first = session.engine(session.options)
        assert list(session.targets) == ["cpu"]
        assert session.engine(session.options) is first
        uninitialised[0] = False
        assert list(session.targets) == ["cpu", "vendor"]
        assert list(session.engine(session.options).context.targets) == ["cpu", "vendor"]
        assert session.targets is session.targets


def test_a_device_without_target_is_refused_or_runs_eagerly(compiled) -> None:
    """No target serves the device type `meta`."""
    x = torch.ones(3, device="meta")
    with pytest.raises(Exception, match="GY-TARGET-003") as error:
        compiled(strict=True)(x)
    actual = diagnostic(error.value)
    assert actual.code == "GY-TARGET-003"
    assert actual.message == "no target for device type 'meta'"
    assert "installed targets: " in actual.help and "gyrator doctor" in actual.help

    torch._dynamo.reset()
    with pytest.warns(GyratorWarning, match="GY-TARGET-003: a graph .* runs eagerly"):
        assert compiled()(x).device.type == "meta"


def test_a_bug_of_the_compiler_costs_a_warning(compiled, monkeypatch) -> None:
    """The graph runs eagerly, and the warning asks for a report; strict sessions raise."""

    def broken(*_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(pipeline, "lower", broken)
    x = torch.arange(3.0)
    with pytest.warns(GyratorWarning) as caught:
        assert torch.equal(compiled()(x), x * 2)
    (text,) = [str(w.message) for w in caught if isinstance(w.message, GyratorWarning)]
    assert text.startswith("GY-COMPILE-001: a graph (")
    assert "runs eagerly: ZeroDivisionError: oops" in text
    assert "please report it; options={'strict': True}" in text

    torch._dynamo.reset()
    with pytest.raises(Exception, match="oops"):
        compiled(strict=True)(x)


def test_keys_and_stored_programs_need_no_stage() -> None:
    """All that a warm start does before it runs a stored program, in a process of its own."""
    code = """
import sys
import gyrator
import gyrator.store.programs
session = gyrator.default_session()
assert session.engine(session.options).context.identity
stages = ("lowering.rules", "scheduler", "codegen", "wrapper", "ir.loop", "ir.kernel", "ir.host")
print([s for s in stages if any(m.startswith(f"gyrator_{s}") for m in sys.modules)])
"""
    done = run_forked(code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
