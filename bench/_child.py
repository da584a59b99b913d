"""Measurements in child processes: `python bench/_child.py TASK ARGUMENTS RESULT`.

Each measurement gets a process of its own, so that imports, caches in memory and thread pools of
one cannot help or hurt another.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

Task = Callable[[dict[str, Any]], dict[str, Any]]


def measure(task: str, arguments: Mapping[str, Any], caches: Path) -> dict[str, Any]:
    """Run a task in a fresh process whose compilers keep their caches in `caches`.

    The process may write bytecode even where this one may not: a checkout's modules would otherwise
    be compiled by Python in every process, unlike those that pip has installed.

    A task that fails gives `{"error": the last line of its output that names one}`, so that one
    unsupported model does not cost the rest of a long benchmark.
    """
    environment = os.environ | {
        "GYRATOR_CACHE_DIR": str(caches / "gyrator"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        done = subprocess.run(
            [sys.executable, __file__, task, json.dumps(dict(arguments)), str(result)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode or not result.exists():
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            print(f"{task} {dict(arguments)} failed:\n" + "\n".join(lines[-15:]), file=sys.stderr)
            named = [line for line in lines if re.match(r"[\w.]*(Error|Failed|Exception)\b", line)]
            return {"error": [*lines[-1:], *named][-1]}
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def main(task: str, arguments: str, result: str) -> None:
    """Run one task and write what it gives."""
    from _aot import build_package, use_packages
    from _aot_native import build_native, use_native
    from _first_compile import first_call
    from _kernels import time_kernel
    from _memory import peak_memory
    from _overhead import call_overhead
    from _run import run_time

    tasks: Mapping[str, Task] = MappingProxyType({
        "build_native": build_native,
        "build_package": build_package,
        "first_call": first_call,
        "run_time": run_time,
        "use_native": use_native,
        "use_packages": use_packages,
        "peak_memory": peak_memory,
        "call_overhead": call_overhead,
        "time_kernel": time_kernel,
    })  # fmt: skip
    Path(result).write_text(json.dumps(tasks[task](json.loads(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:])
