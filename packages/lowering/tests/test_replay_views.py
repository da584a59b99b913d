"""Results that are views of a value that replaces an argument become views of the argument."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_lowering.fx_passes.views.replay_views import ReplayViews

CHAINS = {
    "slice": lambda y: y[1:],
    "part": lambda y: y.split(2)[1],
    "several": lambda y: y[1:].t().unsqueeze(0).narrow(1, 0, 2),
    "strided": lambda y: y.as_strided((2, 3), (3, 1), 4),
}


def _traced(function, *tensors):
    mode = FakeTensorMode()
    with mode:
        return make_fx(function)(*[mode.from_tensor(t) for t in tensors])


@pytest.mark.parametrize("name", CHAINS)
def test_views_are_replayed_on_the_argument(name):
    view, x = CHAINS[name], torch.randn(5, 6)[:, 1:4]
    graph = _traced(lambda x: [x + 1, view(x + 1)], x)
    assert ReplayViews({1: 0}).run(graph)
    graph.recompile()
    total, result = graph(x)
    torch.testing.assert_close(total, x + 1)
    expected = view(x)
    assert torch.equal(result, expected) and result.stride() == expected.stride()
    assert result.data_ptr() == expected.data_ptr()


def test_others_are_left_alone():
    x, y = torch.randn(5, 6), torch.randn(6, 5)
    graph = _traced(lambda x, y: [x[1:], (x + 1)[1:], y.exp()], x, y)
    before = str(graph.graph)
    # a view of the argument already; a value of other sizes; no view
    assert not ReplayViews({0: 0, 1: 1, 2: 1}).run(graph)
    assert not ReplayViews().run(graph)
    assert str(graph.graph) == before
