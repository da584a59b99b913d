"""Operators that return a tensor, called through libtorch's C ABI."""

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from gyrator_runtime import host
from gyrator_runtime.native.shim import RETURNING, returning_address

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN"
)
mkldnn = torch.ops.mkldnn
NOTHING = ("none", [], "")
AFTER = [
    NOTHING,
    ("relu", [], None),
    ("leaky_relu", [0.25], ""),
    ("hardtanh", (-0.5, 0.75), ""),
    ("gelu", [], "tanh"),
]
ONES = [1, 1]


def convolution(bias: bool, after=NOTHING, groups: int = 1):
    x = torch.randn(2, 4, 6, 5).to(memory_format=torch.channels_last)
    weight, shift = torch.randn(8, 4 // groups, 3, 2), torch.randn(8) if bias else None
    window = ([1, 0], [2, 1], ONES, groups)
    packed = mkldnn._reorder_convolution_weight(weight, *window, list(x.shape))
    return x, packed, shift, *window, *after


def transposed(bias: bool, after=NOTHING):
    x = torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last)
    weight, shift = torch.randn(4, 6, 2, 2), torch.randn(6) if bias else None
    window = ([0, 0], [0, 0], [2, 2], ONES, 1)
    packed = mkldnn._reorder_convolution_transpose_weight(weight, *window, list(x.shape))
    return x, packed, shift, *window, *after


def summed(bias: bool, after=None):
    x, packed, shift, *window = convolution(bias)[:-3]
    shape = mkldnn._convolution_pointwise(x, packed, shift, *window, *NOTHING).shape
    other = torch.randn(shape).to(memory_format=torch.channels_last)
    return x, other, packed, shift, *window, "add", None, after, [], None


def linear(bias: bool, after=NOTHING):
    weight, shift = torch.randn(5, 7), torch.randn(5) if bias else None
    return torch.randn(3, 7), mkldnn._reorder_linear_weight(weight, 3), shift, *after


CASES = {
    "mkldnn._convolution_pointwise.default": [
        *(convolution(b, after) for b in (False, True) for after in AFTER),
        convolution(True, groups=2),
    ],
    "mkldnn._convolution_transpose_pointwise.default": [
        transposed(b, after) for b in (False, True) for after in AFTER
    ],
    "mkldnn._convolution_pointwise.binary": [
        summed(b, after) for b in (False, True) for after in (None, "relu")
    ],
    "mkldnn._linear_pointwise.default": [
        linear(b, after) for b in (False, True) for after in AFTER
    ],
}
if torch._C.has_mkl:
    for_mkl = torch.randn(5, 7)
    packed_for_mkl = torch.ops.mkl._mkl_reorder_linear_weight(for_mkl, 3)
    CASES["mkl._mkl_linear.default"] = [
        (torch.randn(rows, 7), packed_for_mkl, for_mkl, bias, 3)
        for rows in (3, 4)
        for bias in (None, torch.randn(5))
    ]


def counted(runner, target):
    """A callable for an operator, and a list that grows by one with each call of PyTorch's."""
    calls: list[int] = []
    function = host.extern(target)

    def slow(*args, **kwargs):
        calls.append(len(args))
        return function(*args, **kwargs)

    return runner.operator(target, slow), calls


def test_every_operator_has_an_address():
    lacking = set() if torch._C.has_mkl else {"mkl._mkl_linear.default"}
    assert set(RETURNING) - lacking == set(CASES)
    assert all(returning_address(target) for target in CASES)


@pytest.mark.parametrize("target", CASES)
def test_results_and_layouts_are_those_of_the_dispatcher(runner, target):
    call, calls = counted(runner, target)
    for args in CASES[target]:
        want = host.extern(target)(*args)
        result = call(*args)
        assert type(result) is torch.Tensor
        assert result.stride() == want.stride()
        assert torch.equal(result, want)
        assert not result.requires_grad
    assert len(calls) == (0 if runner.name == "native" else len(CASES[target]))


def test_bfloat16_is_passed_on(runner):
    if not mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no instructions for bfloat16")
    x, weight = torch.randn(3, 7).bfloat16(), torch.randn(5, 7).bfloat16()
    packed = mkldnn._reorder_linear_weight(weight, 3)
    call, _ = counted(runner, "mkldnn._linear_pointwise.default")
    want = mkldnn._linear_pointwise(x, packed, None, *NOTHING)
    assert torch.equal(call(x, packed, None, *NOTHING), want)


def test_parameters_and_grad_mode(runner):
    x, packed, bias, *rest = linear(True)
    call, calls = counted(runner, "mkldnn._linear_pointwise.default")
    bias = torch.nn.Parameter(bias)
    with torch.enable_grad():
        result = call(x, packed, bias, *rest)
        assert torch.is_grad_enabled()
    # With a parameter, oneDNN may choose a kernel for training, which rounds differently.
    torch.testing.assert_close(result, mkldnn._linear_pointwise(x, packed, bias.detach(), *rest))
    assert not calls or runner.name == "pure"
    with torch.inference_mode():
        assert call(x, packed, bias, *rest).is_inference()


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("target", CASES)
def test_modes_and_the_profiler_see_the_operator(runner, target):
    call, calls = counted(runner, target)
    args = CASES[target][0]
    with Watch() as watch:
        call(*args)
    assert watch.seen == [target]
    with torch.profiler.profile() as profiler:
        call(*args)
    name = "::".join(target.split(".")[:2])
    assert [e.count for e in profiler.key_averages() if e.key == name] == [1]
    assert len(calls) == 2


class Loud(torch.Tensor):
    """A subclass."""


def test_other_arguments_go_to_pytorch(runner, capfd):
    target = "mkldnn._linear_pointwise.default"
    call, calls = counted(runner, target)
    x, packed, bias, *rest = linear(True)
    want = mkldnn._linear_pointwise(x, packed, bias, *rest)
    assert torch.equal(call(x.as_subclass(Loud), packed, bias, *rest), want)
    assert torch.equal(call(x, packed, bias, "none", [], algorithm=""), want)
    assert torch.equal(call(x, packed, bias, "leaky_relu", [1], ""), want)
    assert len(calls) == 3
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = call(mode.from_tensor(x), packed, bias, *rest)
        assert type(fake) is not torch.Tensor
        assert fake.shape == want.shape
    for wrong in ((x,), (x, packed, bias, "no such function", [], ""), (x, 3, bias, *rest)):
        with pytest.raises((RuntimeError, TypeError)):
            call(*wrong)
    for wrong in ((x.to("meta"), packed, bias, *rest), (x[:, 1:], packed, bias, *rest)):
        with pytest.raises((RuntimeError, NotImplementedError)):
            call(*wrong)


def test_results_are_freed(runner):
    call, _ = counted(runner, "mkldnn._linear_pointwise.default")
    args = linear(True)
    gc.collect()
    before = sum(type(o) is torch.Tensor for o in gc.get_objects())
    for _ in range(50):
        call(*args)
    assert sum(type(o) is torch.Tensor for o in gc.get_objects()) == before


def test_unknown_operators_stay_as_they_are(runner):
    function = host.extern("aten.relu.default")
    assert runner.operator("aten.relu.default", function) is function
    if runner.name == "native":
        with pytest.raises(ValueError, match="cannot be called directly"):
            runner.module.Operator(
                "aten.relu.default", 1, function, function, torch.Tensor, torch.Tensor, (), (), 8, 0
            )
