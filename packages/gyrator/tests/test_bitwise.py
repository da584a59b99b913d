"""`numerics="bitwise"`: results and gradients have eager's bits."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import test_ops as samples
import torch
import torch_faults
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_lowering.default import default_table

pytestmark = pytest.mark.usefixtures("lightly_optimised")
aten = torch.ops.aten
FLOATS = [
    pytest.param(
        *case.values,
        id=case.id,
        marks=(*case.marks, *[pytest.mark.long] * (case.values[1].itemsize < 4)),
    )
    for case in samples.CASES
    if case.values[1].is_floating_point
]
"""The cases of `test_ops`. Those in narrow floats, of which other tests here compare each value and
each formula of kernels, are among the long tests."""
UNARY: Sequence[Callable[[Tensor], Tensor]] = (
    torch.neg, torch.abs, torch.relu, torch.floor, torch.round, torch.reciprocal, torch.square,
    F.hardswish, F.hardsigmoid, F.leaky_relu, F.hardtanh, torch.sign, torch.isnan,
    lambda x: x * 0.3, lambda x: x + 0.3, lambda x: x / 3.0, lambda x: 1 - x, lambda x: x**2,
    lambda x: x.clamp(-1, 1), lambda x: x.float(), lambda x: x.double().half(),
)  # fmt: skip
"""Functions of one value that kernels compute, by those tables that say so."""


def check(want: Any, got: Any) -> None:
    """Assert equal trees: a NaN equals a NaN."""
    expected, actual = pytree.tree_leaves(want), pytree.tree_leaves(got)
    assert len(expected) == len(actual)
    for a, b in zip(expected, actual, strict=True):
        if isinstance(a, Tensor):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            strides = zip(a.shape, a.stride(), b.stride(), strict=True)
            assert a.numel() == 0 or all(n < 2 or p == q for n, p, q in strides)
            assert torch.equal(a.isnan(), b.isnan())
            assert torch.equal(a[~a.isnan()], b[~b.isnan()])
        else:
            assert a == b


@pytest.mark.parametrize(("names", "dtype"), FLOATS)
def test_ops(bitwise: Session, names: list[str], dtype: torch.dtype) -> None:
    run, tensors = samples.function_of(samples.calls_of(names, dtype))
    want = run(*map(samples.copied, tensors))
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got = torch.compile(run, backend=bitwise.backend, dynamic=False)(*tensors)
    check(want, got)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_have_eagers_bits_for_all_narrow_floats(
    bitwise: Session, records: list[GraphRecord], dtype: torch.dtype
) -> None:
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    turned = every.view(256, 256).t()

    def run(*inputs: Tensor) -> list[Tensor]:
        return [fn(x) for x in inputs for fn in UNARY]

    check(run(every, turned), torch.compile(run, backend=bitwise.backend)(every, turned))
    assert not records[0].externs


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        pytest.param(dtype, layout, marks=pytest.mark.long if (k + n) % 2 else ())
        for k, dtype in enumerate((torch.float32, torch.float64, torch.bfloat16, torch.float16))
        for n, layout in enumerate(("dense", "turned", "spread", "broadcast"))
    ],
)
def test_formulas_of_kernels(
    bitwise: Session, records: list[GraphRecord], dtype: torch.dtype, layout: str
) -> None:
    def run(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        return [
            x + y, x - y, x * y, x / y, torch.rsub(x, y), x.pow(2), x.pow(-1),
            torch.where(x > y, x, z),
            torch.maximum(x, y), torch.fmin(x, y), x.clamp(y, z), torch.copysign(x, y),
            torch.addcdiv(x, y, z), torch.addcdiv(x, z, y, value=-0.37),
            aten.hardswish_backward(x, y), aten.hardsigmoid_backward(x, y),
            aten.leaky_relu_backward(x, y, 0.1, False), aten.threshold_backward(x, y, 0.2),
            aten.hardtanh_backward(x, y, -1.0, 1.0), aten.native_dropout_backward(x, y > 0, 1.25),
            aten._prelu_kernel(x, y), *aten._prelu_kernel_backward(x, y, z), torch.cat((x, y)),
            x.amax(0), x.argmin(1), torch.stack((x, z)), torch.cummax(x, 0)[0],
            aten.sigmoid_backward(x, y),
        ]  # fmt: skip

    inputs = [torch.randn(37, 70).exp().mul(torch.randn(37, 70)).to(dtype) for _ in range(3)]
    match layout:
        case "turned":
            inputs = [t.t().contiguous().t() for t in inputs]
        case "spread":
            inputs = [t.repeat_interleave(2, 1)[:, ::2] for t in inputs]
        case "broadcast":
            inputs[1] = inputs[1][:, :1].expand(37, 70)
    check(run(*inputs), torch.compile(run, backend=bitwise.backend)(*inputs))
    in_half = ["aten.sigmoid_backward.grad_input"] if dtype is torch.float16 else []
    assert [e.target for e in records[0].externs] == in_half


def test_what_rounds_otherwise_is_a_call(bitwise: Session, records: list[GraphRecord]) -> None:
    def run(x: Tensor) -> list[Tensor]:
        y = x.double()
        return [x.exp(), x.sqrt(), x.sum(0), y.add(y, alpha=0.3), torch.lerp(x, x + 1, 0.7)]

    x = torch.rand(200, 170)
    check(run(x), torch.compile(run, backend=bitwise.backend)(x))
    actual = {e.target: e.reason for e in records[0].externs}
    assert actual.keys() == {
        "aten.exp.out", "aten.sqrt.out", "aten.sum.IntList_out", "aten.add.out",
        "aten.lerp.Scalar_out",
    }  # fmt: skip
    assert actual["aten.exp.out"] == "kernels compute the function 'exp' with other bits than ATen"
    assert actual["aten.sum.IntList_out"].startswith("kernels compute a sum of floats")


@torch_faults.FORMULAS
def test_formulas_that_dynamo_rewrites(bitwise: Session) -> None:
    def run(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        a = x.clone().addcdiv_(y, z, value=-0.01)
        b = x.clone().addcmul_(y, y, value=0.3)
        c = torch.addcdiv(x, y, z, value=0.7)
        return [a, b, c, x + y / z * 0.7]

    inputs = [torch.rand(1000) + 0.5 for _ in range(3)]
    check(run(*inputs), torch.compile(run, backend=bitwise.backend)(*inputs))


def test_gates_that_eager_writes_in_place(bitwise: Session) -> None:
    cell = nn.GRUCell(8, 20)  # rows that are no multiple of a vector
    other = deepcopy(cell)
    compiled = torch.compile(other, backend=bitwise.backend)
    x, state = torch.randn(4, 8), torch.randn(4, 20)
    check(cell(x, state), compiled(x, state))
    with torch.no_grad():
        check(cell(x, state), compiled(x, state))
    cell(x, cell(x, state)).cos().sum().backward()
    compiled(x, compiled(x, state)).cos().sum().backward()
    check([p.grad for p in cell.parameters()], [p.grad for p in other.parameters()])


class Net(nn.Module):
    """Ops of which torch traces formulas of its own, reductions, and what draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.mixed, self.last = nn.Linear(64, 64), nn.Linear(16, 5)
        self.layer = nn.LayerNorm(16)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        x = F.interpolate(F.gelu(self.norm(self.conv(x))), scale_factor=2, mode="bilinear")
        x = F.softshrink(F.interpolate(x, size=(8, 8), mode="bicubic"), 0.1)
        x = F.dropout(self.mixed(x.flatten(2)).mT, 0.3)
        x = x + torch.softmax(x @ x.mT, -1) @ x
        x = self.layer(x.flatten(1).unflatten(1, (16, 16)).mT)
        return F.cross_entropy(self.last(x).mean(1), target) + x.std()


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_the_margin_loss_of_a_row(bitwise: Session, reduction: str) -> None:
    def run(x: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x, target, reduction=reduction)

    for target in (torch.tensor([3, 0, -1, 1, 2]), torch.tensor(0)):
        torch._dynamo.reset()
        compiled = torch.compile(run, backend=bitwise.backend)
        x = torch.randn(target.shape, requires_grad=True)
        check(run(x.detach(), target), compiled(x.detach(), target))
        want, got = run(x, target), compiled(x, target)
        check(want.detach(), got.detach())
        check(*(torch.autograd.grad(loss * 3, x) for loss in (want, got)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step_of_training(bitwise: Session, dynamic: bool) -> None:
    net = Net()
    runs = net, deepcopy(net)
    calls = runs[0], torch.compile(runs[1], backend=bitwise.backend, dynamic=dynamic)
    for batch in (6, 3):
        x, target = torch.randn(batch, 3, 6, 6), torch.randint(5, (batch,))
        inputs = [x.clone().requires_grad_() for _ in runs]
        losses = []
        for call, one in zip(calls, inputs, strict=True):
            torch.manual_seed(batch)
            losses.append(call(one, target))
            losses[-1].backward()
        check([losses[0].detach(), inputs[0].grad], [losses[1].detach(), inputs[1].grad])
        check([p.grad for p in net.parameters()], [p.grad for p in runs[1].parameters()])
        check(list(net.buffers()), list(runs[1].buffers()))


def turned(*sizes: int) -> Tensor:
    """Return a tensor whose axes lie in reverse order."""
    return torch.randn(sizes[::-1]).permute(*reversed(range(len(sizes))))


RESULTS: Sequence[Callable[[Tensor, Tensor], Tensor]] = (
    torch.xlogy, torch.special.xlog1py, torch.logaddexp, torch.copysign, torch.ldexp,
    lambda x, y: torch.div(y[0], x, rounding_mode="floor"),
    lambda x, y: torch.pow(1.3, x),
    lambda x, y: F.logsigmoid(x),
    lambda x, y: aten.log_sigmoid_forward(x)[1],
    lambda x, y: aten.mse_loss_backward(y.sum(), x, x, 1),
    lambda x, y: aten.huber_loss_backward(y.sum(), x, x, 1, 0.7),
    lambda x, y: aten.smooth_l1_loss_backward(y.sum(), x, x, 1, 0.7),
    lambda x, y: aten._log_softmax_backward_data(x, y, 1, torch.float32),
    lambda x, y: aten.threshold_backward(x, y[:1].expand_as(y), 0.1),
    lambda x, y: aten.leaky_relu_backward(x, y[:1].expand_as(y), 0.1, False),
    lambda x, y: aten.hardtanh_backward(x, y, -1, 1),
    lambda x, y: aten.hardswish_backward(x, y),
    lambda x, y: aten.logit_backward(x, y),
    lambda x, y: aten.elu_backward(x, 1.0, 1, 1, False, y[:, :1].expand_as(y)),
    lambda x, y: aten._prelu_kernel_backward(x, y[:1].expand_as(y), x[:1, :1, :1])[1],
    lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction="none"),
    lambda x, y: aten.binary_cross_entropy_backward(x, y.sigmoid(), x.sigmoid(), None, 0),
    lambda x, y: F.cross_entropy(x[None], x[0].abs().long()[None], reduction="none"),
    lambda x, y: aten.glu_backward(y[:, :20], x, 1),
    lambda x, y: aten.native_layer_norm_backward(
        x, y, [50], y[:, :, :1], y[:, :, 1:2], None, None, [True, False, False]
    )[0],
    lambda x, y: aten.native_batch_norm_backward(
        x, y, None, None, None, x[0, :, 0], y[0, :, 0].abs(), True, 1e-5, [True, False, False]
    )[0],
)  # fmt: skip
"""Ops for which torch's fake kernels return other strides than eager mode does."""


@pytest.mark.parametrize("dynamic", [False, True])
def test_sums_of_what_fake_kernels_lay_otherwise(bitwise: Session, dynamic: bool) -> None:
    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        results = [op(x, y) for op in RESULTS]
        return [sum_ for t in results for sum_ in (t.sum(0), t.sum((1, 2)), t.sum())]

    x, y = turned(30, 40, 50), torch.randn(30, 40, 50)
    compiled = torch.compile(run, backend=bitwise.backend, dynamic=dynamic)
    with torch.no_grad():
        check(run(x, y), compiled(x, y))


LOSSES: Sequence[Callable[[Tensor, Tensor], Tensor]] = (
    F.mse_loss, F.huber_loss, F.smooth_l1_loss,
    lambda x, y: F.batch_norm(x, None, None, training=True).mul(y).mean(),
    lambda x, y: F.layer_norm(x, (50,)).cos().mean(),
    lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction="none").mean(),
)  # fmt: skip


@pytest.mark.parametrize("layout", ["turned", "channels-last"])
def test_gradients_of_what_is_broadcast_before_a_loss(bitwise: Session, layout: str) -> None:
    def run(x: Tensor, y: Tensor, scale: Tensor, shift: Tensor) -> list[Tensor]:
        return [loss(x * scale + shift, y) for loss in LOSSES]

    x, y = turned(5, 6, 7, 50), turned(5, 6, 7, 50)
    if layout == "channels-last":
        x, y = (t.contiguous(memory_format=torch.channels_last) for t in (x, y))
    inputs = (x, y, torch.randn(6, 1, 50), torch.randn(50))
    results = []
    for call in (run, torch.compile(run, backend=bitwise.backend)):
        leaves = [t.clone().requires_grad_() for t in inputs]
        losses = call(*leaves)
        torch.stack(losses).cos().sum().backward()
        results.append([[t.detach() for t in losses], [t.grad for t in leaves[:1] + leaves[2:]]])
    check(*results)


def test_torchs_tables_are_as_before(bitwise: Session) -> None:
    ops = (aten.matmul.default, aten.upsample_bilinear2d.vec, aten.softshrink.default)
    before = [dict(op.py_kernels) for op in ops]
    torch.compile(lambda x: (x @ x).exp(), backend=bitwise.backend)(torch.randn(3, 3))
    assert [dict(op.py_kernels) for op in ops] == before
    assert default_table().find("aten.exp.default") is not None
