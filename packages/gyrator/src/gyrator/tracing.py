"""Writing what each stage made into a folder, for people and for `gyrator opt`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen

from gyrator_ir.host.print import show as show_host
from gyrator_ir.kernel.print import show as show_kernel
from gyrator_ir.loop.print import show as show_loop

_SHOW: dict[str, Callable[[Any], str]] = {
    "loop": show_loop,
    "kernel": show_kernel,
    "host": show_host,
}


@frozen
class Trace:
    """A folder of one compile, or None for no trace."""

    folder: Path | None

    @classmethod
    def open(cls, root: str, phase: str) -> "Trace":
        """Make the next numbered folder under `root`; an empty `root` traces nothing."""
        if not root:
            return cls(None)
        for number in range(10_000):
            folder = Path(root) / f"{number:03d}_{phase}"
            try:
                os.makedirs(folder)
            except FileExistsError:
                continue
            return cls(folder)
        raise FileExistsError(f"{root} holds ten thousand traces; choose another folder")

    def write(self, name: str, text: Callable[[], str]) -> None:
        """Write one file; `text` is called only if there is a folder."""
        if self.folder is not None:
            (self.folder / name).write_text(text(), encoding="utf-8")

    def text(self, name: str, text: str) -> None:
        """Write one file."""
        self.write(name, lambda: text)

    def ir(self, level: str, program: Any) -> None:
        """Write a program of the level `loop`, `kernel` or `host`."""
        self.write(f"{level}.gy", lambda: _SHOW[level](program))
