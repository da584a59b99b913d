"""Run the examples of Markdown pages: `python ci/run_doc_examples.py docs/tutorial.md README.md`.

The blocks of a page fenced as `python` run in order in one fresh process, in an empty folder, so
later blocks see what earlier ones defined; line numbers in a traceback are those of the page. Then
the lines of its `console` blocks that begin with `$ gyrator` run in the same folder. What is not to
be run is fenced as something else.

For several pages, the processes are forked from one that has imported torch where it is installed,
which takes most of their time otherwise. Commands with redirections and pipes are left to a shell.
"""

import atexit
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path

FENCE = re.compile(r"^(?P<indent>\s*)```(?P<language>[\w+-]*)[^`]*$")
LIMIT_S = 300


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the number of its first line (from 1) and its lines."""

    language: str
    first: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What came of one page: how many examples ran, and the text of the failure if there is one."""

    page: Path
    ran: int
    failure: str = ""
    left_out: int = 0


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page.

    Raises:
        ValueError: A fence is not closed.
    """
    opened: tuple[str, str, int] | None = None
    body: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if opened is None:
            if match:
                opened, body = (match["language"], match["indent"], number + 1), []
        elif line.strip() == "```":
            yield Block(opened[0], opened[2], tuple(body))
            opened = None
        else:
            body.append(line.removeprefix(opened[1]))
    if opened is not None:
        raise ValueError(f"the block that opens on line {opened[2] - 1} is never closed")


def script(page: list[Block]) -> str:
    """Return the Python blocks of `page` as one program, each line on its number in the page."""
    lines: list[str] = []
    for block in page:
        if block.language == "python":
            lines += [""] * (block.first - 1 - len(lines))
            lines += block.lines
    return "\n".join(lines) + "\n"


def commands(page: list[Block]) -> list[str]:
    """Return the `gyrator` commands of the console blocks of `page`."""
    return [
        line.removeprefix("$ ")
        for block in page
        if block.language == "console"
        for line in block.lines
        if line.startswith("$ gyrator")
    ]


def run_page(path: Path, forks: ForkServerContext | None = None) -> Outcome:
    """Run the examples of the page at `path`, in new processes or in forked ones."""
    try:
        page = list(blocks(path.read_text()))
    except ValueError as error:
        return Outcome(path, 0, str(error))
    count = sum(block.language == "python" for block in page)
    bin_folder = Path(sys.executable).parent
    shell = commands(page)
    left_out = 0
    if shell and not (bin_folder / "gyrator").exists():
        shell, left_out = [], len(shell)
    with tempfile.TemporaryDirectory() as folder:
        steps: list[list[str]] = []
        if count:
            program = Path(folder) / f"{path.stem}.py"
            program.write_text(script(page))
            steps.append([sys.executable, str(program)])
        for command in shell:
            words = shlex.split(command)
            plain = forks is not None and not set(command) & set("<>|&;$`*")
            gyrator = [str(bin_folder / words[0]), *words[1:]]
            steps.append(gyrator if plain else [shutil.which("bash") or "sh", "-c", command])
        for step in steps:
            try:
                status, output = run_step(step, folder, forks)
            except subprocess.TimeoutExpired:
                return Outcome(path, count, f"{step[-1]}: took more than {LIMIT_S} s")
            if status:
                return Outcome(path, count, f"{step[-1]}: status {status}\n{output}")
    return Outcome(path, count + len(shell), "", left_out)


def run_step(command: list[str], folder: str, forks: ForkServerContext | None) -> tuple[int, str]:
    """Run a command in `folder`; return its status, and what it wrote.

    Raises:
        subprocess.TimeoutExpired: It took more than `LIMIT_S` seconds.
    """
    bin_folder = Path(sys.executable).parent
    path = f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"
    python = Path(command[0]).parent == bin_folder
    if forks is None or not python:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout
    arguments = command[1:] if command[0] == sys.executable else command
    with tempfile.NamedTemporaryFile("r") as output:
        process = forks.Process(target=_execute, args=(arguments, folder, path, output.name))
        process.start()
        process.join(LIMIT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, LIMIT_S)
        return process.exitcode, output.read()


def _execute(arguments: list[str], folder: str, path: str, output: str) -> None:
    """Run a Python script in this process, which has been forked for it."""
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    os.environ["PATH"] = path
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def main(names: list[str]) -> int:
    """Run the pages named; return 1 if an example fails."""
    forks = multiprocessing.get_context("forkserver") if len(names) > 1 else None
    if forks is not None:
        forks.set_forkserver_preload(["torch._dynamo", "torch._functorch.aot_autograd"])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(partial(run_page, forks=forks), map(Path, names)))
    for outcome in outcomes:
        if outcome.failure:
            print(f"{outcome.page}: FAILED\n{outcome.failure}")
        elif outcome.ran or outcome.left_out:
            note = f", {outcome.left_out} need the gyrator command, which is not installed here"
            print(f"{outcome.page}: {outcome.ran} ran{note if outcome.left_out else ''}")
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    print(f"{len(outcomes)} pages, {sum(o.ran for o in outcomes)} examples, {failed} pages failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
