"""Gyrator hands its host programs to a back end that knows only torch."""

import pytest
import torch
from gyrator_graphs import Metered

import gyrator


@pytest.mark.parametrize("name", ["metered", "gyrator_graphs:compile_graph"])
def test_programs_run_node_by_node(name, monkeypatch, tmp_path):
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path))
    made, start = [], Metered.__init__

    def noted(self, module):
        made.append(self)
        start(self, module)

    monkeypatch.setattr(Metered, "__init__", noted)
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
    twin = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
    twin.load_state_dict(model.state_dict())
    options = {"wrapper": "fx", "fx_compiler": name, "strict": True}
    with gyrator.Session(options=options) as session:
        fast = torch.compile(model, backend=session.backend)
        x = torch.randn(3, 6)
        fast(x).square().sum().backward()
        twin(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert len(made) == 2  # the forward and the backward program
    launches = [n for m in made for n in m.module.graph.nodes if "launch" in str(n.target)]
    assert launches and all(m.nanoseconds for m in made)
