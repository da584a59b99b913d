"""Dense products and convolutions as loops, against eager, with gradients."""

import pytest
import torch
from attrs import evolve
from torch.nn import functional as F

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.loop.nodes import Extern, Reduction
from gyrator_lowering.generated_products import generated_products
from gyrator_lowering.torch_bridge.kernel_ops import in_panels
from gyrator_lowering.torch_bridge.random_ops import register_ops

MATRICES = {
    "mm": (lambda x, y: x @ y, (5, 7), (7, 3)),
    "row": (lambda x, y: x @ y, (1, 100), (100, 100)),
    "one": (lambda x, y: x @ y, (1, 1), (1, 1)),
    "turned": (lambda x, y: x.t() @ y.t(), (7, 5), (3, 7)),
    "strided": (lambda x, y: x[::2, 1:] @ y[:, ::3], (10, 8), (7, 9)),
    "bmm": (lambda x, y: x @ y, (2, 5, 7), (2, 7, 3)),
    "broadcast": (lambda x, y: torch.matmul(x, y), (2, 1, 5, 7), (3, 7, 3)),
    "mv": (lambda x, y: x @ y, (5, 7), (7,)),
    "dot": (lambda x, y: torch.dot(x, y), (7,), (7,)),
    "linear": (lambda x, y: F.linear(x, y), (2, 5, 7), (3, 7)),
    "addmm": (lambda x, y: torch.addmm(y[0], x, y, beta=0.5, alpha=2), (5, 7), (7, 7)),
    "baddbmm": (
        lambda x, y: torch.baddbmm(x[:, :, :3], x, y, beta=2, alpha=3),
        (2, 5, 7),
        (2, 7, 3),
    ),
    "addbmm": (lambda x, y: torch.addbmm(x[0, :, :3], x, y, alpha=2), (2, 5, 7), (2, 7, 3)),
    "addmv": (lambda x, y: torch.addmv(x[:, 0], x, y, beta=3), (5, 7), (7,)),
    "activated": (lambda x, y: torch._addmm_activation(y[0], x, y), (5, 7), (7, 7)),
    "nothing_folded": (lambda x, y: torch.addmm(y.sum(0), x, y), (5, 0), (0, 3)),
    "no_rows": (lambda x, y: x @ y, (0, 7), (7, 3)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices(check_loops, name: str) -> None:
    fn, left, right = MATRICES[name]
    if name == "activated":
        check_loops(fn, torch.randn(left), torch.randn(right))
    else:
        check_loops.gradients(fn, torch.randn(left), torch.randn(right))


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int8],
)
def test_types(check_loops, dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        x, y, z = (torch.randn(s).to(dtype) for s in ((6, 8), (8, 4), (4,)))
    else:
        x, y, z = (torch.randint(-9, 9, s).to(dtype) for s in ((6, 8), (8, 4), (4,)))
    check_loops(lambda x, y, z: (x @ y, torch.addmm(z, x, y, beta=3, alpha=2)), x, y, z)


def test_bytes_are_summed_in_32_bits(check_loops) -> None:
    x, y = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((17, 16), (16, 8)))
    check_loops(torch._int_mm, x, y)
    check_loops(lambda x, y: x @ y, x, y)


def test_a_tensor_times_zero_is_not_read(check_loops) -> None:
    nan = torch.full((5, 3), float("nan"))
    x, y = torch.randn(5, 7), torch.randn(7, 3)
    check_loops(lambda z, x, y: torch.addmm(z, x, y, beta=0), nan, x, y)


def test_sums_of_narrow_floats_are_rounded_once(check_loops) -> None:
    x, y, z = torch.randn(3, 500), torch.randn(500, 2), torch.randn(2)
    narrow = [t.to(torch.bfloat16) for t in (x, y, z)]
    exact = torch.addmm(*(t.double() for t in (narrow[2], narrow[0], narrow[1])))
    half_a_step = exact.abs().max().item() * 2**-8
    check_loops(lambda x, y, z: torch.addmm(z, x, y), *narrow, rtol=0, atol=2 * half_a_step)


def test_any_size(check_loops) -> None:
    check_loops(
        lambda x, y, z: torch.addmm(z, x, y),
        torch.randn(5, 7), torch.randn(7, 3), torch.randn(3),
        other=(torch.randn(1, 4), torch.randn(4, 9), torch.randn(9)),
    )  # fmt: skip


CONVOLUTIONS = {
    "plain": (F.conv2d, (2, 3, 6, 7), (4, 3, 3, 2), {}),
    "padded": (F.conv2d, (2, 3, 6, 7), (4, 3, 3, 3), {"padding": 1}),
    "strided": (F.conv2d, (2, 3, 7, 6), (4, 3, 3, 3), {"padding": (1, 2), "stride": (2, 3)}),
    "dilated": (F.conv2d, (1, 2, 9, 8), (3, 2, 3, 2), {"dilation": (2, 3), "padding": 2}),
    "groups": (F.conv2d, (2, 6, 5, 5), (4, 3, 3, 3), {"groups": 2, "padding": 1, "stride": 2}),
    "depthwise": (F.conv2d, (2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "two a channel": (F.conv2d, (2, 3, 4, 5), (6, 1, 2, 3), {"groups": 3}),
    "turned depthwise": (
        F.conv_transpose2d, (2, 4, 4, 3), (4, 1, 3, 2), {"stride": 2, "groups": 4, "padding": 1},
    ),
    "points": (F.conv2d, (2, 3, 4, 5), (4, 3, 1, 1), {}),
    "unbatched": (F.conv2d, (3, 6, 7), (4, 3, 3, 3), {}),
    "line": (F.conv1d, (2, 3, 9), (4, 3, 3), {"stride": 2, "padding": 1}),
    "volume": (F.conv3d, (1, 2, 4, 4, 4), (2, 2, 2, 2, 2), {"padding": 1}),
    "turned": (F.conv_transpose2d, (2, 4, 4, 3), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    "turned_groups": (
        F.conv_transpose2d, (2, 4, 4, 3), (4, 3, 3, 2),
        {"stride": (1, 3), "groups": 2, "output_padding": (0, 1), "dilation": (2, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(check_loops, name: str) -> None:
    fn, plane, filters, how = CONVOLUTIONS[name]
    turned = fn is F.conv_transpose2d
    channels = filters[1] * how.get("groups", 1) if turned else filters[0]
    x, weight, bias = torch.randn(plane), torch.randn(filters), torch.randn(channels)
    check_loops.gradients(lambda x, w, b: fn(x, w, b, **how), x, weight, bias)


def test_channels_last(check_loops) -> None:
    x = torch.randn(2, 3, 6, 7).to(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 3, 3)
    check_loops(lambda x, w: F.conv2d(x, w, None, 2, 1), x, weight)


def test_convolutions_of_any_size(check_loops) -> None:
    check_loops(
        lambda x, w: F.conv2d(x, w, None, 2, 1),
        torch.randn(2, 3, 6, 7), torch.randn(4, 3, 3, 3),
        other=(torch.randn(1, 3, 9, 5), torch.randn(4, 3, 3, 3)),
    )  # fmt: skip


def test_time_first(check_loops) -> None:
    x, w, b = torch.randn(7, 2, 3), torch.randn(3, 3, 4), torch.randn(4)
    check_loops(lambda x, w, b: torch.conv_tbc(x, w, b, 1), x, w, b)


def narrow(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return numbers of a narrow dtype."""
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_with_scaled_bytes(check_loops, dtype: torch.dtype) -> None:
    weight = torch.randint(-128, 128, (24, 32), dtype=torch.int8)
    scales = (torch.rand(24) / 64).to(dtype)
    tolerance = {} if dtype is torch.float32 else {"rtol": 2**-6, "atol": 2**-5}
    for rows in (5, 1):
        x = narrow(rows, 32, dtype=dtype)
        check_loops(torch._weight_int8pack_mm, x, weight, scales, **tolerance)


GROUPED = {
    "rows": ((16, 32), (4, 32, 24)),
    "columns": ((4, 8, 32), (32, 16)),
    "sums": ((8, 16), (16, 24)),
}


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("ends", [(3, 8, 8, 16), (0, 0, 16, 16), (16,) * 4])
def test_grouped_products(check_loops, name: str, ends) -> None:
    """Some groups are empty."""
    x, y = (narrow(*shape) for shape in GROUPED[name])
    inputs = x, y, torch.tensor(ends, dtype=torch.int32)
    check_loops(torch._grouped_mm, *inputs, rtol=2**-6, atol=2**-5)


def test_products_of_two_stacks(check_loops) -> None:
    stacks = narrow(4, 8, 16), narrow(4, 16, 24)
    check_loops(torch._grouped_mm, *stacks, rtol=2**-6, atol=2**-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_any_length(check_loops, causal: bool) -> None:
    """Including symbolic head sizes, on which the default scale depends."""

    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def shaped(*sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(s) for s in sizes)

    check_loops(
        fn,
        *shaped((2, 3, 5, 16), (2, 3, 9, 16), (2, 3, 9, 7)),
        other=shaped((3, 2, 6, 8), (3, 2, 4, 8), (3, 2, 4, 10)),
    )


def test_only_nodes_that_are_named_become_loops(check) -> None:
    x = torch.randn(4, 4)
    graph = check.trace(lambda x: x @ x @ x, (x,))
    second = [n.name for n in graph.graph.nodes if n.op == "call_function"][1]
    options = type(check.options)(generated=frozenset({second}))
    program = check.lower(lambda x: x @ x @ x, (x,), options=options)
    assert [type(op) for op in program.operations] == [Extern, Reduction]
    assert program.operations[1].reduce.kind is ReduceKind.DOT


ONEDNN, CALL = torch.ops.mkldnn._linear_pointwise, ("mkldnn._linear_pointwise.default",)


@pytest.mark.parametrize("attr", ["none", "relu"])
def test_kernels_compute_calls_of_onednn_that_fuse_nothing(check_loops, attr: str) -> None:
    inputs = torch.randn(7, 20), torch.randn(9, 20), torch.randn(9)
    program = check_loops(lambda x, w, b: ONEDNN(x, w, b, attr, [], ""), *inputs, externs=CALL)
    kinds = {type(op) for op in program.operations}
    assert (Extern in kinds) == (attr == "relu")


THIN = {
    "row": (lambda x, w: x @ w.t(), (1, 64), (96, 64), True),
    "biased": (lambda x, w: F.linear(x, w, w[:, 0]), (1, 1, 64), (96, 64), True),
    "vector": (lambda x, y: x @ y, (96, 64), (64,), True),
    "added": (lambda x, y: torch.addmv(x[:, 0], x, y), (96, 64), (64,), True),
    "column": (lambda x, y: x @ y, (96, 64), (64, 1), True),
    "two rows": (lambda x, w: x @ w.t(), (2, 64), (96, 64), False),
    "lying": (lambda x, w: x @ w, (1, 64), (64, 96), False),
    "lying column": (lambda x, y: x.t() @ y, (64, 96), (64, 1), False),
}


@pytest.mark.parametrize("name", THIN)
def test_contiguous_matrix_vector_products_are_left_to_kernels(check, name: str) -> None:
    run, left, right, expected = THIN[name]
    (target,) = check.targets.values()
    able = evolve(target, heuristics=evolve(target.heuristics, thin_products=True))
    gm = check.trace(run, (torch.randn(left), torch.randn(right)))
    assert bool(generated_products(gm, {target.device: able})) is expected
    assert not generated_products(gm, check.targets)


def test_products_of_symbolic_sizes_stay_library_calls(check) -> None:
    (target,) = check.targets.values()
    able = {target.device: evolve(target, heuristics=evolve(target.heuristics, thin_products=True))}
    gm = check.trace(lambda x, w: x @ w.t(), (torch.randn(3, 64), torch.randn(5, 64)), dynamic=True)
    assert not generated_products(gm, able)


WINDOWS = {
    "planes": ({}, torch.float32, True),
    "other strides": ({"stride": 2, "dilation": 2}, torch.bfloat16, True),
    "channels last": ({"last": True}, torch.float32, False),
    "two filters a channel": ({"filters": 12}, torch.float32, False),
    "groups": ({"groups": 3}, torch.float32, False),
    "one element": ({"window": 1}, torch.float32, False),
    "large window": ({"window": 9, "padding": 4}, torch.float32, False),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_depthwise_convolutions_of_planes_are_left_to_kernels(check, name: str) -> None:
    options, dtype, expected = WINDOWS[name]
    options = {"groups": 6, "padding": 1, **options}
    filters, window = options.pop("filters", 6), options.pop("window", 3)
    (target,) = check.targets.values()
    able = evolve(target, heuristics=evolve(target.heuristics, plane_convolutions=True))
    layout = torch.channels_last if options.pop("last", False) else torch.contiguous_format
    x = torch.randn(4, 6, 16, 20).to(dtype).to(memory_format=layout)
    w = torch.randn(filters, 6 // options["groups"], window, window, dtype=dtype)

    def f(x, w):
        y = F.conv2d(x, w, **options)
        return y, *torch.ops.aten.convolution_backward(
            y, x, w, None, *(_pair(options.get(o, d)) for o, d in _WINDOW_OPTIONS), False, [0, 0],
            options["groups"], [True, True, False],
        )[:2]  # fmt: skip

    gm = check.trace(f, (x, w))
    assert len(generated_products(gm, {target.device: able})) == 2 * expected
    assert not generated_products(gm, check.targets)
    changing = check.trace(f, (x, w), dynamic=True)
    assert not generated_products(changing, {target.device: able})


DEPTHWISE = {
    "float32": ({}, torch.float32, True),
    "windows apart": ({"stride": 2}, torch.bfloat16, True),
    "windows apart along one axis": ({"stride": (1, 2)}, torch.bfloat16, False),
    "few elements": ({"batch": 2}, torch.float16, True),
    "many elements": ({}, torch.float16, False),
    "planes": ({"last": False}, torch.float32, False),
    "two filters a channel": ({"filters": 12}, torch.float32, False),
    "large window": ({"window": 9, "padding": 4}, torch.float32, False),
}


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_convolutions_of_channels_last_images_are_left_to_kernels(
    check, name: str
) -> None:
    options, dtype, expected = DEPTHWISE[name]
    options = {"groups": 6, "padding": 1, **options}
    filters, window = options.pop("filters", 6), options.pop("window", 3)
    layout = torch.channels_last if options.pop("last", True) else torch.contiguous_format
    x = torch.randn(options.pop("batch", 4), 6, 10, 10).to(dtype).to(memory_format=layout)
    w = torch.randn(filters, 1, window, window, dtype=dtype)
    (target,) = check.targets.values()
    able = evolve(target, heuristics=evolve(target.heuristics, depthwise_elements=1200))
    gm = check.trace(lambda x, w: F.conv2d(x, w, **options), (x, w))
    assert bool(generated_products(gm, {target.device: able})) is expected
    assert not generated_products(gm, check.targets)


GRADIENTS = {
    "large window": ({}, True),
    "planes": ({"last": False}, True),
    "bfloat16": ({"dtype": torch.bfloat16}, True),
    "along a line": ({"axes": 1, "window": 11}, True),
    "steps": ({"stride": 2, "dilation": 2}, True),
    "the image's too": ({"mask": [True, True, False]}, False),
    "not the weight's": ({"mask": [True, False, False]}, False),
    "3 by 3": ({"window": 3}, False),
    "few channels": ({"channels": 15}, False),
    "two filters a channel": ({"filters": 32}, False),
    "transposed": ({"transposed": True}, False),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_depthwise_weights_are_left_to_kernels(check, name: str) -> None:
    options, expected = GRADIENTS[name]
    axes, channels = options.get("axes", 2), options.get("channels", 16)
    shape = (2, channels, *(17, 19)[:axes])
    x = torch.randn(shape, dtype=options.get("dtype", torch.float32))
    if options.get("last", True):
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    window = [options.get("window", 5)] * axes
    w = torch.randn(options.get("filters", channels), 1, *window, dtype=x.dtype)
    settings = [[options.get(o, d)] * axes for o, d in _WINDOW_OPTIONS]
    more = options.get("transposed", False), [0] * axes, channels
    mask = options.get("mask", [False, True, True])

    def f(g, x, w):
        return torch.ops.aten.convolution_backward(g, x, w, [len(w)], *settings, *more, mask)

    inputs = (torch.randn_like(torch.convolution(x, w, None, *settings, *more)), x, w)
    (target,) = check.targets.values()
    able = evolve(target, heuristics=evolve(target.heuristics, depthwise_gradients=True))
    assert bool(generated_products(check.trace(f, inputs), {target.device: able})) is expected
    assert not generated_products(check.trace(f, inputs), check.targets)


PIXELS = {
    "few outputs": ({}, torch.float32, True),
    "as many as are few": ({"outputs": 4}, torch.bfloat16, True),
    "along a line": ({"axes": 1}, torch.float64, True),
    "planes": ({"last": False}, torch.float32, False),
    "more outputs": ({"outputs": 5}, torch.float32, False),
    "more outputs of a pixel": ({"outputs": 5, "pixels": 1}, torch.float32, True),
    "a window": ({"window": 2}, torch.float32, False),
    "steps": ({"stride": 2}, torch.float32, False),
    "a border": ({"padding": 1}, torch.float32, False),
    "groups": ({"groups": 2}, torch.float32, False),
    "transposed": ({"transposed": True}, torch.float32, False),
}


@pytest.mark.parametrize("name", PIXELS)
def test_convolutions_of_pixels_with_few_outputs_are_left_to_kernels(check, name: str) -> None:
    options, dtype, expected = PIXELS[name]
    n, axes = options.get("outputs", 2), options.get("axes", 2)
    groups, turned = options.get("groups", 1), options.get("transposed", False)
    batch, *sizes = (options.get("pixels", n) for n in (3, 9, 11)[: axes + 1])
    x = torch.randn(batch, *sizes, 8, dtype=dtype).movedim(-1, 1)
    if not options.get("last", True):
        x = x.contiguous()
    window = [options.get("window", 1)] * axes
    w = torch.randn(*((8, n) if turned else (n, 8 // groups)), *window, dtype=dtype)
    settings = [[options.get(o, d)] * axes for o, d in _WINDOW_OPTIONS]

    def f(x, w):
        return torch.ops.aten.convolution(x, w, None, *settings, turned, [0] * axes, groups)

    (target,) = check.targets.values()
    able = evolve(target, heuristics=evolve(target.heuristics, register_tiles=True))
    gm = check.trace(f, (x, w))
    assert bool(generated_products(gm, {target.device: able})) is expected
    assert not generated_products(gm, check.targets)


_WINDOW_OPTIONS = (("stride", 1), ("padding", 0), ("dilation", 1))


def _pair(n: int) -> list[int]:
    return [n, n]


SMALL = {
    "square": (torch.bmm, (5, 16, 16), (5, 16, 16), torch.float32, True),
    "double": (torch.bmm, (5, 9, 32), (5, 32, 9), torch.float64, True),
    "half": (torch.bmm, (5, 9, 32), (5, 32, 9), torch.float16, True),
    "no depth": (torch.bmm, (5, 9, 0), (5, 0, 9), torch.float32, True),
    "sum": (lambda x, y: torch.baddbmm(x, x, y), (5, 9, 9), (5, 9, 9), torch.float32, True),
    "larger": (torch.bmm, (5, 17, 16), (5, 16, 16), torch.float32, False),
    "one matrix": (torch.mm, (9, 32), (32, 9), torch.float32, False),
    "integers": (torch.bmm, (5, 9, 32), (5, 32, 9), torch.int32, False),
}


@pytest.mark.parametrize("name", SMALL)
def test_batches_of_small_products_are_left_to_kernels(check, name: str) -> None:
    run, left, right, dtype, expected = SMALL[name]
    (target,) = check.targets.values()
    able = evolve(target, heuristics=evolve(target.heuristics, register_tiles=True))
    gm = check.trace(run, (torch.ones(left, dtype=dtype), torch.ones(right, dtype=dtype)))
    assert bool(generated_products(gm, {target.device: able})) is expected
    assert not generated_products(gm, check.targets)


def test_only_the_number_of_small_products_may_change(check) -> None:
    (target,) = check.targets.values()
    heuristics = evolve(target.heuristics, register_tiles=True)
    able = {target.device: evolve(target, heuristics=heuristics)}
    x = torch.randn(5, 9, 32)

    def batch(x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.view(-1, 9, 32), x.view(-1, 32, 9))

    assert generated_products(check.trace(batch, (x,), dynamic=True), able)
    changing = check.trace(torch.bmm, (x, torch.randn(5, 32, 8)), dynamic=True)
    assert not generated_products(changing, able)


WHOLE = {
    "int64": (lambda x, y: x @ y, torch.int64, (3, 5), (5, 2), True),
    "int64 in batches": (lambda x, y: x @ y, torch.int64, (2, 3, 5), (2, 5, 2), True),
    "int64 vector": (lambda x, y: x @ y, torch.int64, (9, 64), (64,), True),
    "int64, short rows": (lambda x, y: x @ y.t(), torch.int64, (9, 4), (9, 4), False),
    "int64, long rows": (lambda x, y: x @ y.t(), torch.int64, (9, 8), (9, 8), True),
    "int32": (lambda x, y: torch.addmm(y[0], x, y), torch.int32, (4, 8), (8, 8), True),
    "int32, shallow": (lambda x, y: x @ y, torch.int32, (40, 7), (7, 80), False),
    "int32, few rows": (lambda x, y: x @ y, torch.int32, (3, 80), (80, 80), False),
    "int32, few columns": (lambda x, y: x @ y, torch.int32, (80, 80), (80, 7), False),
    "int32 vector": (lambda x, y: x @ y, torch.int32, (9, 64), (64,), False),
    "int8": (lambda x, y: x @ y, torch.int8, (64, 64), (64, 64), False),
    "int8 into int32": (torch._int_mm, torch.int8, (17, 16), (16, 8), True),
    "float32": (lambda x, y: x @ y, torch.float32, (64, 64), (64, 64), False),
}


@pytest.mark.parametrize("name", WHOLE)
def test_products_of_integers_are_left_to_kernels(check, name: str) -> None:
    run, dtype, left, right, expected = WHOLE[name]
    (target,) = check.targets.values()
    able = evolve(target, heuristics=evolve(target.heuristics, integer_products=True))
    gm = check.trace(run, (torch.ones(left, dtype=dtype), torch.ones(right, dtype=dtype)))
    assert bool(generated_products(gm, {target.device: able})) is expected
    assert not generated_products(gm, check.targets)


def test_products_of_bytes_are_left_to_a_library_with_instructions_for_them(check) -> None:
    (target,) = check.targets.values()
    libraries = evolve(target.capabilities, libraries=frozenset({"onednn-int8"}))
    able = evolve(
        target, capabilities=libraries, heuristics=evolve(target.heuristics, integer_products=True)
    )
    x, y = (torch.ones(s, dtype=torch.int8) for s in ((17, 16), (16, 8)))
    assert not generated_products(check.trace(torch._int_mm, (x, y)), {target.device: able})


def test_products_with_panels_are_registered_with_the_other_ops() -> None:
    register_ops()
    x, weight = torch.randn(5, 7, dtype=torch.float64), torch.randn(12, 7, dtype=torch.float64)
    product = torch.ops.gyrator.panel_mm(x, in_panels(weight, 4))
    torch.testing.assert_close(product, x @ weight.T)


def test_convolutions_with_panels_are_registered_with_the_other_ops() -> None:
    register_ops()
    x, weight, bias = torch.randn(2, 3, 8, 9), torch.randn(32, 3, 3, 4), torch.randn(32)
    addend = torch.randn(2, 32, 4, 8)
    panels = weight.view(2, 16, 3, 3, 4).permute(0, 3, 4, 2, 1).contiguous()
    images, op = [*x.split([1, 2], 1)], torch.ops.gyrator.panel_conv
    steps, last = [2, 1], {"memory_format": torch.channels_last}
    result = op(images, panels, bias, 32, addend, steps, [1, 1, 1, 1], "hardtanh", [0.0, 2.0])
    plain = F.conv2d(x, weight, bias, steps, [1, 1])
    torch.testing.assert_close(result, F.hardtanh(plain + addend, 0, 2))
    assert result.is_contiguous(**last)
    result = op(images, panels, bias, 27, None, steps, [0, 1, 2, 3], "none", [])
    expected = F.conv2d(F.pad(x, [1, 3, 0, 2]), weight[:27], bias[:27], steps)
    torch.testing.assert_close(result, expected.contiguous(**last))


@pytest.mark.parametrize("biased", [True, False])
def test_depthwise_convolutions_of_packed_weights(check, biased: bool) -> None:
    """Windows that overlap zeros around the image on all sides, of which some have no width."""
    register_ops()
    x = torch.randn(2, 5, 9, 8).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(5, 1, 3, 2), torch.randn(5) if biased else None
    filters = weight[:, 0].permute(1, 2, 0).contiguous()
    for stride, pads, dilation in (
        ([1, 1], [1, 1, 1, 1], [1, 1]),
        ([2, 3], [0, 2, 1, 0], [2, 3]),
        ([1, 2], [4, 0, 0, 3], [1, 1]),
    ):
        arguments = stride, pads, dilation

        def fn(x, filters, *bias, arguments=arguments):
            return torch.ops.gyrator.depthwise_conv(
                x, filters, *(bias or [None]), *arguments, "hardtanh", [-0.5, 1.5]
            )

        inputs = (x, filters, *([] if bias is None else [bias]))
        top, left, bottom, right = pads
        padded = F.pad(x, [left, right, top, bottom])
        expected = F.conv2d(padded, weight, bias, stride, 0, dilation, 5).clamp(-0.5, 1.5)
        torch.testing.assert_close(fn(*inputs), expected, check_stride=False)
        assert fn(*inputs).is_contiguous(memory_format=torch.channels_last)
        check(fn, *inputs)
