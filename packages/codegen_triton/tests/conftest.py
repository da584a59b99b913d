import os
import sys
from pathlib import Path

import pytest

# Triton decides when it is imported whether its functions are interpreted.
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")
