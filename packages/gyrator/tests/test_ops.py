"""Ops against eager mode, on samples from torch's own database of ops (OpInfo).

One compiled function holds several ops, as each compile costs a run of the C++ compiler. The seed
of the samples is fixed by the test's name; odd samples are made non-contiguous.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch_faults
from torch.utils import _pytree as pytree

from gyrator.reports.records import GraphRecord
from gyrator.session import Session

methods = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations",
    reason="needs expecttest",
    exc_type=ImportError,
)

FAMILIES = {
    "pointwise": "add sub mul div exp log sin tanh sigmoid atan2 pow clamp where lerp erf rsqrt "
    "abs sign",
    "integers": "bitwise_and bitwise_xor floor_divide remainder fmod maximum eq lt logical_not neg",
    "activation": "nn.functional.gelu nn.functional.silu nn.functional.elu nn.functional.softplus "
    "nn.functional.hardswish nn.functional.leaky_relu softmax log_softmax",
    "reduction": "sum mean amax argmax var std prod any all logsumexp count_nonzero norm",
    "matmul": "mm bmm addmm matmul einsum nn.functional.linear",
    "convolution": "nn.functional.conv2d nn.functional.max_pool2d nn.functional.avg_pool2d "
    "nn.functional.adaptive_avg_pool2d nn.functional.interpolate nn.functional.pad",
    "norm": "nn.functional.layer_norm nn.functional.group_norm nn.functional.batch_norm "
    "nn.functional.normalize nn.functional.rms_norm",
    "loss": "nn.functional.cross_entropy nn.functional.mse_loss nn.functional.nll_loss "
    "nn.functional.smooth_l1_loss nn.functional.kl_div",
    "view": "view reshape permute transpose expand squeeze unsqueeze select chunk split "
    "unbind diagonal movedim flatten unfold broadcast_to swapaxes",
    "index": "gather scatter scatter_add index_select index_put index_add index_copy index_fill "
    "take take_along_dim masked_fill __getitem__ nn.functional.embedding cat stack flip roll "
    "repeat tril triu diag_embed",
    "order": "sort argsort topk cumsum cumprod cummax kthvalue median searchsorted argwhere "
    "nonzero",
    "counts": "unique",
}
FLOATS = (torch.float32, torch.bfloat16)
DTYPES = {
    "pointwise": (*FLOATS, torch.int64, torch.bool),
    "integers": (*FLOATS, torch.int64, torch.bool),
    "reduction": (*FLOATS, torch.int64),
    "view": (torch.float32,),
    "index": (torch.float32, torch.int64),
    "order": (torch.float32, torch.int64),
    "counts": (torch.float32, torch.int64),
}
CASES = [
    pytest.param(
        ops.split(),
        dtype,
        id=f"{family}-{str(dtype).removeprefix('torch.')}",
        marks=torch_faults.COUNTS if family == "counts" and dtype.is_floating_point else (),
    )
    for family, ops in FAMILIES.items()
    for dtype in DTYPES.get(family, FLOATS)
    if any(dtype in o.dtypes and o.name in ops.split() for o in methods.op_db)
]


def calls_of(names: Sequence[str], dtype: torch.dtype) -> list[tuple[Any, Any]]:
    """Return (op, sample) pairs: a first and a middle sample of each op that takes `dtype`."""
    actual = []
    for info in methods.op_db:
        if info.name not in names or info.variant_test_name or dtype not in info.dtypes:
            continue
        torch.manual_seed(0)
        # `OpInfo.sample_inputs` reads the source of the whole call stack twice first.
        samples = list(info.sample_inputs_func(info, "cpu", dtype, requires_grad=False))
        picked = [samples[0], samples[len(samples) // 2].noncontiguous()]
        actual += [(info.op, s) for s in picked]
    return actual


def function_of(calls: Sequence[tuple[Any, Any]]) -> tuple[Callable[..., Any], list[Any]]:
    """Return one function that makes all calls, and the tensors that it takes."""
    flat, spec = pytree.tree_flatten([(s.input, s.args, s.kwargs) for _, s in calls])
    indices = [k for k, v in enumerate(flat) if isinstance(v, torch.Tensor)]

    def run(*tensors: torch.Tensor) -> list[Any]:
        values = list(flat)
        for place, tensor in zip(indices, tensors, strict=True):
            values[place] = tensor
        inputs = pytree.tree_unflatten(values, spec)
        return [op(x, *a, **k) for (op, _), (x, a, k) in zip(calls, inputs, strict=True)]

    return run, [flat[k] for k in indices]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides: views of it must have eager's."""
    result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return tensor.clone() if 0 in tensor.stride() else result.copy_(tensor)


def check(want: torch.Tensor, got: torch.Tensor, exact: torch.Tensor | None) -> None:
    """Assert equal forms; integers equal, floats as near to the exact result as eager's are.

    The allowance is twice eager's largest error and one rounding of the largest value.
    """
    assert (want.dtype, want.shape) == (got.dtype, got.shape)
    assert want.numel() == 0 or all(
        n < 2 or a == b for n, a, b in zip(want.shape, want.stride(), got.stride(), strict=True)
    )
    if not want.dtype.is_floating_point:
        assert torch.equal(want, got)
        return
    if exact is None:
        torch.testing.assert_close(got, want, equal_nan=True)
        return
    assert torch.equal(want.isnan(), got.isnan())
    finite = exact.isfinite() & want.isfinite()
    assert torch.equal(want[~finite & ~want.isnan()], got[~finite & ~want.isnan()])
    if finite.any():
        truth = exact[finite]
        allowed = 2 * (want[finite].double() - truth).abs().max()
        allowed += torch.finfo(want.dtype).eps * truth.abs().max()
        assert (got[finite].double() - truth).abs().max() <= allowed


@pytest.mark.parametrize(("names", "dtype"), CASES)
def test_ops(
    session: Session, records: list[GraphRecord], names: list[str], dtype: torch.dtype
) -> None:
    run, tensors = function_of(calls_of(names, dtype))
    want = pytree.tree_leaves(run(*map(copied, tensors)))
    exact: list[Any] = [None] * len(want)
    if dtype.is_floating_point:
        wide = [t.double() if t.is_floating_point() else t for t in tensors]
        exact = pytree.tree_leaves(run(*wide))
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got = pytree.tree_leaves(torch.compile(run, backend=session.backend)(*tensors))
    assert len(records) >= 1 and len(got) == len(want)
    for a, b, c in zip(want, got, exact, strict=True):
        if isinstance(a, torch.Tensor):
            check(a, b, c)
        else:
            assert a == b
