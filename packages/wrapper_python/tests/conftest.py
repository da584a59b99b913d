"""Makes the wrapper known to file tests."""

from gyrator_wrapper_python.stage import PythonWrapper

pytest_plugins = ["gyrator_testing.filetest.plugin"]


def pytest_configure(config):
    """Register the wrapper for `.gy` files."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from gyrator_testing.filetest.plugin import register

    register(config, stages={"host python": lambda program: PythonWrapper().emit(program).text})
