"""Passes over FX graphs, the table, and the README."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._higher_order_ops.map import map as higher_order_map
from torch._higher_order_ops.scan import scan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention.flex_attention import flex_attention

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.loop.nodes import CollectiveCall, CollectiveWait, Extern
from gyrator_ir.passes import PassEdits, Tracer
from gyrator_lowering import LoweringOptions, TableBuilder, default_table, lower
from gyrator_lowering.builder.program import each
from gyrator_lowering.decompositions import CORRECTIONS, default_decompositions
from gyrator_lowering.fx_passes import Cse, MoveIndices, fx_pipeline, joint_pipeline


def changed(pipeline, gm) -> list[str]:
    """Run passes over a graph; return the names of those that changed it."""
    tracer = Tracer()
    assert pipeline.run(gm, tracer) is gm
    return [s.name for s in tracer.steps if s.changed]


def targets_of(gm) -> list[str]:
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]


def test_cse_merges_equal_pure_calls(check) -> None:
    gm = check.trace(
        lambda x: (x.sin() + x.sin(), x * 1, x * 1.0, torch.rand(2), torch.rand(2)),
        (torch.randn(3),),
    )
    assert changed(fx_pipeline(), gm) == ["cse"]
    remaining = targets_of(gm)
    assert remaining.count("aten.sin.default") == 1
    assert remaining.count("aten.mul.Tensor") == 2
    assert remaining.count("aten.rand.default") == 2


def test_cse_does_not_cross_a_write(check) -> None:
    def fn(x):
        first = x.clone().view(-1)
        before = x.sum()
        x.add_(1)
        return before, x.sum(), first

    check(fn, torch.randn(3))
    gm = check.trace(fn, (torch.randn(3),))
    fx_pipeline().run(gm)
    x = torch.randn(3)
    before, after, _ = gm(x.clone())
    torch.testing.assert_close(before, x.sum())
    torch.testing.assert_close(after, (x + 1).sum())


def test_remove_noop(check) -> None:
    gm = check.trace(lambda x: x.view(3, 4)[:, 0:4].expand(3, 4) + 1, (torch.randn(3, 4),))
    assert "remove-noop" in changed(fx_pipeline(), gm)
    assert targets_of(gm) == ["aten.add.Tensor"]


def test_a_pass_can_be_left_out(check) -> None:
    gm = check.trace(lambda x: x.sin() + x.sin(), (torch.randn(3),))
    assert changed(PassEdits().without("cse").apply(fx_pipeline()), gm) == []
    gm = check.trace(torch.rand_like, (torch.randn(3),))
    assert changed(joint_pipeline(LoweringOptions(fallback_random=True)), gm) == []
    program = lower(gm, LoweringOptions(fallback_random=True), check.targets)
    (call,) = program.operations
    assert isinstance(call, Extern)
    assert "generator" in call.reason


@pytest.mark.parametrize("pipeline", [joint_pipeline(LoweringOptions()), fx_pipeline()])
def test_names_of_passes_match_class_and_file(pipeline) -> None:
    for name, one in pipeline.table.items():
        assert re.sub("(?<!^)([A-Z])", r"-\1", type(one).__name__).lower() == name
        package, _, module = type(one).__module__.rpartition(".")
        assert package.startswith("gyrator_lowering.fx_passes")
        assert module == name.replace("-", "_")


def test_steps_have_the_text_of_graphs(check) -> None:
    gm = check.trace(lambda x: x.sin() + x.sin(), (torch.randn(3),))
    tracer = Tracer(texts=True)
    fx_pipeline().run(gm, tracer)
    (step,) = [s for s in tracer.steps if s.changed]
    assert (step.level, step.name) == ("fx", "cse")
    assert step.before.count("aten.sin.default") == 2
    assert step.after.count("aten.sin.default") == 1


def test_decompositions_and_rules_do_not_overlap() -> None:
    table = default_table()
    chosen = default_decompositions(table)
    assert len(chosen) > 100
    both = {op for op in chosen if table.find(str(op)) is not None}
    assert both <= CORRECTIONS.keys()


def test_every_rule_names_an_op() -> None:
    import torch.ao.quantization.fx._decomposed  # registers ops that rules name

    for target in default_table().rules:
        namespace, name, *_ = target.split(".")
        if namespace in ("gyrator", "_c10d_functional"):
            continue
        packet = getattr(getattr(torch.ops, namespace), name, None)
        assert packet is not None, target


def test_a_rule_is_not_replaced_silently() -> None:
    table = TableBuilder()
    table.rule("aten.relu.default")(lambda b, x: x)
    with pytest.raises(ValueError, match=r"aten\.relu\.default is already lowered"):
        table.rule("aten.relu.default")(lambda b, x: x)
    table.rule("aten.relu.default", replace=True)(lambda b, x: x)


def test_an_option_keeps_an_op_in_aten(check) -> None:
    options = LoweringOptions(extern_ops=frozenset({"aten.sin.default"}))
    program = check.lower(lambda x: x.sin() + 1, (torch.randn(3),), options=options)
    assert isinstance(program.operations[0], Extern)


def test_collectives(check) -> None:
    import torch.distributed._functional_collectives  # defines the ops

    gm = check.trace(lambda x: x + 1, (torch.randn(3),))
    graph = gm.graph
    _, add, out = graph.nodes
    ops = torch.ops._c10d_functional
    with graph.inserting_after(add):
        start = graph.call_function(ops.all_reduce.default, (add, "sum", "0"))
    with graph.inserting_after(start):
        done = graph.call_function(ops.wait_tensor.default, (start,))
    for node in (start, done):
        node.meta["val"] = add.meta["val"]
    out.args = ((done,),)
    program = lower(gm, LoweringOptions(), check.targets)
    assert [type(op) for op in program.operations[1:]] == [CollectiveCall, CollectiveWait]


def test_readme_example_runs(capsys) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(examples) == 3
    names: dict[str, object] = {}
    for example in examples:
        exec(example, names)
    assert "online_softmax" in capsys.readouterr().out


def test_higher_order_ops_are_inlined(check) -> None:
    """A scan, a map and flexible attention become kernels and products."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last, all_ = scan(lambda c, y: (c + y, c * y), x[0], x)
        q = x.view(1, 1, 4, 3)
        score = flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j))
        return last, all_, higher_order_map(torch.sin, x), score

    graphs: list[torch.fx.GraphModule] = []

    def compiler(gm, _):
        graphs.append(gm)
        return make_boxed_func(gm.forward)

    x = torch.randn(4, 3)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = fn(x)
    torch.compile(fn, backend=aot_autograd(fw_compiler=compiler))(x)
    (gm,) = graphs
    assert "inline-higher-order" in changed(fx_pipeline(), gm)
    results = [n.target for n in gm.graph.nodes if n.op == "call_function"]
    assert not any(isinstance(t, torch._ops.HigherOrderOperator) for t in results)
    for got, expected in zip(gm(x), want, strict=True):
        torch.testing.assert_close(got, expected)
    lower(gm, LoweringOptions(), check.targets)


def test_cse_keeps_distinct_results(check) -> None:
    fn = lambda x: (x + 1, x + 1, (x + 1).t(), (x + 2).view(-1), (x + 2)[0])  # noqa: E731
    gm = check.trace(fn, (torch.randn(2, 3),))
    fx_pipeline().run(gm)
    results = gm(torch.randn(2, 3))
    assert len({r.untyped_storage().data_ptr() for r in results}) == len(results)


def test_cse_merges_symbols_and_items(check) -> None:
    fn = lambda x: x.reshape(x.shape[0] * 2, -1).sin() + x.reshape(x.shape[0] * 2, -1).sin()  # noqa: E731
    x = torch.randn(6, 4)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        gm = make_fx(fn, tracing_mode="symbolic")(mode.from_tensor(x))
    assert Cse().run(gm)
    remaining = targets_of(gm)
    assert remaining.count("aten.sin.default") == 1 and len(remaining) == len(set(remaining))
    torch.testing.assert_close(gm(x), fn(x))


def test_cse_keeps_results_of_joint_graphs(check) -> None:
    def fn(x):
        largest, again = x.max(0)[0], x.max(0)[0]
        return x.sin(), x.sin() * x.sin(), largest * 2 + again, x.min(0)[0], x.min(0)[0] + 1

    gm = check.trace(fn, (torch.randn(3, 4),))
    assert "cse" not in changed(joint_pipeline(LoweringOptions()), gm)
    assert "cse" in changed(joint_pipeline(LoweringOptions(), recomputing=True), gm)
    remaining = targets_of(gm)
    counts = [remaining.count(f"aten.{op}") for op in ("max.dim", "sin.default", "min.dim")]
    assert counts == [1, 2, 2]
    x = torch.randn(3, 4)
    for got, expected in zip(gm(x), fn(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


STAY = {
    "returned": lambda x, i: (x[(k := torch.arange(3))], k),
    "read elsewhere": lambda x, i: (x[(k := torch.arange(3))], k.float().sum() + i),
    "of an argument": lambda x, i: x[torch.arange(3) + i],
    "a mask": lambda x, i: x.index_put((torch.arange(4) > 2,), x[0]),
    "of numbers": lambda x, i: x[torch.arange(0.0, 3.0).long()],
    "of the host": lambda x, i: i[torch.arange(3)],
}
MOVE = {
    "a range": lambda x, i: x[torch.arange(3)],
    "computed": lambda x, i: x[(torch.arange(2)[:, None] * 2 + torch.arange(2)).flatten()],
    "pairs": lambda x, i: x[tuple(torch.triu_indices(4, 4, 1))],
    "written": lambda x, i: x.index_put((torch.arange(3), torch.full((3,), 2)), x[:3, 0]),
    "of two": lambda x, i: (x[(k := torch.arange(3))], x.sin()[k]),
}


@pytest.mark.parametrize("name", [*STAY, *MOVE])
def test_indices_are_created_on_the_indexed_device(name: str) -> None:
    with FakeTensorMode():
        x, i = torch.empty(4, 4, device="meta"), torch.empty(3, dtype=torch.int64)
        gm = make_fx((STAY | MOVE)[name], decomposition_table=default_decompositions())(x, i)
    assert MoveIndices().run(gm) is (name in MOVE)
    vals = [v for n in gm.graph.nodes if n.op == "call_function" for v in each(n.meta["val"])]
    assert ({v.device.type for v in vals} == {"meta"}) == (name in MOVE)


def test_flexible_attention_without_a_template_is_refused_by_lowering(check) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def compiler(gm, _):
        graphs.append(gm)
        return make_boxed_func(gm.forward)

    q = torch.randn(1, 1, 16, 16)
    torch._dynamo.reset()
    torch.compile(lambda q: flex_attention(q, q, q), backend=aot_autograd(fw_compiler=compiler))(q)
    with pytest.raises(UnsupportedError, match=r"GY-LOWER-052.*no template"):
        lower(graphs[0], LoweringOptions(), check.targets)
