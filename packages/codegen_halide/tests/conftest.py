import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["gyrator_testing.filetest.plugin"]


def pytest_configure(config):
    """Register the emitter for `.gy` files."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from halide_harness import target

    from gyrator_codegen_halide.stage import HalideBackend
    from gyrator_testing.filetest.plugin import emission, register

    register(config, stages={"halide": emission(HalideBackend(), target("avx2"))})


def pytest_addoption(parser):
    parser.addoption(
        "--halide-kernels", type=int, default=5, help="random kernels of each form, for Halide"
    )


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")
