"""Child processes with a time limit, such as compilers."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

_MAX_OUTPUT = 64 << 10
_SCRATCH = ".scratch"
_CACHES = ("ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR")
"""Variables of cache folders that a compiler would otherwise fill permanently."""

# A fork while a child is being started would inherit the write ends of its pipes, and the reader
# would wait for the forked process to exit. Forks therefore wait until the child is started.
_SPAWNING = threading.Lock()
os.register_at_fork(
    before=_SPAWNING.acquire, after_in_parent=_SPAWNING.release, after_in_child=_SPAWNING.release
)


def spawning() -> contextlib.AbstractContextManager[object]:
    """Return the lock to hold while a child process is being started: forks wait for it."""
    return _SPAWNING


class Limited:
    """A command that runs with a time limit in its own process group."""

    def __init__(
        self, command: Sequence[str], seconds: float, folder: Path | None = None, stdin: bytes = b""
    ) -> None:
        """Start the command. OSError if that fails.

        Args:
            command: program and arguments.
            seconds: time limit.
            folder: working directory, also for its temporary files; None for the current one.
            stdin: its input.
        """
        self.late = False
        """Whether it exceeded the time limit."""
        # Not pipes: a process that it leaves behind may keep them open.
        self._output = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._scratch = None if folder is None else folder.absolute() / _SCRATCH
        own = {} if folder is None else {"TMPDIR": str(folder)}
        own |= dict.fromkeys(() if folder is None else _CACHES, str(self._scratch))
        try:
            with tempfile.TemporaryFile(dir=folder) as source:
                source.write(stdin)
                source.seek(0)
                with spawning():
                    self._child = subprocess.Popen(
                        command,
                        cwd=folder,
                        env={**os.environ, "LC_ALL": "C", **own},
                        stdin=source,
                        stdout=self._output,
                        stderr=subprocess.STDOUT,
                        process_group=0,
                    )
        except BaseException:
            self._output.close()
            raise
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._expire)
        self._timer.daemon = True
        self._timer.start()

    def wait(self) -> tuple[int, str]:
        """Wait, and return the exit status and the end of the output."""
        with self._output:
            try:
                # No timeout argument: Python would poll every 50 ms.
                status = self._child.wait()
            except BaseException:
                self.kill()
                self._child.wait()
                raise
            finally:
                self._timer.cancel()
                if self._scratch is not None:
                    shutil.rmtree(self._scratch, ignore_errors=True)
            size = self._output.seek(0, os.SEEK_END)
            self._output.seek(max(size - _MAX_OUTPUT, 0))
            return status, self._output.read().decode(errors="replace")

    def kill(self) -> None:
        """Kill the command and all processes in its group."""
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _expire(self) -> None:
        self.late = True
        self.kill()


def run_limited(
    command: Sequence[str], seconds: float, folder: Path, stdin: bytes = b"", lines: int = 40
) -> None:
    """Run a command. SubprocessError with the last `lines` of its output if it fails or is late."""
    child = Limited(command, seconds, folder, stdin)
    status, output = child.wait()
    if child.late:
        raise subprocess.SubprocessError(f"{command[0]} took more than {seconds:g} s")
    if status:
        last = "\n".join(output.strip().splitlines()[-lines:])
        raise subprocess.SubprocessError(last or f"{command[0]} failed with status {status}")
