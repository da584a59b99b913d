"""Fixtures for the tests of the checkers."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    """Return the script `ci/<name>.py` as a module."""
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / "ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def layers() -> ModuleType:
    """The layer checker."""
    return load("check_layers")


@pytest.fixture(scope="session")
def examples() -> ModuleType:
    """The runner of documentation examples."""
    return load("run_doc_examples")


@pytest.fixture(scope="session")
def promises() -> ModuleType:
    """The table of what functions promise."""
    return load("contracts")


@pytest.fixture(scope="session")
def listing() -> ModuleType:
    """What reads the packages' metadata."""
    return load("distributions")


@pytest.fixture(scope="session")
def unused() -> ModuleType:
    """The checker of what does nothing."""
    return load("check_unused")


@pytest.fixture(scope="session")
def sizes() -> ModuleType:
    """The checker of sizes."""
    return load("check_sizes")


@pytest.fixture(scope="session")
def public_api() -> ModuleType:
    """The checker of public names."""
    return load("public_api")


@pytest.fixture(scope="session")
def names() -> ModuleType:
    """The checker of names."""
    return load("check_names")
