import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gyrator_testing.triton import TritonInterpreter


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def interpreter():
    process = TritonInterpreter()
    yield process
    process.close()
