"""Passes that let a partitioner recompute values instead of saving them: same results, less
saved."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from joint_graphs import BF16, F32, F64, Joint, classes, compared, drawn, prepare
from torch._functorch import partitioners
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule

from gyrator_ir.loop.nodes import Extern
from gyrator_ir.passes import PassEdits
from gyrator_lowering import LoweringOptions, lower
from gyrator_lowering.fx_passes import NarrowPoolIndices, SplitCrossEntropy, SplitThresholds

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def running(channels: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return torch.randn(channels, dtype=dtype), torch.rand(channels, dtype=dtype) + 0.5


def norms(dtype: torch.dtype) -> dict[str, Case]:
    """Norms before an op whose gradient reads its argument."""

    def new(*shape: int) -> torch.Tensor:
        return drawn(*shape, dtype=dtype)

    last = new(3, 8, 4, 5).detach().to(memory_format=torch.channels_last).requires_grad_()
    return {
        "layer": (
            lambda x, w, b: F.gelu(F.layer_norm(x, (8, 7), w, b)),
            (new(3, 8, 7), new(8, 7), new(8, 7)),
        ),
        "layer without parameters": (lambda x: F.silu(F.layer_norm(x, (7,))), (new(3, 7),)),
        "group": (
            lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)),
            (new(3, 8, 4, 5), new(8), new(8)),
        ),
        "group, channels last": (
            lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)),
            (last, new(8), new(8)),
        ),
        "group of a matrix": (lambda x, w: F.silu(F.group_norm(x, 2, w)), (new(3, 8), new(8))),
        "batch": (
            lambda x, w, b, m, v: (F.silu(F.batch_norm(x, m, v, w, b, True)), m * 1, v * 1),
            (new(6, 8, 4, 5), new(8), new(8), *running(8, dtype)),
        ),
        "written in place": (
            lambda x, w, b: F.silu(F.layer_norm(x, (7,), w, b), inplace=True),
            (new(3, 7), new(7), new(7)),
        ),
        "batch of a matrix": (
            lambda x: F.silu(F.batch_norm(x, None, None, training=True)),
            (new(6, 8),),
        ),
    }


def entropies(dtype: torch.dtype) -> dict[str, Case]:
    """Losses on log softmax."""
    rows, many = 32, 2 * SplitCrossEntropy().least // 32
    wide = F32 if dtype is BF16 else F64

    def new() -> torch.Tensor:
        return (torch.randn(rows, many, dtype=dtype) * 3).requires_grad_()

    target, weight = classes(rows, many), torch.rand(many, dtype=dtype)
    ignored = classes(rows, many, 7)
    return {
        "mean": (F.cross_entropy, (new(), target)),
        "weights": (lambda x, t, w: F.cross_entropy(x, t, w), (new(), target, weight)),
        "sum": (
            lambda x, t, w: F.cross_entropy(x, t, w, reduction="sum", ignore_index=7),
            (new(), ignored, weight),
        ),
        "none": (lambda x, t: F.cross_entropy(x, t, reduction="none"), (new(), target)),
        "smooth": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), (new(), target)),
        "wider": (lambda x, t: F.cross_entropy(x.to(wide), t), (new(), target)),
        "widened": (lambda x, t: F.nll_loss(F.log_softmax(x, -1).to(wide), t), (new(), target)),
        "columns": (lambda x: F.log_softmax(x, 0).sin(), (new(),)),
    }


def split_by(change: str, run: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Joint:
    """Check that a single pass, after which equal calls may be merged, changes the joint graph of a
    function but not its results."""
    joint = Joint(run, inputs)
    assert [name for name in joint.changed if name != "cse"] == [change]
    compared(joint, inputs)
    return joint


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", norms(F32))
def test_a_norms_result_is_not_saved(name: str, dtype: torch.dtype) -> None:
    run, inputs = norms(dtype)[name]
    joint = split_by("split-norms", run, inputs)
    large = [n for n in joint.saved() if n >= inputs[0].nbytes]
    assert large == [inputs[0].nbytes]


@pytest.mark.parametrize("activation", [F.relu, F.silu])
def test_an_activation_that_excites_channels_is_not_saved(activation: Any) -> None:
    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = activation(F.batch_norm(x, None, None, w, b, True))
        return F.conv2d(y * F.conv2d(y.mean((2, 3), True), v).sigmoid(), v)

    inputs = drawn(6, 8, 9, 5), drawn(8), drawn(8), drawn(8, 8, 1, 1)
    joint = Joint(run, inputs)
    assert "split-norms" in joint.changed
    compared(joint, inputs)
    large = [n for n in joint.saved() if n >= inputs[0].nbytes]
    assert large == [inputs[0].nbytes] * 2  # the norm's operand, and that of the convolution


@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_the_result_of_hardswish_is_not_saved(dtype: torch.dtype) -> None:
    x = (drawn(40, 50, dtype=dtype) * 4).detach()
    inputs = (x.requires_grad_(),)
    joint = Joint(lambda x: F.hardswish(x).sin(), inputs)
    assert "split-hardswish" in joint.changed
    compared(joint, inputs)
    assert joint.saved() == [x.nbytes]


@pytest.mark.parametrize("dtype", [F32, F64, BF16])
@pytest.mark.parametrize("name", entropies(F32))
def test_log_probabilities_are_not_saved(name: str, dtype: torch.dtype) -> None:
    run, inputs = entropies(dtype)[name]
    joint = split_by("split-cross-entropy", run, inputs)
    if name != "none":
        assert [n for n in joint.saved() if n >= inputs[0].nbytes] == [inputs[0].nbytes]


def test_log_probabilities_are_not_saved_where_statistics_are_not_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in torch 2.11, whose partitioner does not support the op."""
    unknown = {torch.ops.prims.prepare_softmax_online}

    def fewer() -> Any:
        op_types = op_list()
        op_types.fusible_ops -= unknown
        op_types.recomputable_ops -= unknown
        return op_types

    op_list = partitioners.get_default_op_list
    monkeypatch.setattr(partitioners, "get_default_op_list", fewer)

    def run(h: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = (h @ w.t()).view(4, 8, 4096)
        return F.cross_entropy(logits.view(-1, 4096).float(), target)

    inputs = drawn(32, 8, dtype=BF16), drawn(4096, 8, dtype=BF16), classes(32, 4096)
    joint = split_by("split-cross-entropy", run, inputs)
    assert max(joint.saved()) == 32 * 4096 * BF16.itemsize


@pytest.mark.parametrize("case", [norms(F32)["group"], norms(F32)["batch"], entropies(F32)["sum"]])
def test_symbolic_sizes(case: Case) -> None:
    run, inputs = case
    again = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    joint = Joint(run, inputs, dynamic=True)
    assert joint.changed
    x = joint.after.graph.find_nodes(op="placeholder")[0]
    assert not all(isinstance(s, int) for s in x.meta["val"].shape)
    assert [n for n in joint.saved() if n >= inputs[0].nbytes] == [inputs[0].nbytes]
    torch.testing.assert_close(joint.results, Joint(run, tuple(again)).results)


WHOLE: dict[str, Case] = {
    "a product reads the result": (
        lambda x, w: F.gelu(F.layer_norm(x, (8,)) @ w),
        (drawn(4, 8), drawn(8, 8)),
    ),
    "no gradient reads the result": (
        lambda x: F.relu(F.batch_norm(x, None, None, training=True)),
        (drawn(6, 8),),
    ),
    "rounded statistics": (
        lambda x: F.silu(F.group_norm(x, 2)),
        (drawn(3, 8, 4, dtype=BF16),),
    ),
    "running statistics normalise": (
        lambda x, m, v: F.silu(F.batch_norm(x, m, v)),
        (drawn(6, 8), *running(8, F32)),
    ),
    "few classes": (F.cross_entropy, (drawn(32, 10), classes(32, 10))),
    "nothing in it": (lambda x: F.silu(F.group_norm(x, 2)), (drawn(0, 8, 4),)),
    "no dimension": (lambda x: F.log_softmax(x, 0) * 2, (drawn(),)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_unprofitable_ops_are_kept(name: str) -> None:
    run, inputs = WHOLE[name]
    assert Joint(run, inputs).changed == []


@pytest.mark.parametrize("name", ["layer", "group", "batch"])
def test_the_parts_have_rules(check: Any, name: str) -> None:
    run, inputs = norms(F32)[name]
    for part in Joint(run, inputs).parts.values():
        program = lower(part, LoweringOptions(), check.targets)
        assert not [op for op in program.operations if isinstance(op, Extern)]


@pytest.mark.parametrize("dim", [-1, 1])
def test_softmax_is_not_saved_where_products_read_narrower_floats(dim: int) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2) * 0.3).float().softmax(dim)
        return scores.to(v.dtype) @ v

    inputs = drawn(4, 16, 8, dtype=BF16), drawn(4, 32, 8, dtype=BF16), drawn(4, 32, 8, dtype=BF16)
    joint = split_by("split-softmax", run, inputs)
    scores = 4 * 16 * 32
    assert [n for n in joint.saved() if n >= 2 * scores] == [2 * scores] * 2


def test_softmax_that_a_product_reads_stays_whole() -> None:
    joint = Joint(lambda x, v: x.softmax(-1) @ v, (drawn(4, 16, 8), drawn(4, 8, 8)))
    assert joint.changed == []


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("run", [F.relu, F.relu6, lambda x: F.leaky_relu(x, 0.3)])
def test_conditions_are_saved_instead_of_activations(run: Any, dtype: torch.dtype) -> None:
    edits = PassEdits().configured("split-thresholds", devices=frozenset({"cpu"}))
    x = drawn(64, 9, dtype=dtype)
    with torch.no_grad():
        x[0, :3] = torch.tensor([0.0, 6.0, -0.0])
    inputs = x, drawn(9, dtype=dtype)
    joint = Joint(lambda x, b: run(x + b * 0).mean(1), inputs, edits=edits)
    assert "split-thresholds" in joint.changed
    compared(joint, inputs)
    assert max(joint.saved()) == x.numel()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("size", "options"),
    [
        (3, {"stride": 2, "padding": 1}),
        (2, {}),
        ((2, 3), {"stride": (1, 2), "dilation": (2, 1)}),
        (3, {"stride": 2, "ceil_mode": True}),
        ((1, 5), {"padding": (0, 2)}),
        ((8, 11), {"padding": (4, 5), "stride": 1}),
    ],
)
def test_positions_in_windows_are_saved_instead_of_indices(
    size: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    edits = PassEdits().configured("narrow-pool-indices", devices=frozenset({"cpu"}))
    x = drawn(2, 3, 9, 11, dtype=dtype)
    with torch.no_grad():
        x[0, 0, 2:5, 3:6] = 3.0  # ties
        x[1, 0] = -torch.inf
    joint = Joint(lambda x: F.max_pool2d(x, size, **options).exp(), (x,), edits=edits)
    assert "narrow-pool-indices" in joint.changed
    compared(joint, (x,))
    maxima = F.max_pool2d(x, size, **options).numel()
    assert maxima in joint.saved() and 8 * maxima not in joint.saved()


def test_indices_in_planes_of_unknown_sizes_are_saved() -> None:
    edits = PassEdits().configured("narrow-pool-indices", devices=frozenset({"cpu"}))
    x = drawn(9)

    def run(x: torch.Tensor) -> torch.Tensor:  # any number of rows, of known width
        return F.max_pool2d(x[None, None, :, None].expand(-1, -1, -1, 11) * 2, 3, 2, 1).exp()

    joint = Joint(run, (x,), edits=edits, dynamic=True)
    assert "narrow-pool-indices" not in joint.changed
    compared(joint, (x,))


def test_indices_of_large_windows_are_saved() -> None:
    edits = PassEdits().configured("narrow-pool-indices", devices=frozenset({"cpu"}))
    joint = Joint(lambda x: F.max_pool2d(x, 12).exp(), (drawn(1, 2, 24, 24),), edits=edits)
    assert "narrow-pool-indices" not in joint.changed


@pytest.mark.parametrize(
    ("heuristic", "kind"),
    [("saved_conditions", SplitThresholds), ("saved_positions", NarrowPoolIndices)],
)
def test_saving_single_bytes_depends_on_the_device(check: Any, heuristic: str, kind: Any) -> None:
    (target,) = check.targets.values()
    assert kind.of(check.targets).devices == frozenset()
    saving = evolve(target, heuristics=evolve(target.heuristics, **{heuristic: True}))
    assert kind.of({target.device: saving}).devices == {target.device}


@pytest.mark.parametrize("shape", [(4, 9), (3, 1), (2, 0, 5)])
def test_statistics_of_softmax(check: Any, shape: tuple[int, ...]) -> None:
    op = torch.ops.prims.prepare_softmax_online.default
    check(lambda x: op(x, -1), torch.randn(shape))
    check(lambda x: op(x, 0), torch.randn(4, 9, dtype=F64))


def test_recomputing_is_optional() -> None:
    joint = Joint(*norms(F32)["layer"])
    assert joint.changed == ["split-norms"]
    assert prepare(joint.before, recomputing=False) == []


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rms_norm_as_on_devices(dtype: torch.dtype) -> None:
    """On the CPU the op is decomposed before any graph contains it."""
    graph = Graph()
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(torch.empty(3, 7, dtype=dtype)) for _ in range(2)]
        fakes.append(mode.from_tensor(torch.empty(7, dtype=dtype)))
        results = mode.from_tensor(torch.empty(3, 7, dtype=dtype)), torch.empty(3, 1)
    x, tangents, weight = map(graph.placeholder, ("x", "tangents_1", "w"))
    norm = graph.call_function(torch.ops.aten._fused_rms_norm.default, (x, (7,), weight, None))
    first = graph.call_function(operator.getitem, (norm, 0))
    last = graph.call_function(torch.ops.aten.silu_backward.default, (tangents, first))
    graph.output((last,))
    for node, fake in zip((x, tangents, weight, norm, first, last), (
        *fakes, results, results[0], results[0]
    ), strict=True):  # fmt: skip
        node.meta["val"] = fake
    gm = GraphModule(torch.nn.Module(), graph)
    inputs = [torch.randn(f.shape, dtype=dtype) for f in fakes]
    want = gm(*inputs)
    assert prepare(gm) == ["split-norms"]
    assert last.args[1] is not first
    tolerance = 1e-5 if dtype is F32 else 2e-2
    torch.testing.assert_close(gm(*inputs), want, rtol=tolerance, atol=tolerance)
