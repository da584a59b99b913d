"""The survey of operations on a GPU, as far as it goes without one."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[1]))

import _gpu_ops
from _gpu_survey import Cell, Limits, sheet

EAGER = [op for op in _gpu_ops.OPS if "flexible" not in op.name]
"""Flexible attention has no gradients in eager mode on the CPU."""


def test_each_operation_has_a_name_of_its_own():
    assert len(_gpu_ops.OPS) >= 150
    assert not [name for name, n in Counter(op.name for op in _gpu_ops.OPS).items() if n > 1]


@pytest.mark.parametrize("part", range(8))
def test_operations_run_in_any_size(monkeypatch, part):
    monkeypatch.setattr(_gpu_ops, "DEVICE", "cpu")
    for op in EAGER[part::8]:
        small, large = op.extent(1 << 10), op.extent(1 << 14)
        assert 1 <= small <= large, op.name
        inputs = [o.make(small, torch.float32) for o in op.operands]
        trained = [
            x.requires_grad_()
            for x, o in zip(inputs, op.operands, strict=True)
            if op.trained and o.trained and x.is_floating_point()
        ]
        results = [r for r in tree_leaves(op.run(*inputs)) if isinstance(r, torch.Tensor)]
        assert results, op.name
        if trained:
            kept = [r for r in results if r.requires_grad]
            given = [torch.ones_like(r) for r in kept]
            found = torch.autograd.grad(kept, trained, given, allow_unused=True)
            assert any(g is not None for g in found), op.name


def test_the_worst_is_first_and_counted():
    rows = {
        Cell(name, 8, "float32"): {
            "eager": 9.0, "inductor": ours * gain, "gyrator": ours, "bytes": 4e6, "flops": 0,
            "difference": 0.0,
        }
        for name, ours, gain in (("quick", 2.0, 1.5), ("slow", 4.0, 0.5))
    }  # fmt: skip
    rows[Cell("lost", 8, "float32")] = {"wrong": "crashed"}
    limits = Limits(copied=2e12, products={"float32": 1e13})
    found = sheet("small", list(rows), rows, limits)
    assert [row[0] for row in found.rows] == ["slow", "quick"]
    assert [row[6] for row in found.rows] == ["0.50", "1.00"]
    assert found.summary == ["geometric mean of inductor/gyrator 0.866; 1 of 2 below 0.95"]


def test_launches_that_overlap_count_once():
    pytest.importorskip("transformers")
    from gpu import covered

    assert covered([]) == 0
    assert covered([(5, 7), (0, 2), (1, 3), (1, 2), (3, 4)]) == 6
