"""Where and with what a benchmark ran."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]


def environment() -> dict[str, str | int | float]:
    """Return versions, processor, load, date and git revision."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": _output("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "gyrator": version("gyrator"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "g++": _output("g++", "--version").partition("\n")[0],
        "processor": _processor(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count() or 1,
        "load": os.getloadavg()[0],
    }


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "absent"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
