"""Programs in processes that are forked from one that has imported PyTorch and Gyrator.

A new Python spends some four seconds on these imports. Apart from them, the process that is forked
has done nothing: there is no session, no compiled graph and no thread in it.
"""

import atexit
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch._functorch.aot_autograd", "gyrator.session"]
)
SECONDS = 240.0


def run_forked(
    program: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c` would, and return its status and output.

    Args:
        program: Python source.
        arguments: the rest of `sys.argv`.
        environment: all its variables; those of this process if None. Variables that libraries
            read while they are loaded, such as OMP_NUM_THREADS and TORCH_LOGS, have no effect.

    Raises:
        subprocess.TimeoutExpired: after `SECONDS`.
    """
    with tempfile.TemporaryDirectory() as name:
        process = start_forked(program, Path(name), arguments, environment)
        process.join(SECONDS)
        errors = Path(name, "errors")
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired("python", SECONDS, stderr=errors.read_bytes())
        texts = (Path(name, "output").read_text(), errors.read_text())
        return subprocess.CompletedProcess(["python", *arguments], process.exitcode, *texts)


def start_forked(
    program: str,
    folder: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> BaseProcess:
    """Start a program as `run_forked` does; it writes to `output` and `errors` in `folder`."""
    variables = dict(os.environ if environment is None else environment)
    files = (str(folder / "output"), str(folder / "errors"))
    inputs = (program, list(arguments), variables, os.getcwd(), *files)
    process = CONTEXT.Process(target=_execute, args=inputs)
    process.start()
    return process


def _execute(
    program: str,
    arguments: list[str],
    variables: dict[str, str],
    folder: str,
    output: str,
    errors: str,
) -> None:
    for number, name in ((1, output), (2, errors)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["-c", *arguments]
    sys.modules["__main__"] = main = ModuleType("__main__")
    try:
        exec(compile(program, "<string>", "exec"), main.__dict__)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
