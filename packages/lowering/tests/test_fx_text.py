"""Graphs as text: printed text is read back as an equivalent graph, or refused."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_ir.diagnostics import ParseError
from gyrator_ir.loop.print import show as show_loop
from gyrator_lowering import LoweringOptions, lower
from gyrator_lowering.fx_text import parse, show

WEIGHT = torch.arange(8.0)
PROGRAMS = {
    "views": lambda x: torch.cat(x.t()[1:].split(3)[::-1]).unsqueeze(0),
    "many results": lambda x: torch.var_mean(x, 1, correction=0)[::-1],
    "dtypes": lambda x: x.to(torch.float64, copy=True).to(dtype=torch.bool).to(torch.complex64),
    "constants": lambda x: x.new_full((2, 2), float("inf")) * complex(1, -2) + float("nan"),
    "held": lambda x: x + WEIGHT,
    "in place": lambda x: x.mul_(2).t(),
    "sizes": lambda x: torch.arange(x.shape[0] * x.shape[1] // 3 + max(x.shape[0], 5)),
    "floats of sizes": lambda x: x * (x.shape[0] ** 0.5),
    "interpolation": lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=1.5),
    "indices": lambda x: x[:, torch.tensor([1, 0])].index_put_((torch.tensor([1]),), x[0, :2]),
    "unbacked": lambda x: x.nonzero()[:, 0] + 1,
    "numbers": lambda x: x * x.sum().item(),
    "regions": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "nothing": lambda x: (x.clone(), None, 3),
}


def traced(program, dynamic):
    mode = "symbolic" if dynamic else "fake"
    make = make_fx(program, tracing_mode=mode, _allow_non_fake_inputs=True)
    return make(torch.randn(7, 8))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_text_is_the_graph(name, dynamic, check):
    if name in ("numbers", "unbacked") and not dynamic:
        return  # what values decide has no static size
    gm = traced(PROGRAMS[name], dynamic)
    text = show(gm)
    again = parse(text)
    assert show(again) == text
    first, second = (lower(g, LoweringOptions(), check.targets) for g in (gm, again))
    assert show_loop(second) == show_loop(first)
    kinds = [(n.op, n.name, str(n.target)) for n in gm.graph.nodes]
    assert [(n.op, n.name, str(n.target)) for n in again.graph.nodes] == kinds


def test_empty_tensors_may_begin_anywhere():
    column = "v0: f32[0] strides [5] on cpu offset 3 = aten.select.int (x, 0, -1)"
    lines = ("in x: f32[1, 0] strides [1, 5] on cpu offset 3", column, "return v0")
    text = "\n  ".join(["fx.graph 1 @p", *lines]) + "\n"
    assert show(parse(text)) == text


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_types_are_optional(data):
    """Random layouts and ops: PyTorch computes the types that a text leaves out."""
    sizes = [data.draw(st.sampled_from([0, 1, 2, 5])) for _ in range(2)]
    dtype = data.draw(st.sampled_from(["f32", "bf16", "i64", "bool", "f64"]))
    dense = [1, max(sizes[0], 1)] if data.draw(st.booleans()) else [max(sizes[1], 1) * 2, 2]
    offset = data.draw(st.sampled_from(["", " offset 3"]))
    lines = [f"in x: {dtype}{sizes} strides {dense} on cpu{offset}"]
    last = "x"
    calls = (
        "neg.default ({})", "t.default ({})", "add.Tensor ({}, x)", "mul.Tensor ({}, 2)",
        "unsqueeze.default ({}, -1)", "sum.dim_IntList ({}, [0], true)", "select.int ({}, -1, 0)",
        "amax.default ({})", "eq.Scalar ({}, 1)", "expand.default ({}, [3, -1, -1])",
    )  # fmt: skip
    for k, call in enumerate(data.draw(st.lists(st.sampled_from(calls), max_size=4))):
        line = f"v{k} = aten.{call.format(last)}"
        try:
            parse("\n  ".join(["fx.graph 1 @p", *lines, line, "return x"]))
        except ParseError:  # bools are not negated, nothing has no maximum
            continue
        lines, last = [*lines, line], f"v{k}"
    gm = parse("\n  ".join(["fx.graph 1 @p", *lines, f"return {last}"]))
    text = show(gm)
    assert show(parse(text)) == text
    bare = re.sub(r"^(  \w+): [^=]*(?= = )", r"\1", text, flags=re.M)
    assert show(parse(bare)) == text


GRAPH = """fx.graph 1 @main
  fact s0 in [2, 64]
  in n: size s0
  in x: f32[s0, 8] on cpu
  graph inner key inner
  a = aten.add.Tensor (x, n) {alpha=2} from "model.py:3 in forward" "x + 2 * n"
  return a
  fx.graph 1 @inner
    in y: f32[8] on cpu
    return y
"""


def test_parts_of_the_form():
    gm = parse(GRAPH)
    n, x, inner, a, _ = gm.graph.nodes
    symbol = n.meta["val"].node
    assert symbol.hint == 8 and symbol.shape_env.var_to_range[symbol.expr].upper == 64
    assert x.meta["val"].shape[0] == n.meta["val"] and x.meta["val"].stride() == (8, 1)
    assert isinstance(getattr(gm, inner.target), torch.fx.GraphModule)
    assert a.args == (x, n) and a.kwargs == {"alpha": 2}
    assert 'File "model.py", line 3, in forward' in a.meta["stack_trace"]
    assert a.meta["val"].shape[0] == n.meta["val"]
    assert 'from "model.py:3 in forward" "x + 2 * n"' in show(gm)


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "message"),
    [
        ("graph 1", "graph 2", "GY-PARSE-002", 1, "expected version 1"),
        ("s0 in [2, 64]", "s0 multiple 2", "GY-PARSE-001", 2, "a range or a hint"),
        ("size s0", "size r0", "GY-PARSE-003", 3, "neither a size"),
        ("f32[s0, 8]", "f3[s0, 8]", "GY-PARSE-001", 4, "an element type"),
        ("on cpu\n  graph", "on moon\n  graph", "GY-PARSE-003", 4, "moon"),
        (
            "f32[s0, 8] on cpu",
            "<python Thing>",
            "GY-LOWER-041",
            4,
            "this Thing cannot be expressed",
        ),
        ("key inner", "key outer", "GY-PARSE-001", 5, "the name of a graph below"),
        ("aten.add.Tensor", "aten.add.Nonsense", "GY-LOWER-043", 6, "no function"),
        ("aten.add.Tensor", "os.system", "GY-LOWER-043", 6, "no function 'os.system'"),
        ("aten.add.Tensor", "torch.load", "GY-LOWER-043", 6, "no function 'torch.load'"),
        ("(x, n)", "(x, m)", "GY-PARSE-001", 6, "the name of a node above, got 'm'"),
        ("(x, n)", "(x, (s0))", "GY-PARSE-001", 6, "a node that computes this size"),
        ("(x, n)", "(x, <dtype f32>)", "GY-LOWER-041", 6, "this f32 cannot be expressed"),
        ("(x, n)", "(x, [n])", "GY-LOWER-042", 6, "PyTorch cannot compute this"),
        ('* n"', '* n" more', "GY-PARSE-001", 6, "the end of the line"),
        ("model.py:3 in forward", "model.py", "GY-PARSE-001", 6, "`file:line in function`"),
        ("  a = ", "  x = ", "GY-PARSE-001", 6, "a name that is neither taken"),
        ("  a = ", "  a ", "GY-PARSE-001", 6, "expected `name = function"),
        ("  return a\n", "", "GY-PARSE-001", 1, "expected one `return`"),
    ],
)
def test_errors_name_the_line(old, new, code, line, message):
    text = GRAPH.replace(old, new, 1)
    assert text != GRAPH
    with pytest.raises(ParseError, match=re.escape(message)) as caught:
        parse(text)
    assert caught.value.diagnostic.code == code
    assert caught.value.diagnostic.where.startswith(f"line {line}: ")


def test_inexpressible_objects_are_printed_and_refused():
    gm = parse(GRAPH)
    add = gm.graph.output_node().prev
    add.target = len
    add.kwargs = {"alpha": object()}
    text = show(gm)
    assert "= builtins.len (x, n) {alpha=<python" in text
    with pytest.raises(ParseError, match="GY-LOWER-043"):
        parse(text)
