"""Parts of tensors that are updated without copying the tensors."""

import pytest
import torch
import torch.nn.functional as F

from gyrator import Session, explain


def index_copy(c, at, v):
    c.index_copy_(1, at, v)
    return c.sum(1), c[:, 1:] * 2


def put_twice(c, at, v):
    c[:, at] = v
    c[:, at.flip(0)] = v * 2
    return c @ c.transpose(1, 2)


def accumulate(c, at, v):
    c.index_put_((torch.arange(c.shape[0])[:, None], at[None]), v, accumulate=True)
    return c.mean()


def replace_a_slice(c, at, v):
    c[:, 1 : 1 + v.shape[1]] = v
    return c + 1


def replace_slices(c, at, v):
    c[:, 0 : v.shape[1]] = v
    c[:1, 2 : 2 + v.shape[1]] = v[:1] * 3
    return c.cumsum(1)


def old_values_later(c, at, v):
    before = c * 2
    kept = c.clone()
    c[:, at] = v
    return before, kept, c + before


def return_it(c, at, v):
    c[:, at] = v
    return c


def return_a_copy(c, at, v):
    c[:, at] = v
    return c.clone()


def by_a_view(c, at, v):
    w = c.transpose(0, 1)
    w[at] = v.transpose(0, 1)
    return w.sum(0), c.sum(0)


def scatter(c, at, v):
    c.scatter_(1, at[None, :, None].expand(c.shape[0], -1, c.shape[2]), v)
    return c[:, at]


def chain(c, at, v):
    out = torch.zeros_like(c)
    for k in range(3):
        out.index_add_(1, at, v * k)
    return out


def results_of_a_chain(c, at, v):
    a = c.index_add(1, at, v)
    return a, a.index_fill(1, at[:1], 0.5)


def swap(c, at, v):
    a = c[:, at].clone()
    c[:, at] = c[:, at.flip(0)]
    c[:, at.flip(0)] = a
    return c.exp()


def attend(c, at, v):
    c[:, at] = v
    return F.scaled_dot_product_attention(v, c, c)


def roll(c, at, v):
    c.copy_(c.roll(1, 1))
    c[:, at] = v
    return c * 3


CASES = (index_copy, put_twice, accumulate, replace_a_slice, replace_slices, old_values_later,
         return_it, return_a_copy, by_a_view, scatter, chain, results_of_a_chain, swap, attend,
         roll)  # fmt: skip


def everything(caches, at, v):
    results = (case(c, at, v) for case, c in zip(CASES, caches, strict=True))
    return [r if isinstance(r, tuple) else (r,) for r in results]


def caches(layout):
    for n in range(len(CASES)):
        c = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(n))
        if layout == "padded":
            c = torch.zeros(5, 11, 6)[1:4, 1:10, 1:5].copy_(c)
        if layout == "transposed":
            c = c.transpose(0, 1).contiguous().transpose(0, 1)
        yield c


@pytest.mark.parametrize(
    ("layout", "dynamic", "wrapper"),
    [("plain", False, "cpp"), ("padded", True, "cpp"), ("transposed", False, "python")],
)
def test_results_inputs_and_memory_are_those_of_eager(layout, dynamic, wrapper):
    at, v = torch.tensor([4, 2]), torch.randn(3, 2, 4)
    wanted, got = list(caches(layout)), list(caches(layout))
    session = Session(options={"strict": True, "wrapper": wrapper})
    results = torch.compile(everything, backend=session.backend, dynamic=dynamic)(got, at, v)
    for case, c, d, rs, ss in zip(
        CASES, wanted, got, everything(wanted, at, v), results, strict=True
    ):
        for r, s in zip((c, *rs), (d, *ss), strict=True):
            torch.testing.assert_close(s, r, msg=lambda m, case=case: f"{case.__name__}: {m}")
            shared = r.untyped_storage().data_ptr() == c.untyped_storage().data_ptr()
            same = s.untyped_storage().data_ptr() == d.untyped_storage().data_ptr()
            assert shared == same, case.__name__


def update(c, at, v):
    c.index_copy_(1, at, v)
    return (c[:, :8] * 2).sum(1)


def test_a_cache_is_not_copied():
    c, at, v = torch.zeros(8, 4096, 64), torch.tensor([7]), torch.randn(8, 1, 64)
    (graph,) = explain(update, c, at, v).graphs
    assert graph.peak_bytes < c.nbytes // 8
