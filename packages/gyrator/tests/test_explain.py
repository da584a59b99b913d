"""What `explain` tells of a compile."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gyrator import explain


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1).sum(0)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that explains `f` on a cache of its own."""
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path / "cache"))

    def run(rows: int, **options: Any) -> str:
        torch._dynamo.reset()
        found = explain(f, torch.randn(rows, 3), options=options, dynamic=False)
        return str(found).splitlines()[3].split("│")[-2].strip()

    return run


def test_why_a_program_was_not_in_the_cache(said: Any) -> None:
    assert said(4) == "no"
    assert said(4) == "yes"
    assert said(4, fusion=False) == "no: other options"
    assert said(5, fusion=False) == "no: a new graph"
    assert said(6, cache=False) == "no"
