"""`numerics="bitwise"`: sums, norms and activations that kernels compute with ATen's bits."""

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gyrator.config import Config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator.targets import aten_bits
from gyrator.targets.aten_bits import known_bits
from gyrator.targets.cpu import CPU
from gyrator_lowering.rules.exact import EXACT_RULES, WIDE_RULES

pytestmark = pytest.mark.usefixtures("lightly_optimised")
aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((1,), (7,), (40,), (1093,), (17, 16), (300, 41), (5, 3, 37), (4, 8, 9, 10))
NUMBERS = (
    0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1e-40, 3e38, -3e38, 88.5, -87.4, -104.5,
    100.5, 1e19, -1e19, -5.9,
)  # fmt: skip
FORMULAS: Sequence[Callable[[Tensor, Tensor, Tensor], Tensor]] = (
    lambda x, y, z: torch.sigmoid(x),
    lambda x, y, z: F.silu(x),
    lambda x, y, z: aten.silu_backward(y, x),
    lambda x, y, z: F.gelu(x),
    lambda x, y, z: aten.gelu_backward(y, x),
    lambda x, y, z: aten.tanh_backward(y, x),
    lambda x, y, z: torch.rsqrt(x),
    lambda x, y, z: torch.addcmul(x, y, z),
    lambda x, y, z: torch.addcmul(x, y[..., :1], z, value=-0.7),
    lambda x, y, z: torch.add(x, y, alpha=0.3),
    lambda x, y, z: torch.add(x[..., :1], y, alpha=-3),
    lambda x, y, z: torch.sub(x, y, alpha=0.3),
    lambda x, y, z: torch.lerp(x, y, 0.3),
    lambda x, y, z: torch.lerp(x, y, 0.7),
    lambda x, y, z: (F.gelu(x * 2) + torch.sigmoid(y) * torch.rsqrt(z.abs())).sum(-1),
)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of ATen's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors have equal elements, including NaN at the same indices."""
    same = (a == b) | (a.isnan() & b.isnan())
    return a.dtype == b.dtype and a.shape == b.shape and bool(same.all())


def known() -> set[str]:
    """Return the ops of which some rule has ATen's bits."""
    return {op.partition(":")[0] for op in known_bits()}


def compiled(session: Session, run: Callable[..., list[Tensor]], *inputs: Tensor) -> list[Tensor]:
    """Compile a function and call it."""
    with torch.no_grad():
        call = torch.compile(run, backend=session.backend, dynamic=False)
        result: list[Tensor] = call(*inputs)
    return result


def layouts(shape: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Return random tensors of a shape with different strides."""
    ndim = len(shape)
    dense, turned = (torch.randn(n, dtype=torch.float64) for n in (tuple(shape), shape[::-1]))
    wide = torch.randn([2 * n for n in shape], dtype=torch.float64)
    found = [
        dense,
        turned.permute(*reversed(range(ndim))),
        wide[tuple(slice(None, None, 2) for _ in shape)],
        wide[(*(slice(n) for n in shape),)],
        dense[:1].expand(*shape),
    ]
    return [torch.empty_strided(t.shape, t.stride(), dtype=dtype).copy_(t) for t in found[:2]] + [
        t.to(dtype) if dtype is not torch.float64 else t for t in found[2:]
    ]


@pytest.mark.parametrize("threads", [2], indirect=True)  # ATen uses one for so few elements
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param(shape, dtype, marks=pytest.mark.long if n and (k + n) % 2 else ())
        for n, dtype in enumerate(FLOATS)
        for k, shape in enumerate(SHAPES)
    ],
)
def test_sums(
    bitwise: Session,
    records: list[GraphRecord],
    threads: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    ndim = len(shape)
    every = [d for n in range(1, ndim + 1) for d in itertools.combinations(range(ndim), n)]
    every = random.sample(every, min(len(every), 7))

    def run(*inputs: Tensor) -> list[Tensor]:
        return [
            *(x.sum(d) for x in inputs for d in every),
            *((x * x - x).sum(d, keepdim=True) for x in inputs[:1] for d in every),
            *(x.mean(d) for x in inputs[:1] for d in every),
            inputs[0].sum(dtype=torch.float32),
        ]

    inputs = layouts(shape, dtype)
    want, got = run(*inputs), compiled(bitwise, run, *inputs)
    assert all(map(equal, want, got))
    if known() >= {"aten.sum", "aten.mean"}:
        assert not records[0].externs


def test_sums_of_many(bitwise: Session, records: list[GraphRecord], threads: int) -> None:
    def run(x: Tensor) -> list[Tensor]:
        few = x[:32767]
        return [few.sum(), few[:32760].view(16380, 2).sum(0), few[:32766].view(2, -1).sum(1),
                few[:32000].view(1000, 32).sum(0), x.sum(), x.view(1024, 64).sum(0)]  # fmt: skip

    x = torch.randn(65536)
    assert all(map(equal, run(x), compiled(bitwise, run, x)))
    if "aten.sum" in known():
        assert len(records[0].externs) == 2  # ATen splits them among threads


@pytest.mark.parametrize(
    ("shape", "turned"),
    [
        pytest.param(shape, turned, marks=pytest.mark.long if (k + turned) % 2 else ())
        for k, shape in enumerate(((64, 48), (7, 13), (5, 16, 4), (3, 1)))
        for turned in (False, True)
    ]
    + [((4096,), False)],
)
def test_formulas(
    bitwise: Session, records: list[GraphRecord], shape: tuple[int, ...], turned: bool
) -> None:
    def run(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        return [fn(x, y, z) for fn in FORMULAS]

    inputs = []
    for scale in (1, 2, 30):
        t = torch.randn(shape) * scale
        count = min(len(NUMBERS), t.numel())
        t.view(-1)[:count] = torch.tensor(NUMBERS)[torch.randperm(len(NUMBERS))[:count]]
        inputs.append(t.transpose(0, -1) if turned else t)
    want, got = run(*inputs), compiled(bitwise, run, *inputs)
    assert [equal(a, b) for a, b in zip(want, got, strict=True)] == [True] * len(FORMULAS)
    if known() >= {op.rpartition(".")[0] for op in EXACT_RULES} and shape == (4096,):
        assert [e.target for e in records[0].externs] == ["aten.lerp.Scalar_out"]


@pytest.mark.parametrize("shape", [(7,), (70,), (5, 39), (3, 64)])
def test_formulas_of_repeated_elements(bitwise: Session, shape: tuple[int, ...]) -> None:
    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        one, row = y[..., :1], y.movedim(-1, 0)[0].sum()
        return [
            torch.add(x, one, alpha=0.3), torch.add(x, row, alpha=-0.7), torch.add(one, x, alpha=3),
            torch.sub(x, one.expand_as(x), alpha=0.3), torch.add(x, 1.7, alpha=0.3),
            torch.sub(x, 1.7, alpha=0.3), torch.addcmul(x, one, one, value=0.3),
            torch.lerp(one, x, 0.3), torch.lerp(x, one, 0.3),
            aten.tanh_backward(x, one), aten.tanh_backward(one, x), aten.tanh_backward(x, row),
        ]  # fmt: skip

    inputs = [torch.randn(shape) for _ in range(2)]
    want, got = run(*inputs), compiled(bitwise, run, *inputs)
    assert [equal(a, b) for a, b in zip(want, got, strict=True)] == [True] * len(want)


def test_exponentials_outside_of_vectors(bitwise: Session, records: list[GraphRecord]) -> None:
    def run(*inputs: Tensor) -> list[Tensor]:
        views = [
            view
            for x in inputs
            for view in (x, x[..., 1:], x[..., ::2], x[..., :1].expand_as(x), x.movedim(-1, 0))
        ]
        return [
            fn(x)
            for x in views
            for fn in (torch.sigmoid, F.silu, lambda y: aten.silu_backward(y * 0.7, y))
        ]

    shapes = ((1,), (9, 24), (3, 5, 40), (5, 6), (0, 3), (2, 1, 17))
    inputs = [torch.randn(s) * k for k, s in enumerate(shapes, 2)]
    for x in inputs:
        count = min(len(NUMBERS), x.numel() // 2)
        x.view(-1)[:count] = torch.tensor(NUMBERS)[torch.randperm(len(NUMBERS))[:count]]
    want, got = run(*inputs), compiled(bitwise, run, *inputs)
    assert [equal(a, b) for a, b in zip(want, got, strict=True)] == [True] * len(want)
    if known() >= {"aten.sigmoid", "aten.silu", "aten.silu_backward"}:
        # Of two arguments with different strides, it is a call.
        assert {e.target for e in records[0].externs} <= {"aten.silu_backward.grad_input"}


def test_formulas_of_any_bits(bitwise: Session, records: list[GraphRecord]) -> None:
    def run(x: Tensor, grad: Tensor) -> list[Tensor]:
        rows, weights = x.view(-1, 48).clamp(-1e30, 1e30), grad.view(-1, 48)
        y, log = torch.softmax(rows, -1), torch.log_softmax(rows, -1)
        return [
            torch.sigmoid(x), F.silu(x), aten.silu_backward(grad, x), y, log,
            torch.softmax(x.view(-1, 7), -1), torch.log_softmax(x.view(7, -1), -1),
            aten._softmax_backward_data(weights, y, -1, torch.float32),
            aten._log_softmax_backward_data(weights, log, -1, torch.float32),
            *(F.gelu(x[n:][:n]) for n in (2, 7, 8, 15, 17, 33, 100, 4096)),
        ]  # fmt: skip

    words = torch.randint(-(1 << 31), 1 << 31, (2, 48 * 672), dtype=torch.int64).to(torch.int32)
    inputs = words.view(torch.float32).unbind()
    want, got = run(*inputs), compiled(bitwise, run, *inputs)
    assert [equal(a, b) for a, b in zip(want, got, strict=True)] == [True] * len(want)
    if known() >= {op.rpartition(".")[0] for op in WIDE_RULES}:
        assert not records[0].externs


def test_gelu_in_each_interval(bitwise: Session, records: list[GraphRecord]) -> None:
    words = torch.arange(0x3D000000, 0x41000000, (1 << 19) + 1)
    edges = torch.arange(0x3E000000, 0x41000000, 1 << 21)
    bound = torch.arange(0x40B15CEE - 3, 0x40B15CEE + 4)
    sides = torch.cat((words, edges - 1, edges, edges + 1, bound)).to(torch.int32)
    x = torch.cat((sides.view(torch.float32), -sides.view(torch.float32), torch.tensor(NUMBERS)))

    def run(x: Tensor) -> list[Tensor]:
        return [F.gelu(x), F.gelu(x[:1]), F.gelu(x.expand(64, -1).reshape(-1))]

    assert all(map(equal, run(x), compiled(bitwise, run, x)))
    if "aten.gelu:16" in known_bits():  # ATen uses oneDNN for more than one element
        assert [e.target for e in records[0].externs] == ["aten.gelu.out"] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 9), (40, 33), (1, 1)])
def test_losses(
    bitwise: Session, records: list[GraphRecord], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    def run(x: Tensor, y: Tensor, grad: Tensor, rows: Tensor, at: Tensor) -> list[Tensor]:
        results = [torch.pow(x, 3), torch.pow(y, -2.0)]
        for reduction in range(3):
            g = grad if reduction == 0 else grad.sum()
            results += [aten.mse_loss(x, y, reduction), aten.mse_loss_backward(g, x, y, reduction)]
            for width in (1.0, 0.3):
                for op in (aten.smooth_l1_loss, aten.huber_loss):
                    results.append(op(x, y, reduction, width))
            for op in (aten.smooth_l1_loss_backward, aten.huber_loss_backward):
                results.append(op(g, x, y, reduction, 1.0))
            g = rows[:, 0] if reduction == 0 else rows.sum()
            results.append(aten.nll_loss_backward(g, rows, at, None, reduction, 2, rows[0, 0]))
        return results

    x, y, grad = (torch.randn(shape, dtype=dtype) for _ in range(3))
    count = min(len(NUMBERS), x.numel() // 2)
    x.view(-1)[:count] = torch.tensor(NUMBERS)[torch.randperm(len(NUMBERS))[:count]]
    inputs = (x, y, grad, torch.randn(12, 6, dtype=dtype), torch.randint(0, 6, (12,)))
    want, got = run(*inputs), compiled(bitwise, run, *inputs)
    assert [equal(a, b) for a, b in zip(want, got, strict=True)] == [True] * len(want)
    if known() >= {op.rpartition(".")[0] for op in EXACT_RULES}:
        assert not records[0].externs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax(
    bitwise: Session, records: list[GraphRecord], threads: int, dtype: torch.dtype
) -> None:
    def run(*inputs: Tensor) -> list[Tensor]:
        results = []
        for x in inputs:
            y, log, grad = torch.softmax(x, -1), torch.log_softmax(x, -1), x * 0.37 + 1
            results += [
                y, log, aten._safe_softmax(x, -1),
                aten._softmax_backward_data(grad, y, -1, dtype),
                aten._log_softmax_backward_data(grad, log, -1, dtype),
            ]  # fmt: skip
        return results

    rows = (1, 5, 7, 8, 9, 15, 16, 17, 33, 100, 1100)
    inputs = [torch.randn(240, n).to(dtype) * 10 ** (n % 3) for n in rows]
    strange = [x[:9].clone() for x in inputs[1:10]]
    for x in strange:
        x[:, 0] = torch.tensor(NUMBERS[:9])
    infinite = torch.full((3, 11), -torch.inf, dtype=dtype)
    inputs += [
        *strange,
        infinite,
        torch.randn(20, 30).to(dtype).t(),
        torch.randn(3, 7, 13).to(dtype),
        *(torch.randn(1, n).to(dtype) for n in (43, 1100)),
    ]
    want, got = run(*inputs), compiled(bitwise, run, *inputs)
    assert [equal(a, b) for a, b in zip(want, got, strict=True)] == [True] * len(want)
    if dtype is torch.float32 and known() >= {
        "aten._softmax", "aten._safe_softmax", "aten._log_softmax",
        "aten._softmax_backward_data", "aten._log_softmax_backward_data",
    }:  # fmt: skip
        # Of several rows with a rest, whose sum depends on ATen's threads.
        assert {e.target for e in records[0].externs} == {"aten._softmax_backward_data.out"}


@pytest.mark.parametrize("n", [1, 8, 9, 64, 100, 135, 136, 300, 384, 519, 520])
def test_layer_norms(bitwise: Session, records: list[GraphRecord], n: int) -> None:
    def run(w: Tensor, b: Tensor, *inputs: Tensor) -> list[Tensor]:
        return [
            t
            for x in inputs
            for args in ((w, b), (w, None), (None, None))
            for t in torch.native_layer_norm(x, [n], args[0], args[1], 1e-5)
        ]

    strange = torch.randn(9, n)
    strange.view(-1)[:9] = torch.tensor(NUMBERS)[:9]
    large = torch.randn(40, n) * 2e19  # the squares of some elements overflow
    turned = torch.randn(n, 5, 4).permute(1, 2, 0)
    inputs = (torch.randn(n), torch.randn(n), torch.randn(30, n) * 3 + 1, strange, large, turned)
    assert all(map(equal, run(*inputs), compiled(bitwise, run, *inputs)))
    if "aten.native_layer_norm" in known():
        assert bool(records[0].externs) == (not 8 <= n < 520)


@pytest.mark.parametrize(
    "shape", [(4, 5, 6, 7), (2, 16, 8, 8), (64, 32), (3, 8, 17), (2, 3, 4, 5, 6)]
)
def test_batch_norms(bitwise: Session, records: list[GraphRecord], shape: tuple[int, ...]) -> None:
    def run(*inputs: Tensor) -> list[Tensor]:
        w, b, mean, var, *images = inputs
        return [
            aten._native_batch_norm_legit_no_training(x, *args, mean, var, 0.1, 1e-5)[0]
            for x in images
            for args in ((w, b), (None, b), (w, None), (None, None))
        ]

    x = torch.randn(shape) * 3
    strange = x.clone()
    strange.view(-1)[:16] = torch.tensor(NUMBERS)
    images = [x, strange]
    if x.ndim == 4:
        images.append(x.contiguous(memory_format=torch.channels_last))
    parameters = [torch.randn(shape[1]) for _ in range(3)] + [torch.rand(shape[1])]
    inputs = (*parameters, *images)
    assert all(map(equal, run(*inputs), compiled(bitwise, run, *inputs)))
    if "aten._native_batch_norm_legit_no_training" in known():
        assert not records[0].externs


@pytest.mark.parametrize(
    ("n", "columns", "dtype"),
    [
        (40, 7, torch.bfloat16),
        (2300, 14, torch.float32),
        (30000, 1, torch.float64),
    ],
)
def test_scatters(
    bitwise: Session,
    records: list[GraphRecord],
    threads: int,
    n: int,
    columns: int,
    dtype: torch.dtype,
) -> None:
    def run(x: Tensor, rows: Tensor, at: Tensor, many: Tensor) -> list[Tensor]:
        single, wide = at[::2].contiguous(), rows[: n // 2 * 2].view(2, n // 2, columns)
        across, at0, rows0 = many % columns, at[:2300], rows[:2300]
        return [
            x.index_copy(0, at0, rows0), x.scatter(0, many[:2300], rows0),
            x.scatter(1, across[:5], rows[:5]), x.t().contiguous().index_copy(1, at0, rows0.t()),
            aten.index_put(x, [at[:200]], rows[:200]), aten.index_put(x, [at], rows, True),
            x.index_add(0, at, rows), x.index_add(0, single, rows[::2]),
            x.scatter_add(0, many, rows), x.scatter_add(1, across[:5], rows[:5]),
            aten.index_put(x, [at, at % columns], rows[:, 0], True),
            aten.embedding_dense_backward(rows, at, 7, -1, False),
            aten.embedding_dense_backward(wide, at[: n // 2 * 2].view(2, -1), 7, 2, False),
            aten.embedding_dense_backward(rows[: n // 2], at[::2][: n // 2], 5, -1, False),
        ]  # fmt: skip

    x, rows = torch.randn(5, columns).to(dtype), torch.randn(n, columns).to(dtype)
    inputs = (x, rows, torch.randint(0, 5, (n,)), torch.randint(0, 5, (n, columns)))
    want, got = run(*inputs), compiled(bitwise, run, *inputs)
    assert [equal(a, b) for a, b in zip(want, got, strict=True)] == [True] * len(want)
    calls = [e.target for e in records[0].externs]
    if dtype is torch.bfloat16:
        assert all("add" in c or "put" in c or "embedding" in c for c in calls)
    else:
        assert not calls


def test_one_thread_stores_in_order(bitwise: Session, threads: int) -> None:
    x, rows, at = torch.randn(5), torch.randn(30000), torch.randint(0, 5, (30000,))

    def run(*inputs: Tensor) -> list[Tensor]:
        return [x.index_add(0, *inputs)]

    assert equal(compiled(bitwise, run, at, rows)[0], run(at, rows)[0])


def test_known_bits_are_those_of_rules() -> None:
    found = aten_bits.checksums()
    assert found.keys() == {op.rpartition(".")[0] for op in EXACT_RULES}
    assert found == aten_bits.checksums()
    assert known() <= found.keys()


@pytest.mark.parametrize("capability", ["avx2", "default"])
def test_the_number_of_threads_does_not_change_samples(capability: str) -> None:
    # A process of its own, because ATen chooses its kernels once.
    text = """
import torch
from gyrator.targets.aten_bits import checksums
torch.set_num_threads(1)
one = checksums()
torch.set_num_threads(2)
two = checksums()
print(*(op for op in one if one[op] != two[op]))
"""
    run = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert not run.stdout.split()


def test_only_bitwise_sessions_look_for_bits(session: Session, bitwise: Session) -> None:
    known_bits.cache_clear()

    def run(x: Tensor) -> list[Tensor]:
        return [x.sum(0)]

    compiled(session, run, torch.randn(3, 5))
    assert not known_bits.cache_info().currsize
    torch._dynamo.reset()
    compiled(bitwise, run, torch.randn(3, 5))
    assert known_bits.cache_info().currsize


def test_another_build_of_aten(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    monkeypatch.setattr(aten_bits, "_checksum", lambda results: 1)
    known_bits.cache_clear()
    try:
        assert not CPU.aten_bits()
        records: list[GraphRecord] = []
        options = {"strict": True, "progress": False, "numerics": "bitwise"}
        with Session(options=options, config=config, observer=records.append) as session:
            x = torch.randn(16, 16)

            def run(x: Tensor) -> list[Tensor]:
                return [x.sum(0), F.gelu(x)]

            torch._dynamo.reset()
            assert all(map(equal, run(x), compiled(session, run, x)))
        assert {e.target for e in records[0].externs} == {"aten.sum.IntList_out", "aten.gelu.out"}
    finally:
        known_bits.cache_clear()
