"""Masks of attention that rule out eager's fused kernels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule, Interpreter

import gyrator.aot as aot
from gyrator.frontend.dynamo import attention_masks
from gyrator.frontend.dynamo.attention_masks import open_fused_attention
from gyrator.session import Session

attention = F.scaled_dot_product_attention
LENGTH = 9


def graph_of(f: Callable[..., Any], *args: Tensor, dynamic: bool = False) -> GraphModule:
    """Return Dynamo's graph of a function."""
    found: list[GraphModule] = []

    def backend(gm: GraphModule, _: object) -> Callable[..., Any]:
        found.append(gm)
        return gm

    torch._dynamo.reset()
    torch.compile(f, backend=backend, dynamic=dynamic, fullgraph=True)(*args)
    (gm,) = found
    return gm


def masks(gm: GraphModule) -> list[Any]:
    """Return the mask of each call of attention."""
    calls = [n for n in gm.graph.nodes if getattr(n.target, "__name__", "") == attention.__name__]
    return [n.args[3] if len(n.args) > 3 else n.kwargs.get("attn_mask") for n in calls]


def positions(q: Tensor) -> Tensor:
    return torch.arange(q.shape[-2], device=q.device)


def square(q: Tensor, rows: Tensor) -> Tensor:
    return rows.expand(q.shape[0], -1, q.shape[-2], q.shape[-2])


NO_EFFECT: dict[str, Callable[[Tensor], Tensor]] = {
    "bidirectional": lambda q: square(q, (positions(q) + 0)[None, None, :, None] >= 0),
    "reversed": lambda q: square(q, positions(q)[None, None, None, :] >= 0),
    "both": lambda q: square(
        q, (positions(q)[None, None, :, None] >= 0) & (positions(q) > -1)[None, None, None]
    ),
    "either": lambda q: square(
        q, torch.logical_or(positions(q) >= 0, positions(q) > 3)[None, None]
    ),
    "later": lambda q: square(q, (positions(q) + 2 > torch.tensor(1).item())[None, None, None]),
    "ones": lambda q: torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool),
    "cast": lambda q: q.new_ones(q.shape[-2]).bool()[None].expand(q.shape[-2], -1),
    "additive": lambda q: (
        (1.0 - torch.ones(q.shape[-2], q.shape[-2], dtype=q.dtype)) * torch.finfo(q.dtype).min
    ),
    "zeros": lambda q: q.new_zeros(1, 1, q.shape[-2], q.shape[-2]),
}
NEEDED: dict[str, Callable[[Tensor], Tensor]] = {
    "causal": lambda q: positions(q)[:, None] >= positions(q)[None],
    "window": lambda q: (positions(q)[:, None] - positions(q)[None]) < 3,
    "first": lambda q: square(q, (positions(q) > 0)[None, None, None]),
    "written": lambda q: square(q, (positions(q).sub_(4) >= 0)[None, None, None]),
    "cleared": lambda q: torch.ones(q.shape[-2], q.shape[-2]).tril_().bool(),
    "narrow": lambda q: (torch.arange(q.shape[-2]) + 250).to(torch.int8)[None] >= 0,
    "bits": lambda q: torch.arange(q.shape[-2], dtype=torch.float32)[:, None].view(torch.int32) > 0,
    "ones added": lambda q: torch.ones(q.shape[-2], q.shape[-2]).cumsum(-1),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_masks_without_effect_are_removed(dynamic: bool) -> None:
    q = torch.randn(2, 3, LENGTH, 8)

    def f(q: Tensor) -> dict[str, Tensor]:
        return {name: attention(q, q, q, attn_mask=mask(q)) for name, mask in NO_EFFECT.items()}

    gm = graph_of(f, q, dynamic=dynamic)
    open_fused_attention(gm)
    assert dict(zip(NO_EFFECT, masks(gm), strict=True)) == dict.fromkeys(NO_EFFECT)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="gyrator", dynamic=dynamic)(q), f(q))


def test_other_masks_stay() -> None:
    q = torch.randn(2, 3, LENGTH, 8)

    def f(q: Tensor) -> dict[str, Tensor]:
        return {name: attention(q, q, q, mask(q)) for name, mask in NEEDED.items()}

    gm = graph_of(f, q)
    before = dict(zip(NEEDED, masks(gm), strict=True))
    open_fused_attention(gm)
    assert dict(zip(NEEDED, masks(gm), strict=True)) == before
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="gyrator")(q), f(q))


def test_masks_with_more_batches_than_queries_stay() -> None:
    def f(q: Tensor) -> Tensor:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=q.device)
        return attention(query=q, key=q, value=q, attn_mask=mask.expand(4, 1, -1, -1))

    gm = graph_of(f, torch.randn(1, 3, LENGTH, 8, device="meta"))
    open_fused_attention(gm)
    assert masks(gm) != [None]


def test_masks_written_through_views_stay() -> None:
    def f(q: Tensor) -> Tensor:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        mask.view(-1)[1::2].logical_not_()
        return attention(q, q, q, attn_mask=mask)

    gm = graph_of(f, torch.randn(1, 1, LENGTH, 8))
    open_fused_attention(gm)
    assert masks(gm) != [None]


def test_masks_written_by_out_stay() -> None:
    def f(q: Tensor, other: Tensor) -> Tensor:
        mask = torch.zeros(LENGTH, LENGTH)
        torch.add(other, other, out=mask)
        return attention(q, q, q, attn_mask=mask)

    gm = graph_of(f, torch.randn(1, 1, LENGTH, 8), torch.randn(LENGTH, LENGTH))
    open_fused_attention(gm)
    assert masks(gm) != [None]


BIASES: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda b: b.permute(2, 0, 1)[None],
    "expanded": lambda b: b.permute(2, 0, 1)[None].expand(4, -1, -1, -1),
    "row": lambda b: b[:, :1, 0].expand(LENGTH, LENGTH) > 0,
    "column": lambda b: b[:, :1, 0].expand(4, 3, LENGTH, LENGTH),
}


@pytest.mark.parametrize("name", BIASES)
def test_masks_of_other_devices_get_contiguous_rows(name: str) -> None:
    def f(q: Tensor, table: Tensor) -> Tensor:
        return attention(q, q, q, attn_mask=BIASES[name](table))

    shapes = (4, 3, LENGTH, 8), (LENGTH, LENGTH, 3)
    gm = graph_of(f, *(torch.randn(s, device="meta") for s in shapes))
    open_fused_attention(gm)
    (mask,) = masks(gm)
    fake = mask.meta["example_value"]
    q, table = (torch.randn(s, dtype=torch.float64) for s in shapes)
    mine = BIASES[name](table)
    assert fake.stride(-1) == 1
    assert fake.shape == mine.shape
    assert [s for s, t in zip(fake.stride(), mine.stride(), strict=True) if t == 0 and s] in (
        [],
        [1],
    )
    inputs = gm.graph.find_nodes(op="placeholder")
    (result,) = Interpreter(gm).run(*(table if "table" in n.name else q for n in inputs))
    torch.testing.assert_close(result, f(q, table))


def test_masks_that_fused_kernels_take_are_not_copied() -> None:
    def f(q: Tensor, table: Tensor) -> Tensor:
        return attention(q, q, q, attn_mask=table.expand(4, -1, -1, -1))

    gm = graph_of(f, torch.randn(4, 3, 9, 8, device="meta"), torch.randn(3, 9, 9, device="meta"))
    before = masks(gm)
    open_fused_attention(gm)
    assert masks(gm) == before


@pytest.mark.parametrize("numerics", ["bitwise", "batch_invariant"])
def test_exact_modes_compute_what_was_written(numerics: str) -> None:
    q = torch.randn(2, 3, LENGTH, 8)

    def f(q: Tensor) -> Tensor:
        return attention(q, q, q, attn_mask=NO_EFFECT["bidirectional"](q))

    torch._dynamo.reset()
    with Session(options={"numerics": numerics, "cache": False}) as session:
        compiled = torch.compile(f, backend=session.backend)
        torch.testing.assert_close(compiled(q), f(q))


class Encoder(torch.nn.Module):
    def forward(self, q: Tensor) -> Tensor:
        return attention(q, q, q, attn_mask=NO_EFFECT["bidirectional"](q))


def test_exported_programs_lose_masks_without_effect(tmp_path: Path) -> None:
    q = torch.randn(2, 3, LENGTH, 8)
    length = torch.export.Dim("length", min=2)
    program = torch.export.export(Encoder(), (q,), dynamic_shapes=({2: length},))
    text = str(program.graph)
    path = aot.compile(program, package=tmp_path / "encoder.gya")
    assert str(program.graph) == text
    other = torch.randn(2, 3, 2 * LENGTH, 8)
    torch.testing.assert_close(aot.load(path)(other), Encoder()(other))


def _tensors() -> st.SearchStrategy[Callable[[Tensor], Tensor]]:
    """Return functions from `x` to a tensor of its shape, built from what bounds are known for."""
    leaves: list[Callable[[Tensor], Tensor]] = [
        lambda x: torch.arange(5),
        lambda x: torch.arange(-3, 2),
        lambda x: torch.arange(3, 8, dtype=torch.float32),
        lambda x: torch.ones(5, dtype=torch.int64),
        lambda x: torch.zeros(5),
        lambda x: torch.ones(5, dtype=torch.bool),
        lambda x: x,
    ]
    binary = [
        torch.add, torch.sub, torch.mul, torch.ge, torch.gt, torch.le, torch.lt,
        torch.logical_and, torch.logical_or,
    ]  # fmt: skip

    def combined(inner: Any) -> Any:
        def two(op: Any, a: Any, b: Any) -> Callable[[Tensor], Tensor]:
            return lambda x: op(a(x), b(x))

        def number(op: Any, a: Any, n: int) -> Callable[[Tensor], Tensor]:
            return lambda x: op(a(x).to(torch.int64), n)

        def cast(a: Any, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
            return lambda x: a(x).to(dtype)

        dtypes = st.sampled_from([torch.bool, torch.float32, torch.int64, torch.int8])
        return st.one_of(
            st.builds(
                two, st.sampled_from([o for o in binary if o is not torch.sub]), inner, inner
            ),
            st.builds(number, st.sampled_from(binary[:7]), inner, st.integers(-3, 3)),
            st.builds(cast, inner, dtypes),
        )

    return st.recursive(st.sampled_from(leaves), combined, max_leaves=6)


@settings(max_examples=25, deadline=None)
@given(_tensors(), st.integers(0, 1000))
def test_bounds_contain_every_element(f: Callable[[Tensor], Tensor], seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randint(-4, 5, (5,))
    gm = graph_of(lambda x: (f(x), x + 1), x)
    (results,) = gm.graph.output_node().args
    assert isinstance(results, tuple | list)
    last = results[0]
    bounds = attention_masks._Known().of(last)
    values = f(x).double()
    assert ((bounds.low <= values) & (values <= bounds.high)).all()
