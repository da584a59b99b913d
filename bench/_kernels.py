"""Single kernels: run time against TorchInductor and eager, and what building them costs."""

import os
import resource
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from _clock import interleave, tree_cpu_seconds
from _overhead import twin
from _subject import BACKENDS, compiled, launches, warm_up
from torch import Tensor

BUILDS = 3

Case = tuple[Callable[..., Any], list[Tensor]]


def _gelu() -> Case:
    return lambda x, y: F.gelu(x + y), [torch.randn(4 << 20), torch.randn(4 << 20)]


def _softmax() -> Case:
    return lambda x: torch.softmax(x, -1), [torch.randn(4096, 1024)]


def _layer_norm() -> Case:
    return (
        lambda x, w, b: F.layer_norm(x, (1024,), w, b),
        [torch.randn(4096, 1024), torch.randn(1024), torch.randn(1024)],
    )


def _sum_rows() -> Case:
    return lambda x: x.sum(1), [torch.randn(4096, 1024)]


def _sum_columns() -> Case:
    return lambda x: x.sum(0), [torch.randn(4096, 1024)]


def _sum_all() -> Case:
    return lambda x: (x * x).sum(), [torch.randn(4 << 20)]


def _transpose_add() -> Case:
    return lambda x, y: x.t() + y, [torch.randn(2048, 2048), torch.randn(2048, 2048)]


def _silu_mul_bf16() -> Case:
    x, y = (torch.randn(4 << 20).bfloat16() for _ in range(2))
    return lambda x, y: F.silu(x) * y, [x, y]


def _max_pool() -> Case:
    return lambda x: F.max_pool2d(x, 3, 2, 1), [torch.randn(4, 64, 112, 112)]


def _batch_norm() -> Case:
    return (
        lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)),
        [torch.randn(8, 64, 56, 56), torch.randn(64), torch.randn(64)],
    )


def _batch_norm_backward() -> Case:
    def run(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> Any:
        return torch.ops.aten.native_batch_norm_backward(
            g, x, w, None, None, b, w, True, 1e-5, [True, True, True]
        )

    x = torch.randn(8, 64, 56, 56)
    return run, [x, torch.rand(64) + 0.5, torch.randn(64), torch.randn_like(x)]


def _layer_norm_backward() -> Case:
    def run(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor) -> Any:
        return torch.ops.aten.native_layer_norm_backward(
            g, x, [1024], mean, rstd, w, w, [True, True, True]
        )

    x = torch.randn(4096, 1024)
    mean, rstd = x.mean(1, keepdim=True), torch.rand(4096, 1) + 0.5
    return run, [torch.randn_like(x), x, mean, rstd, torch.randn(1024)]


def _softmax_backward() -> Case:
    x = torch.softmax(torch.randn(4096, 1024), -1)
    return (
        lambda g, y: torch.ops.aten._softmax_backward_data(g, y, -1, torch.float32),
        [torch.randn_like(x), x],
    )


def _cross_entropy() -> Case:
    return lambda x, t: F.cross_entropy(x, t), [
        torch.randn(512, 8192),
        torch.randint(0, 8192, (512,)),
    ]


def _embedding_backward() -> Case:
    return (
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 8192, -1, False),
        [torch.randn(4, 128, 256), torch.randint(0, 8192, (4, 128))],
    )


def _dropout() -> Case:
    return lambda x: F.dropout(x, 0.1, True), [torch.randn(4 << 20)]


def _rotary() -> Case:
    def run(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    return run, [torch.randn(4, 8, 512, 64), torch.randn(512, 64), torch.randn(512, 64)]


CASES: Mapping[str, Callable[[], Case]] = MappingProxyType({
    "gelu(x + y), 4M": _gelu,
    "bf16 silu(x) * y, 4M": _silu_mul_bf16,
    "dropout, 4M": _dropout,
    "softmax, 4096x1024": _softmax,
    "softmax backward, 4096x1024": _softmax_backward,
    "layer norm, 4096x1024": _layer_norm,
    "layer norm backward, 4096x1024": _layer_norm_backward,
    "sum of rows, 4096x1024": _sum_rows,
    "sum of columns, 4096x1024": _sum_columns,
    "sum of squares, 4M": _sum_all,
    "transpose + add, 2048x2048": _transpose_add,
    "rotary embedding, 4x8x512x64": _rotary,
    "max pool 3x3, 4x64x112x112": _max_pool,
    "batch norm + relu, 8x64x56x56": _batch_norm,
    "batch norm backward, 8x64x56x56": _batch_norm_backward,
    "cross entropy, 512x8192": _cross_entropy,
    "embedding backward, 8192x256": _embedding_backward,
})  # fmt: skip
"""By the name in the table."""


def time_kernel(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the times of one case by backend, and the CPU seconds of building its kernels.

    The build's cost is that of the child processes during the first call: the C++ compilers. Of
    Gyrator's it is the least of `BUILDS`, each into a cache of its own, for it is held to a bound.
    """
    torch.set_num_threads(arguments["threads"])
    torch.manual_seed(0)
    function, inputs = CASES[arguments["case"]]()
    records: list[Any] = []
    builds: list[float] = []
    runs, build = {}, {}
    for backend in ("gyrator", "inductor"):  # all before the first compile, for it ends in a reset
        warm_up(backend)
    for _ in range(BUILDS - 1):
        with (
            tempfile.TemporaryDirectory() as cache,
            mock.patch.dict(os.environ, GYRATOR_CACHE_DIR=cache),
        ):
            again = partial(compiled(twin(function), "gyrator", []), *inputs)
            builds.append(_first_call(again))
    for backend in BACKENDS:
        runs[backend] = partial(compiled(twin(function), backend, records), *inputs)
        build[backend] = _first_call(runs[backend])
    build["gyrator"] = min(*builds, build["gyrator"])
    times = interleave(runs, arguments["rounds"])
    return {
        "times": times,
        "build_cpu_seconds": build,
        "kernels": sum(len(r.kernels) for r in records),
        "launches": launches(records),
        "externs": [e.target for r in records for e in r.externs],
    }


def _first_call(run: Callable[[], Any]) -> float:
    """Return the CPU seconds of the child processes during the first call."""
    tree, own = tree_cpu_seconds(), _own_cpu_seconds()
    run()
    return tree_cpu_seconds() - tree - (_own_cpu_seconds() - own)


def _own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
