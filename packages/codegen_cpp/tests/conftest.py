import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["gyrator_testing.filetest.plugin"]


def pytest_configure(config):
    """Register the emitter for `.gy` files, by instruction set."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from harness import ARCHS, target

    from gyrator_codegen_cpp.stage import CppBackend
    from gyrator_testing.filetest.plugin import emission, register

    register(config, stages={f"c++ {arch}": emission(CppBackend(), target(arch)) for arch in ARCHS})


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")
