"""Makes the passes known to file tests."""

import pytest

from gyrator_codegen.passes.registry import all_passes

pytest_plugins = ["gyrator_testing.filetest.plugin"]


def pytest_configure(config: pytest.Config) -> None:
    """Register what this package offers to its `.gy` files."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from gyrator_testing.filetest.plugin import register

    register(config, passes=all_passes())
