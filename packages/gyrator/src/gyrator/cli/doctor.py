"""`gyrator doctor`: check what works on this machine, and suggest fixes for the rest."""

import argparse
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from attrs import asdict
from rich.text import Text

from gyrator.cli.output import emit, table
from gyrator.config import Config, read_config
from gyrator.session import Session
from gyrator.store.programs import host_runner
from gyrator.targets import discover
from gyrator.targets.cpu import without_compiler
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.cache import Cache
from gyrator_runtime.toolchain import find_toolchain


@frozen
class Finding:
    """The result of one check."""

    subject: str
    state: Literal["ok", "no", "untested"]
    """`untested`: expected to work, but not covered by tests."""
    detail: str
    advice: str = ""


def examine(config: Config | None = None) -> tuple[Finding, ...]:
    """Check everything that Gyrator needs, modifying nothing but the cache folder."""
    settings = config or read_config()
    checks: tuple[Callable[[Config], Iterator[Finding]], ...] = (
        _versions, _cache, _compiler, _runner, _targets, _triton, _compile,
    )  # fmt: skip
    return tuple(finding for check in checks for finding in check(settings))


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 1 if anything does not work."""
    findings = examine()
    rows = [(Text(f.state, _COLOURS[f.state]), f.subject, f.detail, f.advice) for f in findings]
    titles = ("", "subject", "detail", "advice")
    data = [asdict(f) for f in findings]
    emit(args, data, lambda console: console.print(table(titles, rows)))
    return int(any(f.state == "no" for f in findings))


_COLOURS = {"ok": "green", "no": "red", "untested": "yellow"}


def _state(good: bool) -> Literal["ok", "no"]:
    return "ok" if good else "no"


def _versions(_: Config) -> Iterator[Finding]:
    python, version = sys.version_info[:2], _number(torch.__version__)
    rows = (
        ("Python", python, (3, 11), _PYTHONS, platform.python_version()),
        ("torch", version, (2, 11), _TORCHES, torch.__version__),
    )
    for subject, has, least, tried, installed in rows:
        if has < least:
            yield Finding(
                subject, "no", installed, f"Gyrator needs {subject} {_dotted(least)} or later"
            )
        elif has in tried:
            yield Finding(subject, "ok", installed)
        else:
            names = ", ".join(map(_dotted, tried))
            yield Finding(subject, "untested", installed, f"Gyrator is tested with {names}")


_PYTHONS = ((3, 11), (3, 13))
_TORCHES = ((2, 11), (2, 13), (2, 15))
"""The versions that are tested; `docs/install.md` has the same table."""


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(x) for x in version.split("+")[0].split(".")[:2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _cache(config: Config) -> Iterator[Finding]:
    root = config.cache_root
    good = Cache(root).persistent
    advice = "" if good else "set GYRATOR_CACHE_DIR to a folder that only you can write to"
    yield Finding("cache folder", _state(good), str(root), advice)


def _compiler(config: Config) -> Iterator[Finding]:
    try:
        toolchain = find_toolchain(os.environ, Cache(config.cache_root))
    except GyratorError as error:
        message, help = error.diagnostic.message, error.diagnostic.help
        if without_compiler(error) is None:
            yield Finding("C++ compiler", "no", message, help)
        else:
            built = f"{message}: kernels are built by LLVM, and run on one thread"
            yield Finding("C++ compiler", "untested", built, help)
        return
    yield Finding("C++ compiler", "ok", f"{toolchain.command[0]}: {toolchain.version}")
    threads = "" if toolchain.threads else "use g++: kernels built by clang run on one thread"
    pool = "torch's OpenMP pool" if toolchain.threads else "none"
    yield Finding("threads in kernels", _state(toolchain.threads), pool, threads)


def _runner(config: Config) -> Iterator[Finding]:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    name = host_runner(Cache(config.cache_root)).name
    good = name == "native"
    advice = "" if good else "install Python's headers (Debian: python3-dev) for fast host programs"
    detail = f"{name} runner" + ("" if header.exists() else ", no Python.h")
    yield Finding("host programs", _state(good), detail, advice)


def _targets(config: Config) -> Iterator[Finding]:
    try:
        targets = discover(config)
    except GyratorError as error:
        yield Finding("targets", "no", error.diagnostic.message, error.diagnostic.help)
        return
    for device, (definition, target) in targets.items():
        detail = f"{target.arch}, kernels in {target.kernel_backend} (from {definition.name})"
        yield Finding(f"target {device}", "ok", detail)


def _triton(_: Config) -> Iterator[Finding]:
    installed = find_spec("triton") is not None
    if installed:
        yield Finding("Triton", "ok", "installed")
    else:
        yield Finding("Triton", "untested", "not installed", "required only for GPUs")


def _compile(config: Config) -> Iterator[Finding]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() + 1).sum(-1)

    x = torch.randn(4, 33)
    try:
        with Session(options={"strict": True}, config=config) as session:
            good = torch.allclose(torch.compile(f, backend=session.backend)(x), f(x))
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        yield Finding("compiling a function", "no", first, "please report this")
        return
    yield Finding(
        "compiling a function", _state(good), "correct result" if good else "WRONG result"
    )
