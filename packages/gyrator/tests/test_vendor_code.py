"""What a vendor's target gives is checked, and what fails in its code is named after it."""

from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
import torch
from attrs import evolve, frozen

from gyrator import GraphRecord, Session
from gyrator.config import Config
from gyrator.targets import API, GROUP, TargetDefinition, TargetError, discover
from gyrator.targets.cpu import CPU
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_runtime.warn import GyratorWarning


@frozen
class Language:
    """C++, from somebody else, with something done to what it emits."""

    does: Any = None
    name: str = "c++"
    content_hash: str = "a test's"

    def refuses(self, kernel: Any, target: Target) -> None:
        return None

    def emit(self, kernels: Any, facts: Any, origins: Any, target: Target) -> Any:
        result = CppBackend().emit(kernels, facts, origins, target)
        return self.does(result)


def acme(**changes: Any) -> TargetDefinition:
    fields = {
        "name": "acme", "api": API, "probe": lambda config: CPU.probe(config),
        "kernels": Language(lambda value: value), "device": CPU.device, "loader": CPU.loader,
    }  # fmt: skip
    return TargetDefinition(**{**fields, **changes})


WRONG = {
    "name": "",
    "api": "1",
    "probe": None,
    "kernels": Language,
    "device": 3,
    "loader": "acme:load",
    "variants": (),
    "load": None,
    "uninitialised": True,
    "machine": "box",
}


@pytest.mark.parametrize("field", WRONG)
def test_a_field_that_is_wrong_is_named(field: str) -> None:
    with pytest.raises(TargetError) as raised:
        acme(**{field: WRONG[field]})
    diagnostic = raised.value.diagnostic
    assert diagnostic.code == "GY-TARGET-004"
    assert f"`{field}` of" in diagnostic.message and "must be" in diagnostic.message
    assert field == "name" or "'acme'" in diagnostic.message
    assert "add-a-target" in diagnostic.help


HOST = EntryPoint("cpu", "gyrator.targets.cpu:CPU", GROUP)


def advertise(monkeypatch: pytest.MonkeyPatch, target: object) -> EntryPoint:
    holder = ModuleType("acme_package")
    holder.TARGET = target  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "acme_package", holder)
    return EntryPoint("acme", "acme_package:TARGET", GROUP)


def test_what_is_no_target_is_refused(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match=r"GY-TARGET-004: the target 'acme' is a dict"):
        discover(config, [advertise(monkeypatch, {"name": "acme"})])
    with pytest.raises(TargetError, match=r"GY-TARGET-004: `probe` of .*'acme' returned a str"):
        discover(config, [advertise(monkeypatch, acme(probe=lambda config: "cpu"))])


def test_a_package_that_cannot_be_imported_leaves_others_alone(config: Config) -> None:
    broken = EntryPoint("acme", "acme_that_is_not_there:TARGET", GROUP)
    with pytest.warns(GyratorWarning, match=r"GY-TARGET-005: the target 'acme' cannot"):
        assert "cpu" in discover(config, [broken, HOST])


def test_a_probe_that_fails_leaves_others_alone(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(config: Config) -> Target:
        raise OSError("no driver")

    points = [
        advertise(monkeypatch, acme(probe=probe)), HOST
    ]  # fmt: skip
    message = r"006: the target 'acme' failed in `probe`: OSError: no driver"
    with pytest.warns(GyratorWarning, match=message):
        assert list(discover(config, points)) == ["cpu"]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def run(config: Config, definition: TargetDefinition, strict: bool = True) -> torch.Tensor:
    torch._dynamo.reset()
    target = CPU.probe(config)
    assert target is not None
    options = {"strict": strict, "progress": False, "cache": False}
    with Session(options=options, config=config, targets={"cpu": (definition, target)}) as session:
        result: torch.Tensor = torch.compile(double, backend=session.backend)(torch.ones(3))
    return result


def renamed(unit: TranslationUnit, **changes: Any) -> TranslationUnit:
    return evolve(unit, kernels=tuple(evolve(k, **changes) for k in unit.kernels))


def failing(*_: Any) -> Any:
    raise KeyError("bolt")


@frozen
class Addresses:
    value: Any

    identity = b"acme"

    def submit(self, units: Any) -> Any:
        return self

    def libraries(self) -> tuple[Any, ...]:
        return ()

    def addresses(self) -> Any:
        return self.value() if callable(self.value) else self.value


# What is given wrongly is GY-TARGET-007, what raises GY-TARGET-006.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "emit gives a list": ({"kernels": Language(list)}, "007: `emit` .*'c\\+\\+' returned a list"),
    "emit gives text": ({"kernels": Language(lambda units: ("text",))}, "007: .* with a str"),
    "emit leaves one out": ({"kernels": Language(lambda units: ())}, "007: .* omitted the kernel"),
    "emit renames": (
        {"kernels": Language(lambda units: tuple(renamed(u, kernel="other") for u in units))},
        "007: .* returned the kernel 'other', which was not requested",
    ),
    "emit repeats": ({"kernels": Language(lambda units: units * 2)}, "007: .* returned two units"),
    "emit fails": (
        {"kernels": Language(failing)}, "006: the target 'acme' failed in `emit`: KeyError: 'bolt'"
    ),
    "loader fails": ({"loader": failing}, "006: .* failed in `loader`"),
    "addresses lack": (
        {"loader": lambda target, context: Addresses({})}, "007: .*'acme' have no function for"
    ),
    "addresses are a list": (
        {"loader": lambda target, context: Addresses([])}, "007: .* are a list"
    ),
    "addresses fail": (
        {"loader": lambda target, context: Addresses(failing)}, "006: .* failed in `addresses`"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_in_a_vendors_code_names_it(config: Config, what: str) -> None:
    changes, message = BAD[what]
    with pytest.raises(Exception, match=f"GY-TARGET-{message}"):
        run(config, acme(**changes))
    with pytest.warns(
        GyratorWarning, match=f"runs eagerly: .*{message.partition(': ')[2].removeprefix('.*')}"
    ):
        result = run(config, acme(**changes), strict=False)
    assert result.tolist() == [3, 3, 3]


def test_a_vendors_target_that_is_right_runs(config: Config, records: list[GraphRecord]) -> None:
    assert run(config, acme()).tolist() == [3, 3, 3]


def test_errors_of_our_own_targets_are_ours(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyrator_codegen_cpp.stage.CppBackend.emit_tiled", failing)
    with pytest.warns(GyratorWarning, match=r"GY-COMPILE-001.*KeyError"):
        assert run(config, CPU, strict=False).tolist() == [3, 3, 3]
