"""What cache keys are made of."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from gyrator import Session
from gyrator.targets.cpu import CPU
from gyrator.targets.gpu import CUDA_TARGET
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir import content
from gyrator_wrapper_fx.stage import FxWrapper
from gyrator_wrapper_python.stage import PythonWrapper

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
PACKAGES = ["gyrator"] + [
    re.match(r"[\w-]+", line)[0].replace("-", "_")  # type: ignore[index]
    for line in PROJECT["dependencies"]
    if line.startswith("gyrator-")
]


def keys() -> list[Any]:
    """Return what keys say of the compiler, in each host language, and of kernel languages."""
    content._source.cache_clear()
    groups = ("gyrator.targets", "gyrator.optional_targets")
    targets = [e for group in groups for e in entry_points(group=group)]
    ours = [e.load() for e in targets if e.value.startswith("gyrator.targets.")]
    actual: list[Any] = [definition.kernels.content_hash for definition in ours]
    for wrapper in ("python", "cpp", "fx"):
        with Session(options={"wrapper": wrapper}) as session:
            actual.append(session.engine(session.options).context.identity)
    return actual


@pytest.mark.parametrize("package", PACKAGES)
def test_a_change_of_any_package_changes_keys(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys()
    assert keys() == before
    read = content._files
    monkeypatch.setattr(
        content, "_files", lambda folder: read(folder)[folder.endswith(f"/{package}") :]
    )
    assert keys() != before
    monkeypatch.undo()
    content._source.cache_clear()


def test_a_backend_has_one_digest_whoever_asks() -> None:
    session = Session()
    assert CPU.kernels.content_hash == CppBackend().content_hash
    assert CUDA_TARGET.kernels.content_hash == TritonBackend().content_hash
    assert session.wrappers["python"].content_hash == PythonWrapper().content_hash
    assert session.wrappers["fx"].content_hash == FxWrapper().content_hash
