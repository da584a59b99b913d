"""Losses by chunks of rows, compiled: results and gradients are eager's."""

import pytest
import torch
import torch.nn.functional as F

from gyrator import PassEdits, Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")
CHUNKED = PassEdits().configured("chunk-losses", least=1, rows=16)


def loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, w).float(), target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrapper", ["python", "cpp"])
def test_chunks_give_eagers_gradients(dtype: torch.dtype, wrapper: str) -> None:
    w = torch.randn(512, 16, dtype=dtype, requires_grad=True)
    with Session(options={"strict": True, "wrapper": wrapper}, passes=CHUNKED) as session:
        compiled = torch.compile(loss, backend=session.backend)
        for rows in (64, 83, 100):
            x = torch.randn(rows, 16, dtype=dtype, requires_grad=True)
            target = torch.randint(0, 512, (rows,))
            target[3] = -100
            for t in (x, target):
                torch._dynamo.mark_dynamic(t, 0)
            scale = torch.tensor(2.5)
            got, want = (
                (y, *torch.autograd.grad(y, (x, w), scale))
                for y in (f(x, w, target) for f in (compiled, loss))
            )
            rounding = 1e-5 if dtype is torch.float32 else 2e-2
            for a, b in zip(got, want, strict=True):
                assert (a - b).norm() <= rounding * b.norm()


def test_a_graph_that_is_kept_gives_its_gradients_twice() -> None:
    x, w = (torch.randn(n, 16, requires_grad=True) for n in (64, 512))
    target = torch.randint(0, 512, (64,))
    with Session(options={"strict": True}, passes=CHUNKED) as session:
        y = torch.compile(loss, backend=session.backend)(x, w, target)
        first = torch.autograd.grad(y, (x, w), retain_graph=True)
        second = torch.autograd.grad(3 * y, (x, w))
    torch.testing.assert_close([3 * g for g in first], list(second))
