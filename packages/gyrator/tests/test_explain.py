"""What `explain` tells of a compile."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gyrator import explain


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1).sum(0)


@pytest.fixture
def cache_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that explains `f` on a cache of its own."""
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path / "cache"))

    def run(rows: int, **options: Any) -> str:
        torch._dynamo.reset()
        explanation = explain(f, torch.randn(rows, 3), options=options, dynamic=False)
        return str(explanation).splitlines()[3].split("│")[-2].strip()

    return run


def test_why_a_program_was_not_in_the_cache(cache_column: Any) -> None:
    assert cache_column(4) == "no"
    assert cache_column(4) == "yes"
    assert cache_column(4, fusion=False) == "no: other options"
    assert cache_column(5, fusion=False) == "no: a new graph"
    assert cache_column(6, cache=False) == "no"
