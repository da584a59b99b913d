import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["gyrator_testing.filetest.plugin"]


def pytest_configure(config):
    """Register the emitter for `.gy` files."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from metal_harness import target

    from gyrator_codegen_metal.stage import MetalBackend
    from gyrator_testing.filetest.plugin import emission, register

    emit = emission(MetalBackend(), target())

    def function(schedule):
        """Return a kernel's text from its function on: the text is self-contained."""
        return "".join(emit(schedule).partition("kernel void")[1:])

    register(config, stages={"metal": function})


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")
