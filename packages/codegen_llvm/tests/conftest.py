import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["gyrator_testing.filetest.plugin"]


def pytest_configure(config):
    """Register the emitter for `.gy` files."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from llvm_harness import target

    from gyrator_codegen_llvm.stage import LlvmBackend
    from gyrator_testing.filetest.plugin import emission, register

    register(config, stages={"llvm": emission(LlvmBackend(), target("avx2"))})
