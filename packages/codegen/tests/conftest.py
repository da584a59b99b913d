"""Makes the passes known to file tests."""

import pytest

from gyrator_codegen.passes import all_passes
from gyrator_testing.filetest.plugin import register

pytest_plugins = ["gyrator_testing.filetest.plugin"]


def pytest_configure(config: pytest.Config) -> None:
    """Register what this package offers to its `.gy` files."""
    register(config, passes=all_passes())
