import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")
