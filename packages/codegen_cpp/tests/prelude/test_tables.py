"""The program that fits the tables of the headers prints what they hold."""

import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

pytest.importorskip("mpmath")
TOOL = Path(__file__).parents[2] / "tools" / "fit_tables.py"
HEADERS = resources.files("gyrator_codegen_cpp") / "prelude" / "headers"
_NUMBER = re.compile(r"\d+\.?\d*(?:e-?\d+)?")


def printed(name: str) -> list[list[str]]:
    """Return the numbers, without signs, of the rows that the program prints."""
    command = [sys.executable, str(TOOL), name]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [_NUMBER.findall(line) for line in found.stdout.splitlines() if line.startswith("  {")]


@pytest.mark.parametrize(
    "name", ["atan", "atan_wide", "erfinv_wide", "exp_wide", "log_wide", "log2_wide", "log10_wide"]
)
def test_tables_are_those_of_the_headers(name: str) -> None:
    texts = (h.read_text() for h in HEADERS.iterdir() if h.name.endswith(".h"))
    held = {float(n) for text in texts for n in _NUMBER.findall(text)}
    numbers = {float(n) for row in printed(name) for n in row}
    assert len(numbers) > 16
    assert numbers <= held


def test_tables_of_polynomials_are_fitted() -> None:
    """Their last bits depend on the machine's least squares."""
    assert [len(row) for row in printed("erfc")] == [32] * 7
