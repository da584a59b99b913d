import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser):
    parser.addoption(
        "--halide-kernels", type=int, default=5, help="random kernels of each form, for Halide"
    )


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")
