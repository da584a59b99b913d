"""Graphs that cannot be lowered are refused with a code, and the message says what to do."""

import math

import pytest
import torch
from attrs import evolve
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator_ir.body.nodes import Let
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.loop.nodes import Extern
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.types import DType
from gyrator_lowering import LoweringOptions, TableBuilder, lower
from gyrator_lowering.builder.trace import TraceError, Tracer

aten = torch.ops.aten
TARGETS = {
    "cpu": Target(
        device="cpu",
        arch="plain",
        kernel_backend="interpreter",
        capabilities=Capabilities(dtypes=frozenset(d for d in DType if not d.is_complex)),
    )
}


class Writer:
    """Writes a graph of aten ops node by node."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.graph = Graph()
        self.held = torch.nn.Module()

    def tensor(self, *shape, dtype=torch.float32):
        with self.mode:
            return torch.empty(shape, dtype=dtype)

    def given(self, name, value):
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def call(self, op, *args, val):
        node = self.graph.call_function(op, args)
        node.meta["val"] = val
        return node

    def module(self, *results) -> GraphModule:
        self.graph.output(results)
        return GraphModule(self.held, self.graph)


@pytest.fixture
def writer() -> Writer:
    return Writer()


def refusal(check, gm, table=None) -> Diagnostic:
    """Return why `gm` is not lowered."""
    with pytest.raises(UnsupportedError) as error:
        lower(gm, LoweringOptions(), check.targets, table)
    return error.value.diagnostic


def test_python_functions_are_refused(check, writer) -> None:
    """A graph that AOTAutograd has not traced down to aten ops."""
    x = writer.given("x", writer.tensor(3))
    diagnostic = refusal(check, writer.module(writer.call(math.fsum, x, val=writer.tensor())))
    assert diagnostic.code == "GY-LOWER-001"
    assert "fsum" in diagnostic.message and "is not an op of the dispatcher" in diagnostic.message
    assert diagnostic.provenance[0].startswith("%fsum")
    assert diagnostic.help == "PyTorch runs the op; the rest of the graph is compiled"


def test_module_calls_are_refused(check, writer) -> None:
    """A graph of `symbolic_trace` calls modules."""
    writer.held.act = torch.nn.ReLU()
    x = writer.given("x", writer.tensor(3))
    diagnostic = refusal(check, writer.module(writer.graph.call_module("act", (x,))))
    assert diagnostic.code == "GY-LOWER-001"
    assert "'call_module'" in diagnostic.message
    assert "AOTAutograd" in diagnostic.help


def test_a_higher_order_op_without_a_rule_is_refused(check, writer) -> None:
    """An associative scan that is not unrolled has no rule."""
    x = writer.given("x", writer.tensor(3))
    op = torch.ops.higher_order.associative_scan
    diagnostic = refusal(
        check, writer.module(writer.call(op, None, (x,), (), val=(writer.tensor(3),)))
    )
    assert diagnostic.code == "GY-LOWER-001"
    assert diagnostic.message == "associative_scan is not an op of the dispatcher"


def test_operands_of_two_dtypes(check, writer) -> None:
    """A bug of a rule is an error if the rule runs alone, and only causes a call in a graph."""
    ops = Tracer()
    with pytest.raises(TraceError) as error:
        ops.add(ops.const(1.0, DType.F64), ops.const(1.0, DType.F32))
    diagnostic = error.value.diagnostic
    assert diagnostic.code == "GY-LOWER-003"
    assert diagnostic.message == "operands of different types without a cast: f32, f64"
    assert "correct the lowering rule" in diagnostic.help

    table = TableBuilder()

    @table.rule("aten.sin.default")
    def numbers_alone(b, x):
        return b.pointwise(lambda ops, index: ops.add(1.0, 2.0))

    x = writer.given("x", writer.tensor(3))
    gm = writer.module(writer.call(aten.sin.default, x, val=writer.tensor(3)))
    (call,) = lower(gm, LoweringOptions(), check.targets, table.build()).operations
    assert isinstance(call, Extern)
    assert "the rule of aten.sin.default failed" in call.reason
    assert "GY-LOWER-003: an op was applied to Python numbers alone" in call.reason


def test_calls_do_not_take_generators(check, writer) -> None:
    """Calls take tensors, numbers, strings and dtypes."""
    x = writer.given("x", writer.tensor(3))
    generator = writer.given("generator", torch.Generator())
    node = writer.call(aten.bernoulli.default, x, val=writer.tensor(3))
    node.kwargs = {"generator": generator}
    diagnostic = refusal(check, writer.module(node), TableBuilder().build())
    assert diagnostic.code == "GY-LOWER-004"
    assert "aten.bernoulli.default takes Generator as an argument" in diagnostic.message
    assert "report the op" in diagnostic.help


def test_ops_that_return_a_dtype_are_refused(check, writer) -> None:
    """`aten.result_type` returns a dtype."""
    x = writer.given("x", writer.tensor(3))
    node = writer.call(aten.result_type.Tensor, x, x, val=torch.float32)
    diagnostic = refusal(check, writer.module(node))
    assert diagnostic.code == "GY-LOWER-005"
    assert "aten.result_type.Tensor returns a dtype" in diagnostic.message
    assert diagnostic.help == "PyTorch runs the op; the rest of the graph is compiled"


def test_a_graph_that_returns_a_generator_is_refused(check, writer) -> None:
    """An opaque input cannot be returned by a program."""
    generator = writer.given("generator", torch.Generator())
    diagnostic = refusal(check, writer.module(generator))
    assert diagnostic.code == "GY-LOWER-007"
    assert diagnostic.message == "the graph returns a Generator"
    assert diagnostic.help == "PyTorch runs the op; the rest of the graph is compiled"


def test_symbolic_floats_are_not_inputs(check, writer) -> None:
    """Sizes can be inputs; floats and booleans must be tensors."""
    symbol = writer.mode.shape_env.create_unbacked_symfloat()
    diagnostic = refusal(check, writer.module(writer.given("f", symbol)))
    assert diagnostic.code == "GY-LOWER-008"
    assert diagnostic.message == "the input f is a run-time SymFloat"
    assert diagnostic.help == "pass it to the graph as a 0-d tensor"


def test_functions_of_symbolic_floats_that_kernels_lack(check) -> None:
    """`asin` of a number read from a tensor."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        gm = check.trace(lambda x: x + torch._sym_asin(x[0].item()), (torch.rand(3),), dynamic=True)
    diagnostic = refusal(check, gm)
    assert diagnostic.code == "GY-LOWER-008"
    assert "OpaqueUnaryFn_asin" in diagnostic.message
    assert "cannot be computed in a kernel" in diagnostic.message
    assert "compute on the tensor" in diagnostic.help


def test_false_assertions_are_refused(check, writer) -> None:
    """The error quotes the graph's own message."""
    x = writer.given("x", writer.tensor(3))
    writer.call(aten._assert_scalar.default, False, "batch must be even", val=None)
    diagnostic = refusal(check, writer.module(x))
    assert diagnostic.code == "GY-LOWER-010"
    assert diagnostic.message == "the graph asserts: batch must be even"
    assert "known to be false" in diagnostic.help


def test_a_region_returns_tensors_only(check, writer) -> None:
    """Both branches of the `cond` return a number."""
    arm = Writer()
    arm.given("x", arm.tensor(3))
    writer.held.arm = arm.module(5)
    x = writer.given("x", writer.tensor(3))
    test = writer.given("test", writer.tensor(dtype=torch.bool))
    arms = [writer.graph.get_attr("arm") for _ in range(2)]
    node = writer.call(torch.ops.higher_order.cond, test, *arms, (x,), val=(5,))
    diagnostic = refusal(check, writer.module(node))
    assert diagnostic.code == "GY-LOWER-011"
    assert diagnostic.message == "cond returns something that is not a tensor"
    assert diagnostic.help == "PyTorch runs the op; the rest of the graph is compiled"


@pytest.mark.parametrize(
    ("lack", "function", "reason"),
    [
        ({"ops_lacking": frozenset({"tanh"})}, torch.tanh, "the op 'tanh' on f32"),
        ({"reductions": False}, torch.sum, "reductions"),
        ({"dtypes": TARGETS["cpu"].capabilities.dtypes - {DType.F64}}, torch.var, "type f64"),
        ({"scans": False}, lambda x: torch.cumsum(x, 0), ""),
        ({"sorts": False}, lambda x: torch.sort(x)[0], ""),
        ({"indirect": False}, lambda x: x[torch.arange(3)], "addresses that depend on values"),
        ({"device_checks": False}, lambda x: x[x.long()], "checks of indices"),
    ],
)
def test_missing_capabilities_cause_calls(lack, function, reason) -> None:
    """The rest of the graph is lowered, and the call has a reason."""
    capabilities = evolve(TARGETS["cpu"].capabilities, **lack)
    targets = {"cpu": evolve(TARGETS["cpu"], capabilities=capabilities)}
    graph = make_fx(lambda x: function(x) + 1, tracing_mode="fake")(torch.ones(4))
    operations = lower(graph, LoweringOptions(), targets).operations
    (called,) = (o for o in operations if isinstance(o, Extern))
    assert reason in called.reason
    whole = lower(graph, LoweringOptions(), TARGETS).operations
    assert not any(isinstance(o, Extern) for o in whole)


def test_symbolic_floats_are_f32_without_f64() -> None:
    """A float computed from sizes needs no call, which could not take it."""
    lacking = TARGETS["cpu"].capabilities.dtypes - {DType.F64}
    capabilities = evolve(TARGETS["cpu"].capabilities, dtypes=lacking)
    poor = {"cpu": evolve(TARGETS["cpu"], capabilities=capabilities)}

    def function(x):
        return x * (2.0 / x.shape[0]) + (x.shape[0] / 3 - 1)

    graph = make_fx(function, tracing_mode="symbolic")(torch.ones(5, dtype=torch.bfloat16))
    for targets, expected in ((TARGETS, {DType.F64}), (poor, set())):
        operations = lower(graph, LoweringOptions(), targets).operations
        assert not any(isinstance(o, Extern) for o in operations)
        types = {s.dtype for o in operations for s in o.body if isinstance(s, Let)}
        assert types & {DType.F64} == expected


@pytest.mark.parametrize(
    ("function", "called"),
    [
        (lambda x, at: x.index_put((at,), x.sin(), accumulate=True), "index_put"),
        (lambda x, at: x.index_put((at,), x.sin()), "index_put"),
        (lambda x, at: x.index_add(0, at, x), "index_add"),
        (lambda x, at: x.scatter(0, at, x.sin()), "scatter"),
        (lambda x, at: x.scatter_add(0, at, x), "scatter_add"),
        (lambda x, at: x.scatter_reduce(0, at, x, "prod"), "scatter_reduce"),
        (lambda x, at: x.scatter(0, at, 2.0), ""),
        (lambda x, at: x.index_put((at,), x[0]), ""),
        (lambda x, at: x.scatter_reduce(0, at, x, "amax"), ""),
        (lambda x, at: x.long().scatter_add(0, at, x.long()), ""),
    ],
)
def test_deterministic_mode_has_no_order_of_stores(check, function, called) -> None:
    indices = torch.tensor([0, 2, 0, 1])
    graph = make_fx(lambda x, at: function(x, at) + 1, tracing_mode="fake")(torch.ones(4), indices)
    for deterministic in (False, True):
        options = LoweringOptions(deterministic=deterministic)
        operations = lower(graph, options, check.targets).operations
        calls = [o.target for o in operations if isinstance(o, Extern)]
        assert bool(calls) == bool(deterministic and called)
        assert all(f"aten.{called}." in target for target in calls)


def test_undefined_sizes_are_refused(check, writer) -> None:
    size = writer.mode.shape_env.create_unbacked_symint()
    x = writer.given("x", writer.tensor(4))
    call = writer.call(aten.nonzero.default, x, val=writer.tensor(size * 2, 1, dtype=torch.int64))
    diagnostic = refusal(check, writer.module(call))
    assert diagnostic.code == "GY-LOWER-009"
