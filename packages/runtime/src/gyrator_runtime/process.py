"""Child processes that end: compilers with a time limit."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

_MOST_OUTPUT = 64 << 10
_SCRATCH = ".scratch"
_CACHES = ("ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR")
"""Where a compiler would keep, for ever, what it has built."""

# A fork while a child is being started would copy the writing ends of its pipes, and our reader
# would then wait for the child of that fork to exit; so forks wait for the start instead.
_SPAWNING = threading.Lock()
os.register_at_fork(
    before=_SPAWNING.acquire,
    after_in_parent=_SPAWNING.release,
    after_in_child=_SPAWNING.release,
)


def spawning() -> contextlib.AbstractContextManager[object]:
    """Return what must be held while a child process is being started: forks wait for it."""
    return _SPAWNING


class Limited:
    """A command that runs in `folder`, at most so many seconds, in a process group of its own."""

    def __init__(
        self,
        command: Sequence[str],
        seconds: float,
        folder: Path | None = None,
        given: bytes = b"",
    ) -> None:
        """Start it. OSError where that fails.

        Args:
            command: program and arguments.
            seconds: how long it may take.
            folder: where it runs, and keeps its own temporary files; None for where we are.
            given: its input.
        """
        self.late = False
        """Whether it took too long."""
        # Not pipes: something that it leaves behind may keep them open.
        self._output = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._scratch = None if folder is None else folder.absolute() / _SCRATCH
        own = {} if folder is None else {"TMPDIR": str(folder)}
        own |= dict.fromkeys(() if folder is None else _CACHES, str(self._scratch))
        try:
            with tempfile.TemporaryFile(dir=folder) as source:
                source.write(given)
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
        """Return its exit status and the last of what it printed."""
        with self._output:
            try:
                # Without a time limit: Python would look whether it has ended every 50 ms.
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
            self._output.seek(max(size - _MOST_OUTPUT, 0))
            return status, self._output.read().decode(errors="replace")

    def kill(self) -> None:
        """End it, and all that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _expire(self) -> None:
        self.late = True
        self.kill()
