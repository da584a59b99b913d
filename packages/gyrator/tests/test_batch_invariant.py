"""`numerics="batch_invariant"`: a row has the same bits in any batch."""

from collections.abc import Iterator

import pytest
import torch
from attrs import evolve
from torch import Tensor
from torch.nn import functional as F

from gyrator.config import Config
from gyrator.engine.pipeline import _check_order
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator.targets.cpu import cpu_target
from gyrator_ir.diagnostics import UnsupportedError

pytestmark = pytest.mark.usefixtures("lightly_optimised")
BATCH = 40
PARTS = ((0, 1), (3, 10))


@pytest.fixture
def invariant(config: Config, records: list[GraphRecord]) -> Iterator[Session]:
    """A strict session."""
    torch._dynamo.reset()
    options = {"strict": True, "progress": False, "numerics": "batch_invariant"}
    with Session(options=options, config=config, observer=records.append) as session:
        yield session


def rows(x: Tensor, w: Tensor, turned: Tensor) -> list[Tensor]:
    """Functions of rows `x` (n, 6, 100), and of columns `turned` (100, 6, n)."""
    flat, columns = x.flatten(1), turned.permute(2, 1, 0)
    heads = x.unflatten(2, (2, 50)).transpose(1, 2)
    image = x.unflatten(2, (10, 10))
    return [
        flat @ w, F.linear(x, w[:100, :100]), x @ x.mT, columns @ w[:100], x.sum(2), x.mean((1, 2)),
        columns.sum((1, 2)), columns.sum(2).exp(), x.transpose(1, 2).sum((1, 2)), x.var(1),
        x.softmax(-1), columns.softmax(-1), F.layer_norm(flat, (600,)), x.prod(2), x.cumsum(1),
        F.scaled_dot_product_attention(heads, heads, heads), x.logsumexp(2),
        F.conv2d(image, w[:54].reshape(100, 6, 3, 3)[:5]), F.gelu(x),
        torch.tanh(turned).sum(0).T,
        F.rms_norm(x, (100,)), F.avg_pool2d(image, 3), x.norm(dim=2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [
        pytest.param(torch.float32, False, marks=pytest.mark.long),
        (torch.float32, True),
        (torch.bfloat16, False),
    ],
)
def test_rows_are_the_same_in_any_batch(
    invariant: Session, records: list[GraphRecord], dtype: torch.dtype, dynamic: bool
) -> None:
    x, turned = torch.randn(BATCH, 6, 100, dtype=dtype), torch.randn(100, 6, BATCH, dtype=dtype)
    w = torch.randn(600, 100, dtype=dtype)
    compiled = torch.compile(rows, backend=invariant.backend, dynamic=dynamic)
    with torch.no_grad():
        whole = compiled(x, w, turned)
        for expected, got in zip(rows(x, w, turned), whole, strict=True):
            torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
        for begin, end in PARTS:
            part = compiled(x[begin:end].clone(), w, turned[..., begin:end].contiguous())
            differ = [
                k for k, (a, b) in enumerate(zip(whole, part, strict=True))
                if not torch.equal(a[begin:end], b)
            ]  # fmt: skip
            assert differ == []
    assert all(not record.externs for record in records)


def test_targets_say_whether_their_reductions_are_ordered() -> None:
    target = cpu_target("avx2", 2)
    _check_order(target)
    other = evolve(target, capabilities=evolve(target.capabilities, ordered_reductions=False))
    with pytest.raises(UnsupportedError, match="GY-OPTION-004"):
        _check_order(other)
