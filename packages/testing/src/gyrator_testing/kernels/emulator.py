"""Kernels of another architecture, run under qemu's user-mode emulation."""

import functools
import platform
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from attrs import define, field, frozen

from gyrator_testing.interp.dtypes import Array

Argument: TypeAlias = "int | Array | Sequence[Argument]"
"""An argument of a function: a 64-bit number, memory, or a list of pointers and numbers."""


@frozen
class Machine:
    """The compiler and emulator of an architecture on this machine."""

    name: str
    """As in `platform.machine()`."""
    compiler: str
    emulator: tuple[str, ...]
    """The command that runs a program; empty on the machine itself."""


def machine(name: str) -> Machine | str:
    """Return the compiler and emulator of an architecture, or what this machine lacks for it."""
    if platform.machine() == name:
        return Machine(name, "g++", ())
    compiler, runner = f"{name}-linux-gnu-g++", f"qemu-{name}"
    lacking = [program for program in (compiler, runner) if shutil.which(program) is None]
    if lacking:
        package = name.replace("_", "-")
        return (
            f"this machine is no {name} and lacks {' and '.join(lacking)} "
            f"(Debian: apt-get install g++-{package}-linux-gnu qemu-user)"
        )
    return Machine(name, compiler, (runner, "-L", f"/usr/{name}-linux-gnu"))


@define(eq=False)
class Caller:
    """A process that calls functions in libraries. It is started by the first call."""

    machine: Machine
    folder: Path
    """The folder for the compiled calling program."""
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    def __call__(self, library: Path, symbol: str, *arguments: Argument) -> int:
        """Call a function with at most six arguments; memory is copied to the process and back.

        Raises:
            AssertionError: the function was killed by a signal, or does not exist.
        """
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        arrays: list[Array] = []
        message = _text(str(library)) + _text(symbol) + struct.pack("<q", len(arguments))
        message += b"".join(_packed(a, arrays) for a in arguments)
        try:
            process.stdin.write(message)
            process.stdin.flush()
        except BrokenPipeError:
            self._died(symbol)
        code = struct.unpack("<q", self._read(8, symbol))[0]
        for array in reversed(arrays):
            back = self._read(array.nbytes, symbol)
            array.reshape(-1).view("u1")[:] = memoryview(back)
        return int(code)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            program = _program(self.machine, self.folder)
            self._process = subprocess.Popen(
                (*self.machine.emulator, str(program)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        return self._process

    def _read(self, size: int, symbol: str) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) != size:
            self._died(symbol)
        return data

    def _died(self, symbol: str) -> None:
        assert self._process is not None
        _, stderr = self._process.communicate()
        status, self._process = self._process.returncode, None
        raise AssertionError(
            f"{symbol}: status {status}: {stderr.decode(errors='replace')[-1000:]}"
        )


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<q", len(data)) + data


def _packed(argument: Argument, arrays: list[Array]) -> bytes:
    if isinstance(argument, int):
        return struct.pack("<qq", 0, argument)
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        arrays.append(argument)
        return struct.pack("<qq", 1, argument.nbytes) + argument.tobytes()
    parts = [_packed(a, arrays) for a in argument]
    return struct.pack("<qq", 2, len(parts)) + b"".join(parts)


@functools.cache
def _program(machine: Machine, folder: Path) -> Path:
    """Build the calling program, linked with the libraries that kernels expect in their process."""
    path = folder / f"caller-{machine.name}"
    source = Path(__file__).with_name("caller.c")
    libraries = ("-Wl,--no-as-needed", "-lgomp", "-lm", "-ldl")
    command = (machine.compiler, "-x", "c", "-O1", "-o", str(path), str(source), *libraries)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return path
