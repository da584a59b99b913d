"""Makes the helper module beside the tests importable, and the wrapper known to file tests."""

import sys
from pathlib import Path

from gyrator_wrapper_fx.stage import FxWrapper

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["gyrator_testing.filetest.plugin"]


def pytest_configure(config):
    """Register the wrapper for `.gy` files."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from gyrator_testing.filetest.plugin import register

    register(config, stages={"host fx": lambda program: FxWrapper().emit(program).text})
