"""A graph that passes have changed in place becomes again what it was."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.graphs.snapshot import Snapshot
from gyrator_lowering.fx_text import show

aten = torch.ops.aten


def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    high, low = torch.topk(x * 2 + y, k=2)
    return [torch.cat([high, x], 1), low]


def test_a_changed_graph_is_restored() -> None:
    x, y = torch.randn(3, 4), torch.randn(4)
    gm = make_fx(f, tracing_mode="fake")(x, y)
    text, names = show(gm), [n.name for n in gm.graph.nodes]
    before = Snapshot.of(gm.graph)

    first = next(n for n in gm.graph.nodes if n.target is aten.mul.Tensor)
    first.target, first.args, first.meta["val"] = aten.add.Tensor, (first.args[0], 5), None
    cat = next(n for n in gm.graph.nodes if n.target is aten.cat.default)
    cat.replace_all_uses_with(first)
    gm.graph.erase_node(cat)
    assert show(gm) != text

    gm.graph = before.restored()
    gm.graph.lint()
    assert show(gm) == text
    assert [n.name for n in gm.graph.nodes] == names
    torch.testing.assert_close(gm(x, y), f(x, y))
