"""Passes that prepare library calls: what they change, and that results are the same."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from attrs import evolve
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.types import DType
from gyrator_lowering.fx_passes import (
    ChannelsLast,
    ImageConvolution,
    LinearCalls,
    MultiplyPixels,
    PadProducts,
    Product,
    SplitBias,
    SplitProductBias,
    fx_pipeline,
)

aten = torch.ops.aten
BF16 = torch.bfloat16


def targets(**numbers: Any) -> dict[str, Target]:
    return {
        "cpu": Target(
            device="cpu",
            arch="plain",
            kernel_backend="interpreter",
            capabilities=Capabilities(dtypes=frozenset()),
            heuristics=Heuristics(**numbers),
        )
    }


WANTED, OTHERS = targets(product_bytes=16, unfused_bias=True), targets()


def drawn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


def sparse(*shape: int) -> torch.Tensor:
    """Mostly zeros, whose chains of convolutions are integers that float16 represents exactly."""
    return (torch.randint(-1, 2, shape) * (torch.rand(shape) < 0.2)).half()


def compare(check: Any, run: Callable[..., Any], *inputs: torch.Tensor, change: Any) -> Any:
    """Run the passes over the graph of `run`, and check that results are the same, with the same
    layouts."""
    want = run(*inputs)
    gm = check.trace(run, inputs)
    assert change(gm)
    gm.graph.lint()
    gm.recompile()
    got = gm(*inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert a.stride() == b.stride()
    return gm


def padded(gm: Any) -> bool:
    return PadProducts.of(WANTED, least=1).run(gm)


def operands(gm: Any) -> list[tuple[Any, Any]]:
    """The sizes and strides of the operands of products."""
    operand_layouts = []
    for node in gm.graph.nodes:
        if node.target in (aten.mm.default, aten.addmm.default):
            operand_layouts += [
                (a.meta["val"].shape, a.meta["val"].stride()) for a in node.args[-2:]
            ]
    return operand_layouts


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "head": (lambda x, w: (x @ w.t(),), (drawn(64, 72), drawn(97, 72))),
    "depth": (lambda x, w: (x @ w,), (drawn(64, 67), drawn(67, 72))),
    "lying": (lambda g, x: (g.t() @ x,), (drawn(80, 67), drawn(80, 72))),
    "both": (lambda g, w, x: (g @ w, g.t() @ x), (drawn(64, 97), drawn(97, 72), drawn(64, 72))),
    "biased": (
        lambda b, x, w: (torch.addmm(b, x, w.t()),),
        (drawn(97), drawn(64, 67), drawn(97, 67)),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_odd_matrices_are_padded(check: Any, name: str) -> None:
    run, inputs = PRODUCTS[name]
    gm = compare(check, run, *inputs, change=padded)
    for shape, strides in operands(gm):
        assert max(strides) % 8 == 0
        assert all(n % 8 == 0 for n in shape)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (drawn(64, 72), drawn(72, 96)),  # whole vectors already
        (drawn(3, 72), drawn(72, 97)),  # too short
        (drawn(64, 72, dtype=torch.float32), drawn(72, 97, dtype=torch.float32)),
        (drawn(64, 72), drawn(72, 97)),  # small, as the pass is used
    ],
)
def test_other_products_stay(check: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    gm = check.trace(lambda a, b: a @ b, (x, y))
    least = 1 if x.shape[0] == 3 or x.dtype is not BF16 or y.shape[1] == 96 else 1 << 30
    assert not PadProducts.of(WANTED, least=least).run(gm)
    assert not PadProducts.of(OTHERS, least=1).run(gm)


@pytest.mark.parametrize(
    ("x", "y", "left"),
    [
        (drawn(64, 72), drawn(97, 72).t(), True),
        (drawn(64, 72), drawn(72, 97), False),  # the factor's rows are not whole vectors
        (drawn(64, 67), drawn(97, 67).t(), False),  # nor are those of both
        (drawn(67, 72).t(), drawn(97, 67).t(), False),
        (drawn(4096, 8192), drawn(97, 8192).t(), False),  # long: copies matter less
    ],
)
def test_short_products_with_odd_results_are_left_to_kernels(
    check: Any, x: torch.Tensor, y: torch.Tensor, left: bool
) -> None:
    able = targets(product_bytes=16)
    capabilities = evolve(able["cpu"].capabilities, matrix_units=frozenset({DType.BF16}))
    able = {"cpu": evolve(able["cpu"], capabilities=capabilities)}
    gm = check.trace(lambda a, b: a @ b, (x, y))
    assert bool(PadProducts.of(able, least=1).left_to_kernels(gm)) is left
    assert not PadProducts.of(WANTED, least=1).left_to_kernels(gm)
    assert PadProducts.of(able, least=1).run(gm) is not left


def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),)


def gradients(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sizes, mask = [w.shape[0]], [True, True, True]
    return tuple(
        aten.convolution_backward(g, x, w, sizes, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_biases_are_split_from_convolutions(check: Any, channels_last: bool) -> None:
    x, w = drawn(2, 3, 5, 6, dtype=torch.float32), drawn(4, 3, 3, 3, dtype=torch.float32)
    g, b = drawn(2, 4, 5, 6, dtype=torch.float32), drawn(4, dtype=torch.float32)
    if channels_last:
        x, g = (t.contiguous(memory_format=torch.channels_last) for t in (x, g))

    forward = compare(check, convolved, x, w, b, change=SplitBias.of(WANTED).run)
    backward = compare(check, gradients, g, x, w, change=SplitBias.of(WANTED).run)

    (node,) = [n for n in forward.graph.nodes if n.target is aten.convolution.default]
    assert node.args[2] is None
    (node,) = [n for n in backward.graph.nodes if n.target is aten.convolution_backward.default]
    assert node.args[10] == [True, True, False]
    assert not SplitBias.of(OTHERS).run(forward)


def test_they_run_before_the_others() -> None:
    assert fx_pipeline(WANTED).passes[2:4] == (SplitBias.of(WANTED), PadProducts.of(WANTED))


ONES = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
"""Stride, padding and dilation of a convolution; one group."""


def network(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two convolutions, the ops between them, a view, and gradients."""
    y = torch.convolution(x, w, None, *ONES)
    middle = y.relu() * 2
    z = torch.convolution(middle, v, None, *ONES)
    flat = (z + z).contiguous().view(z.shape[0], -1)
    mask = [True, True, False]
    back, v_grad, _ = aten.convolution_backward(z * 2, middle, v, None, *ONES, mask)
    back = back * 2 * (y > 0)
    x_grad, w_grad, _ = aten.convolution_backward(back, x, w, None, *ONES, mask)
    return flat, z, x_grad, w_grad, v_grad


def test_convolutions_keep_channels_together(check: Any) -> None:
    gpu_targets = targets(channels_last=True)
    inputs = sparse(2, 3, 6, 5), sparse(4, 3, 3, 3), sparse(4, 4, 3, 3)
    gm = compare(check, network, *inputs, change=ChannelsLast.of(gpu_targets).run)
    last = torch.channels_last
    read = {aten.convolution.default: 2, aten.convolution_backward.default: 3}
    operands = [a for n in gm.graph.nodes for a in n.args[: read.get(n.target, 0)]]
    assert len(operands) == 10
    assert all(a.meta["val"].is_contiguous(memory_format=last) for a in operands)
    copies = [n for n in gm.graph.nodes if n.target is aten.clone.default]
    # The three operands that come from outside; no copy between the convolutions.
    assert sum(n.args[0].op == "placeholder" for n in copies) == 3
    assert not any(n.args[0].target is aten.mul.Tensor for n in copies)


def test_pixels_read_and_written_at_indices_keep_channels_together(check: Any) -> None:
    def resized(x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> Any:
        y = torch.convolution(x, w, None, *ONES)
        read = aten._unsafe_index(y, [None, None, rows, columns]) * 2
        z = torch.convolution(read, w, None, *ONES)
        zeros = x.new_zeros(y.shape)
        written = aten._unsafe_index_put(zeros, [None, None, rows, columns], z, True) + y
        return written, torch.convolution(written, w, None, *ONES), y[:, :, rows[:, 0]]

    inputs = sparse(2, 4, 6, 5), sparse(4, 4, 3, 3)
    indices = torch.randint(0, 6, (9, 1)), torch.randint(0, 5, (7,))
    gm = compare(
        check, resized, *inputs, *indices, change=ChannelsLast.of(targets(channels_last=True)).run
    )
    last = torch.channels_last
    at = [n for n in gm.graph.nodes if "unsafe_index" in str(n.target)]
    assert len(at) == 2
    assert all(n.meta["val"].is_contiguous(memory_format=last) for n in at)
    assert at[1].args[0].meta["val"].is_contiguous(memory_format=last)
    copies = [n.args[0] for n in gm.graph.nodes if n.target is aten.clone.default]
    # What comes from outside, the zeros, and results.
    assert not {str(n.target) for n in copies} & {"aten.mul.Tensor", "aten._unsafe_index.Tensor"}


def test_other_layouts_are_unchanged(check: Any) -> None:
    inputs = drawn(2, 3, 6, 5), drawn(4, 3, 3, 3)

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    assert not ChannelsLast.of(OTHERS).run(check.trace(run, inputs))
    channels_last = ChannelsLast.of(targets(channels_last=True))
    wide = tuple(t.float() for t in inputs)
    assert not channels_last.run(check.trace(run, wide))
    converted = tuple(t.contiguous(memory_format=torch.channels_last) for t in inputs)
    assert not channels_last.run(check.trace(run, converted))


def libraries(*names: str) -> dict[str, Target]:
    target = targets()["cpu"]
    able = evolve(target.capabilities, libraries=frozenset(names))
    return {"cpu": evolve(target, capabilities=able)}


BOTH = libraries("mkl", "onednn")


@pytest.mark.parametrize("quicker", [False, True])
def test_cpu_layouts_are_measured(check: Any, quicker: bool) -> None:
    queries: list[ImageConvolution] = []

    class Known:
        def channels_last(
            self, convolutions: Sequence[ImageConvolution], copied: Callable[[], int]
        ) -> bool:
            queries.extend(convolutions)
            image, weights = 2 * 6 * 5, 4 * 3 * 3
            # The input and its gradient, the result, and the gradients of both weights.
            assert copied() == (3 + 3 + 4) * image + (3 + 4) * weights
            return quicker

    change = ChannelsLast.of(BOTH, layouts=Known()).run
    inputs = tuple(drawn(*s).float() for s in ((2, 3, 6, 5), (4, 3, 3, 3), (4, 4, 3, 3)))
    if quicker:
        gm = compare(check, network, *inputs, change=change)
        copies = [n.args[0] for n in gm.graph.nodes if n.target is aten.clone.default]
        shapes = [tuple(n.meta["val"].shape) for n in copies if n.op == "placeholder"]
        assert shapes == [(2, 3, 6, 5)]  # and no weight
    else:
        assert not change(check.trace(network, inputs))
    assert [c.input for c in queries] == [(2, 3, 6, 5), (2, 4, 6, 5), (2, 4, 6, 5), (2, 3, 6, 5)]
    assert [bool(c.gradients) for c in queries] == [False, False, True, True]
    assert not ChannelsLast.of(BOTH).run(check.trace(network, inputs))


def test_layouts_of_gradients_in_kernels_are_not_measured(check: Any) -> None:
    queries: list[ImageConvolution] = []

    class Counting:
        def channels_last(
            self, convolutions: Sequence[ImageConvolution], copied: Callable[[], int]
        ) -> bool:
            queries.extend(convolutions)
            return True

    def gradients(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        calls = ([False, True, False], [True, False, False])
        numbers = ([1, 1], [2, 2], [1, 1], False, [0, 0], 16)
        of_weight, of_image = (
            aten.convolution_backward(g, x, w, None, *numbers, mask) for mask in calls
        )
        return of_image[0], of_weight[1]

    inputs = tuple(drawn(*s).float() for s in ((2, 16, 6, 5), (2, 16, 6, 5), (16, 1, 5, 5)))
    cpu = BOTH["cpu"]
    able = evolve(cpu, heuristics=evolve(cpu.heuristics, depthwise_gradients=True))
    change = ChannelsLast.of({"cpu": able}, layouts=Counting()).run
    gm = compare(check, gradients, *inputs, change=change)
    assert [c.gradients for c in queries] == [(True, False, False)]
    last = torch.channels_last
    images = [n.args[:2] for n in gm.graph.nodes if n.target is aten.convolution_backward.default]
    assert len(images) == 2
    assert all(a.meta["val"].is_contiguous(memory_format=last) for both in images for a in both)


def pixel_gradients(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, step: int = 1, padding: int = 0
) -> tuple[torch.Tensor, ...]:
    numbers = [step, step], [padding, padding], [1, 1], False, [0, 0], 1
    return tuple(aten.convolution_backward(g, x, w, [w.shape[0]], *numbers, [True, True, True]))


def pixels(*shape: int, last: bool) -> torch.Tensor:
    image = drawn(*shape, dtype=torch.float32)
    return image.contiguous(memory_format=torch.channels_last) if last else image


@pytest.mark.parametrize(("batch", "last"), [(2, True), (1, False)])
def test_gradients_of_pixels_are_products(check: Any, batch: int, last: bool) -> None:
    g, x = pixels(batch, 4, 5, 6, last=last), pixels(batch, 3, 5, 6, last=last)
    w = pixels(4, 3, 1, 1, last=last)

    gm = compare(check, pixel_gradients, g, x, w, change=MultiplyPixels.of(BOTH).run)

    targets = [n.target for n in gm.graph.nodes]
    assert targets.count(aten.mm.default) == 2
    assert aten.convolution_backward.default not in targets
    assert aten.clone.default not in targets
    assert not MultiplyPixels.of(OTHERS).run(check.trace(pixel_gradients, (g, x, w)))


@pytest.mark.parametrize("lasts", [(True, False), (False, True), (True, True)])
def test_gradients_of_the_pixels_of_one_image(check: Any, lasts: tuple[bool, bool]) -> None:
    g, x = (pixels(1, n, 5, 6, last=last) for n, last in zip((4, 3), lasts, strict=True))
    w = pixels(4, 3, 1, 1, last=False)
    gm = check.trace(pixel_gradients, (g, x, w))
    assert MultiplyPixels.of(BOTH).run(gm)
    gm.recompile()
    for a, b in zip(gm(g, x, w), pixel_gradients(g, x, w), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_gradients_of_other_windows_are_not_products(check: Any) -> None:
    def changed(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, **numbers: int) -> bool:
        gm = check.trace(partial(pixel_gradients, **numbers), (g, x, w))
        return MultiplyPixels.of(BOTH).run(gm)

    g, x = pixels(2, 4, 5, 6, last=True), pixels(2, 3, 5, 6, last=True)
    w = pixels(4, 3, 1, 1, last=True)
    assert changed(g, x, w)
    # The planes of several images are no matrix.
    assert not changed(g, x.contiguous(), w.contiguous())
    assert not changed(g.double(), x.double(), w.double())
    assert not changed(g, pixels(2, 3, 7, 8, last=True), pixels(4, 3, 3, 3, last=True))
    assert not changed(g, pixels(2, 3, 9, 11, last=True), w, step=2)
    assert not changed(pixels(2, 4, 7, 8, last=True), x, w, padding=1)


def transposed(rows: int, columns: int) -> torch.Tensor:
    return drawn(columns, rows, dtype=torch.float32).t()


def plain(rows: int, columns: int) -> torch.Tensor:
    return drawn(rows, columns, dtype=torch.float32)


@pytest.mark.parametrize(
    ("x", "y", "copied", "lying"),
    [
        (plain(5, 7), plain(7, 6), False, False),
        (plain(5, 7), transposed(7, 6), False, True),
        (transposed(5, 7), plain(7, 6), True, False),
        (plain(5, 9)[:, 1:8], transposed(7, 6), True, True),
        (plain(0, 7), plain(7, 6), False, False),
    ],
)
def test_products_go_to_onednn(check: Any, x: Any, y: Any, copied: bool, lying: bool) -> None:
    queries: list[Product] = []

    def change(gm: Any) -> bool:
        return LinearCalls.of(BOTH, lambda product: not queries.append(product)).run(gm)

    def run(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> Any:
        return x @ y, torch.addmm(bias, x, y)

    gm = compare(check, run, x, y, drawn(6, dtype=torch.float32), change=change)
    assert queries == [Product("cpu", x.shape[0], 7, 6, copied, lying)] * 2
    names = [str(n.target) for n in gm.graph.nodes]
    assert names.count("mkldnn._linear_pointwise.default") == 2 and "aten.mm.default" not in names


@pytest.mark.parametrize(
    ("run", "inputs", "able"),
    [
        (torch.mm, (plain(5, 7), plain(7, 9)[:, 1:7]), BOTH),  # oneDNN is slow where there are gaps
        (torch.mm, (plain(5, 7), plain(7, 1).expand(7, 6)), BOTH),
        (torch.mm, (plain(5, 0), plain(0, 6)), BOTH),
        (torch.mm, (drawn(5, 7), drawn(7, 6)), BOTH),
        (torch.mm, (plain(5, 7).double(), plain(7, 6).double()), BOTH),
        (torch.mm, (plain(5, 7), plain(7, 6)), libraries("onednn")),
        (torch.addmm, (plain(5, 6), plain(5, 7), plain(7, 6)), BOTH),
        (lambda *x: torch.addmm(*x, alpha=2), (plain(1, 6)[0], plain(5, 7), plain(7, 6)), BOTH),
    ],
)
def test_products_that_stay_in_aten(check: Any, run: Any, inputs: Any, able: Any) -> None:
    gm = check.trace(lambda *x: (run(*x),), inputs)
    assert not LinearCalls.of(able, lambda product: True).run(gm)


def test_products_of_symbolic_sizes() -> None:
    queries: list[Product] = []
    for side in (128, 1100):
        x = torch.empty(side, side)
        gm = make_fx(torch.mm, tracing_mode="symbolic")(x, x)
        environment = next(iter(gm.graph.nodes)).meta["val"].shape[0].node.shape_env
        before = len(environment.guards)
        LinearCalls.of(BOTH, lambda product: not queries.append(product)).run(gm)
        assert len(environment.guards) == before
    assert queries == [Product("cpu", 1100, 1100, 1100)]


def with_biases(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Products with biases that kernels read: twice, through views, in sums."""
    first = torch.addmm(bias, x, y)
    second = torch.addmm(bias[0], first.relu(), y.t() @ y)
    linear = torch.ops.mkldnn._linear_pointwise(first.relu(), y.t() @ y, bias, "none", [], "")
    rows = second.view(2, -1, second.shape[1]).permute(2, 0, 1).clone()
    return first + 1, rows, linear.mean(1)


@pytest.mark.parametrize("able", [BOTH, libraries("cublas", "cudnn")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_add_the_biases_of_products(check: Any, dtype: torch.dtype, able: Any) -> None:
    x, y, bias = drawn(6, 7, dtype=dtype), drawn(7, 5, dtype=dtype), drawn(5, dtype=dtype)
    run = with_biases
    if dtype is torch.float64:  # oneDNN has none

        def run(x: Any, y: Any, bias: Any) -> Any:
            return (torch.addmm(bias[:1], x, y).view(-1).exp(),)

    gm = compare(check, run, x, y, bias, change=SplitProductBias.of(able).run)
    named = [n for n in gm.graph.nodes if n.op == "call_function"]
    assert not any(n.target is aten.addmm.default for n in named)
    calls = [n for n in named if n.target is torch.ops.mkldnn._linear_pointwise.default]
    assert all(n.args[2] is None for n in calls) and len(calls) == (dtype is torch.float32)


@pytest.mark.parametrize(
    ("run", "dtype", "able"),
    [
        (lambda b, x, y: torch.addmm(b, x, y), torch.float32, BOTH),  # nothing reads it
        (lambda b, x, y: torch.addmm(b, x, y) @ y.t(), torch.float32, BOTH),  # a library reads it
        (lambda b, x, y: (z := torch.addmm(b, x, y), z + 1), torch.float32, BOTH),
        (lambda b, x, y: torch.addmm(b, x, y, alpha=2) + 1, torch.float32, BOTH),
        (lambda b, x, y: torch.addmm(b, x, y) + 1, torch.bfloat16, BOTH),  # it would round twice
        (lambda b, x, y: torch.addmm(b, x, y) + 1, torch.float32, libraries("mkl")),
        (
            lambda b, x, y: torch.ops.mkldnn._linear_pointwise(x, y.t(), b, "gelu", [], "none") + 1,
            torch.float32,
            BOTH,
        ),  # the library goes on
    ],
)
def test_other_biases_stay(check: Any, run: Any, dtype: torch.dtype, able: Any) -> None:
    inputs = drawn(5, dtype=dtype), drawn(6, 7, dtype=dtype), drawn(7, 5, dtype=dtype)
    gm = check.trace(run, inputs)
    assert not SplitProductBias.of(able).run(gm)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
def test_biases_are_split_from_packed_mkl_products(check: Any) -> None:
    x, w, bias = plain(6, 7), plain(5, 7), drawn(5, dtype=torch.float32)

    def run(x: Any, w: Any, bias: Any) -> Any:
        return torch.nn.functional.linear(x, w, bias).relu(), w

    gm = check.trace(run, (x, w, bias))
    (node,) = [n for n in gm.graph.nodes if n.target is aten.addmm.default]
    weight = node.args[2].args[0]
    with gm.graph.inserting_before(node):
        packs = torch.ops.mkl._mkl_reorder_linear_weight.default
        reorder = gm.graph.call_function(packs, (weight, 6))
        args = node.args[1], reorder, weight, node.args[0], 6
        call = gm.graph.call_function(torch.ops.mkl._mkl_linear.default, args)
    call.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(call)
    gm.graph.erase_node(node)
    assert SplitProductBias.of(BOTH).run(gm)
    gm.recompile()
    assert call not in gm.graph.nodes
    (left,) = [n for n in gm.graph.nodes if n.target is torch.ops.mkl._mkl_linear.default]
    assert left.args[3] is None
    assert torch.equal(gm(x, w, bias)[0], run(x, w, bias)[0])
