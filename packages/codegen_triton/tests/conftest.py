import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["gyrator_testing.filetest.plugin"]


def pytest_configure(config):
    """Register the emitter for `.gy` files."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from triton_harness import written

    from gyrator_testing.filetest.plugin import register

    register(config, stages={"triton": written})


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def interpreter():
    from gyrator_testing.triton import TritonInterpreter

    process = TritonInterpreter()
    yield process
    process.close()
