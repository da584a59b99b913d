"""pytest plugin: every `*.gy` file is a test. `GYRATOR_BLESS=1 pytest` rewrites expectations.

    ; test pass fuse{limit=4}          what to do; several may follow one another
    ; test stage schedule
    ; test interpret                   same results before and after, on seeded arguments
    ; test error                       the expectation is the text of the error
    ; test verify                      nothing but what every file gets: round trip and verifier
    <program of any level>
    ; expect                           everything after it is the exact expected text
    <program, text in another language, or the text of an error>

Every file is a round-trip test too, of its program and of its result. Blessing rewrites text; it
never waives the verifier, the interpreter or the round trip, and never turns a success into an
expected error. A package's `conftest.py` says which passes and stages its files may name, and which
levels of its own there are:

    pytest_plugins = ["gyrator_testing.filetest.plugin"]


    def pytest_configure(config):
        register(config, passes={DropDeadBuffers.name: DropDeadBuffers}, stages={"schedule": run})
"""

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gyrator_ir.backend import KernelBackend
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.kernel.nodes import Kernel, Schedule
from gyrator_ir.levels import level_of, level_of_text
from gyrator_ir.passes import Level, Pipeline
from gyrator_ir.target import Target
from gyrator_ir.text.passes import parse_pipeline
from gyrator_testing.feeds import assert_same_meaning

__all__ = ["Comparison", "Stage", "emission", "pytest_collect_file", "register"]

EXPECT = "; expect\n"
COMMANDS = ("pass", "stage", "verify", "interpret", "error")

Stage = Callable[[Any], Any]
"""Maps a program of one level to a program of the same or another level, or to text."""
Comparison = Callable[[Any, Any], None]
"""Raises AssertionError if a program and its transformed version have different results."""

PASSES = pytest.StashKey[dict[str, Callable[..., Any]]]()
STAGES = pytest.StashKey[dict[str, Stage]]()
LEVELS = pytest.StashKey[dict[Level[Any], Comparison]]()


class Mismatch(Exception):
    """The output differs from the expectation; the text is a unified diff."""


class BadFile(Exception):
    """The file contains an unknown command."""


def register(
    config: pytest.Config,
    passes: Mapping[str, Callable[..., Any]] | None = None,
    stages: Mapping[str, Stage] | None = None,
    levels: Mapping[Level[Any], Comparison] | None = None,
) -> None:
    """Register passes, stages and additional levels for the file tests of this run.

    Raises:
        ValueError: a name is already registered for another object.
    """
    tables: list[tuple[Any, Mapping[Any, Any] | None]]
    tables = [(PASSES, passes), (STAGES, stages), (LEVELS, levels)]
    for key, new in tables:
        known = config.stash.setdefault(key, {})
        for name, value in (new or {}).items():
            if known.setdefault(name, value) is not value:
                raise ValueError(f"two passes or stages are called {name!r}")


def emission(language: KernelBackend, target: Target) -> Stage:
    """Return the stage that emits the kernels of a schedule: their texts, without what a unit adds
    to them."""

    def emitted(schedule: Schedule) -> str:
        kernels = [n for n in schedule.nodes if isinstance(n, Kernel)]
        units = language.emit(kernels, schedule.facts, schedule.origins, target)
        return "\n".join(source.text for unit in units for source in unit.kernels)

    return emitted


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "GyFile | None":
    """Collect `*.gy` files."""
    return GyFile.from_parent(parent, path=file_path) if file_path.suffix == ".gy" else None


class GyFile(pytest.File):
    """One file, which holds one test."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the test."""
        yield GyItem.from_parent(self, name=self.path.stem)


class GyItem(pytest.Item):
    """Runs the commands of the file and compares the result with its expectation."""

    def runtest(self) -> None:
        """Run the commands of the file."""
        source, marker, expected = self.path.read_bytes().decode().partition(EXPECT)
        commands = _commands(source)
        if ("error", "") in commands:
            with pytest.raises(GyratorError) as caught:
                self._after(self._read(source), commands)
            actual = f"{caught.value}\n"
        else:
            before = self._read(source)
            level = level_of(before, self._levels)
            start = level.show(before)
            after = self._after(self._read(source) if level.in_place else before, commands)
            if ("interpret", "") in commands:
                self._levels.get(level, assert_same_meaning)(before, after)
            actual = self._shown(after)
            same = actual == start if level.in_place else after is before
            if not marker and same:
                return
        if actual == expected:
            return
        if os.environ.get("GYRATOR_BLESS") == "1":
            self.path.write_bytes((source + EXPECT + actual).encode())
            return
        want, got = expected.split("\n"), actual.split("\n")
        diff = difflib.unified_diff(want, got, "expected", "actual", lineterm="")
        raise Mismatch("\n".join(diff))

    @property
    def _levels(self) -> dict[Level[Any], Comparison]:
        return self.config.stash.get(LEVELS, {})

    def _read(self, text: str) -> Any:
        parse = level_of_text(text, self._levels).parse
        assert parse is not None
        return self._round_trip(parse(text))

    def _shown(self, output: Any) -> str:
        return output if isinstance(output, str) else level_of(output, self._levels).show(output)

    def _after(self, program: Any, commands: list[tuple[str, str]]) -> Any:
        for command, argument in commands:
            if command == "pass":
                table = self.config.stash.get(PASSES, {})
                for one in parse_pipeline(argument, dict(table)):
                    level = level_of(program, self._levels)
                    program = self._round_trip(Pipeline(level, (one,), "never").run(program))
            elif command == "stage":
                stages = self.config.stash.get(STAGES, {})
                if argument not in stages:
                    raise BadFile(f"no stage {argument!r} is registered, only {sorted(stages)}")
                program = self._round_trip(stages[argument](program))
        return program

    def _round_trip(self, program: Any) -> Any:
        if isinstance(program, str):  # of a language that nobody parses
            return program
        level = level_of(program, self._levels)
        assert level.parse is not None
        text = level.show(program)
        again = level.parse(text)
        # graphs of PyTorch's are equal to themselves alone
        assert level.in_place or again == program, f"parse(show(p)) != p for\n{text}"
        assert level.show(again) == text, f"show(parse(text)) != text for\n{text}"
        level.verify(program)
        return program

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the difference as a diff, with the command that accepts it."""
        if not excinfo.errisinstance(Mismatch):
            return super().repr_failure(excinfo, style)
        return f"{excinfo.value}\nif the new text is right: GYRATOR_BLESS=1 pytest {self.path}"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Name the file in reports."""
        return self.path, None, self.name


def _commands(text: str) -> list[tuple[str, str]]:
    commands: list[tuple[str, str]] = []
    for line in text.split("\n"):
        if not line.startswith("; test "):
            continue
        command, _, argument = line.removeprefix("; test ").strip().partition(" ")
        if command not in COMMANDS:
            raise BadFile(f"{command!r} is none of {', '.join(COMMANDS)}")
        if bool(argument) != (command in ("pass", "stage")):
            raise BadFile(f"`; test {command}` takes {'a' if not argument else 'no'} name")
        commands.append((command, argument.strip()))
    if not commands:
        raise BadFile("no line says `; test ...`")
    return commands
