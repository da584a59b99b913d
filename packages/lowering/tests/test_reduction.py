"""Reductions, softmax, norms, scans and sorts against eager."""

import pytest
import torch
from attrs import evolve
from torch.nn import functional as F

from gyrator_testing.interp.loop import run_loop

TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


def make(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -5, 6, shape).to(dtype)


FOLDS = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k),
    "mean": lambda x, d, k: x.mean(d, keepdim=k),
    "amax": lambda x, d, k: x.amax(d, keepdim=k),
    "amin": lambda x, d, k: x.amin(d, keepdim=k),
    "any": lambda x, d, k: x.any(d, keepdim=k),
    "all": lambda x, d, k: x.all(d, keepdim=k),
    "var": lambda x, d, k: x.var(d, keepdim=k),
    "std": lambda x, d, k: x.std(d, keepdim=k),
    "var_mean": lambda x, d, k: torch.var_mean(x, d, correction=0, keepdim=k),
    "logsumexp": lambda x, d, k: x.logsumexp(d, keepdim=k),
    "norm": lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k),
    "norm1": lambda x, d, k: torch.linalg.vector_norm(x, 1, d, k),
    "norm3": lambda x, d, k: torch.linalg.vector_norm(x, 3, d, k),
    "norm_inf": lambda x, d, k: torch.linalg.vector_norm(x, float("inf"), d, k),
    "norm0": lambda x, d, k: torch.linalg.vector_norm(x, 0, d, k),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", FOLDS)
def test_reductions(check, name: str, dtype: torch.dtype) -> None:
    fn = FOLDS[name]
    x = make(dtype, 4, 5, 6)
    try:
        fn(x, (0, 2), True)
    except RuntimeError:
        pytest.skip("eager has no such op for this type")
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    for dims, keep in (((0, 2), True), ((1,), False), ((-1, 0, 1), False)):
        check(lambda x, d=dims, k=keep: fn(x, d, k), x, **tolerance)
    check(lambda x: fn(x, (1,), False), x.permute(2, 0, 1)[:, ::2], **tolerance)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reductions_to_bool(check, dtype: torch.dtype) -> None:
    x = make(dtype, 4, 5) / 4 if dtype.is_floating_point else make(dtype, 4, 5)
    check(lambda x: (x.sum(1, dtype=torch.bool), x.prod(1, dtype=torch.bool)), x)


ONE_DIM = {
    "max": lambda x, d: x.max(d),
    "min": lambda x, d: x.min(d, keepdim=True),
    "argmax": lambda x, d: x.argmax(d),
    "argmin": lambda x, d: x.argmin(d, keepdim=True),
    "prod": lambda x, d: x.prod(d),
    "cumsum": lambda x, d: x.cumsum(d),
    "cumprod": lambda x, d: x.cumprod(d),
    "cummax": lambda x, d: x.cummax(d),
    "cummin": lambda x, d: x.cummin(d),
    "sort": lambda x, d: x.sort(dim=d, stable=True),
    "sort_down": lambda x, d: x.sort(dim=d, descending=True, stable=True),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d),
    "argsort": lambda x, d: x.argsort(dim=d, stable=True),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ONE_DIM)
def test_one_dim(check, name: str, dtype: torch.dtype) -> None:
    fn = ONE_DIM[name]
    x = make(dtype, 4, 5, 6)
    try:
        fn(x, 1)
    except RuntimeError:
        pytest.skip("eager has no such op for this type")
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {}
    externs = ()
    if dtype is torch.bool:
        externs = (
            "aten.sort.stable",
            "aten.cummax.default",
            "aten.cummin.default",
            "aten.sort.default",
        )
    for dim in (0, 1, -1):
        check(lambda x, d=dim: fn(x, d), x, externs=externs, **tolerance)


def test_full_reductions(check) -> None:
    x = torch.randn(4, 5)
    check(
        lambda x: (
            x.sum(),
            x.mean(),
            x.max(),
            x.min(),
            x.prod(),
            x.argmax(),
            x.argmin(),
            x.std(),
            x.any(),
            x.all(),
            x.norm(),
            x.var(),
        ),
        x,
    )
    check(lambda x: (x.sum(dtype=torch.float64), x.sum(dtype=torch.int64)), x)
    check(lambda x: (x.sum(), x.max(), x.argmax(), x.mean(), x.softmax(0)), torch.randn(()))
    check(lambda x: (x.sum(0), x.sum(1), x.mean(0), x.any(0), x.all(1)), torch.randn(0, 3))
    check(lambda x: (x.sum(0), x.sum(1), x.mean(1), x.softmax(0)), torch.randn(1, 3))


def test_nan_and_infinity(check) -> None:
    x = torch.randn(4, 6)
    x[0, 1], x[1, 2], x[2] = float("nan"), float("inf"), float("-inf")
    check(
        lambda x: (
            x.max(1),
            x.min(1),
            x.argmax(1),
            x.amin(0),
            x.softmax(1),
            x.logsumexp(1),
            x.log_softmax(1),
        ),
        x,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_softmax(check, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5).to(dtype)
    narrow = dtype in (torch.bfloat16, torch.float16)
    tolerance = {"rtol": 3e-2, "atol": 2e-2} if narrow else {}
    for dim in (0, 1, -1):
        check.gradients(lambda x, d=dim: (x.softmax(d), x.log_softmax(d)), x, **tolerance)
    if dtype is not torch.float64:
        check(lambda x: x.softmax(-1, dtype=torch.float32), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms(check, dtype: torch.dtype) -> None:
    narrow = dtype is torch.bfloat16
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if narrow else {"rtol": 1e-4, "atol": 1e-5}
    x, w, b = torch.randn(3, 4, 6).to(dtype), torch.randn(6).to(dtype), torch.randn(6).to(dtype)
    check.gradients(lambda x, w, b: F.layer_norm(x, (6,), w, b), x, w, b, **tolerance)
    check.gradients(lambda x: F.layer_norm(x, (4, 6)), x, **tolerance)
    check.gradients(lambda x, w: F.rms_norm(x, (6,), w, 1e-5), x, w, **tolerance)
    y, w, b = torch.randn(3, 6, 4, 5).to(dtype), torch.randn(6).to(dtype), torch.randn(6).to(dtype)
    check.gradients(lambda x, w, b: F.group_norm(x, 3, w, b), y, w, b, **tolerance)
    check.gradients(lambda x: F.group_norm(x, 2), y, **tolerance)
    check.gradients(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), y, w, b, **tolerance)


@pytest.mark.parametrize(
    ("layout", "groups", "is_spread"),
    [
        (torch.channels_last, 3, True),
        (torch.channels_last, 6, False),  # a channel each
        (torch.channels_last, 1, False),  # a run is long enough
        (torch.contiguous_format, 3, False),
    ],
)
def test_statistics_of_channels(
    check, monkeypatch, layout: torch.memory_format, groups: int, is_spread: bool
) -> None:
    target = check.targets["cpu"]
    columns = evolve(target, heuristics=evolve(target.heuristics, column_parts=4))
    monkeypatch.setitem(check.targets, "cpu", columns)
    x, w, b = torch.randn(2, 6, 4, 5).to(memory_format=layout) + 3, torch.randn(6), torch.randn(6)
    program = check(
        lambda x, w, b: torch.native_group_norm(x, w, b, 2, 6, 20, groups, 1e-5), x, w, b
    )
    shapes = [tuple(getattr(n, "value", None) for n in b.shape) for b in program.buffers]
    assert ((2, groups, 6 // groups) in shapes) == is_spread


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm(check, training: bool, layout: torch.memory_format) -> None:
    x = torch.randn(3, 6, 4, 5).to(memory_format=layout)
    w, b = torch.randn(6), torch.randn(6)
    mean, var = torch.randn(6), torch.rand(6) + 0.5
    check.gradients(
        lambda x, w, b, m, v: F.batch_norm(
            x, m.detach().clone(), v.detach().clone(), w, b, training
        ),
        x,
        w,
        b,
        mean,
        var,
        rtol=1e-4,
        atol=1e-5,
    )

    def step(x, m, v):
        return F.batch_norm(x, m, v, None, None, training)

    check(step, x, mean, var, rtol=1e-4, atol=1e-5)


def test_symbolic(check) -> None:
    w, b = torch.randn(6), torch.randn(6)
    check(
        lambda x: (x.softmax(-1), x.mean(0), x.sum(), x.var(1), x.argmax()),
        torch.randn(3, 7),
        other=(torch.randn(5, 4),),
    )
    check(
        lambda x, w, b: F.layer_norm(x, (6,), w, b),
        torch.randn(3, 5, 6),
        w,
        b,
        other=(torch.randn(2, 4, 6), w, b),
    )


def test_means_with_variance_are_as_accurate_as_eagers(check) -> None:
    x = torch.randn(5, 999).clamp(-3, 3) * 100
    x[:, -1] = -x[:, :-1].double().sum(1).float()
    (error,) = (torch.var_mean(x, 1)[1].double() - x.double().mean(1)).abs().max().reshape(1)
    program = check.lower(lambda x: torch.var_mean(x, 1), (x,))
    _, mean = run_loop(program, [x.numpy()])
    actual = (torch.from_numpy(mean).double() - x.double().mean(1)).abs().max()
    assert actual <= 2 * error + 1e-12
    check(lambda x: torch.var_mean(x, 1), torch.randn(3, 0))
