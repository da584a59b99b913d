"""What Dynamo saves of our graphs (`aot_compile`) runs in another process, which traces nothing."""

import sys
from pathlib import Path

import pytest
import torch
import torch_faults
from forked import run_forked

from gyrator.frontend.precompile import Precompiled
from gyrator_ir.diagnostics import GyratorError, UnsupportedError

pytestmark = torch_faults.SAVING
CHILD = """
import sys
import torch
from precompiled_functions import Net, pointwise

torch._dynamo.config.error_on_recompile = True
path, kind = sys.argv[1:]
with open(path, "rb") as file:
    found = torch.compiler.load_compiled_function(file)
given = torch.load(path + ".pt")
x = given["x"]
if kind == "function":
    torch.testing.assert_close(found(x), pointwise(x))
    if given["dynamic"]:
        longer = torch.randn(9, 16)
        torch.testing.assert_close(found(longer), pointwise(longer))
else:
    net = Net()
    net.load_state_dict(given["state"])
    found(net, x).sum().backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(got, [p.grad for p in net.parameters()])
assert not torch._dynamo.utils.counters["stats"], torch._dynamo.utils.counters
stages = [f"gyrator_{s}.stage" for s in ("lowering", "scheduler", "codegen_cpp")]
assert not [name for name in stages if name in sys.modules]
"""
FUNCTIONS = """
import torch
from torch import nn


def pointwise(x):
    return torch.softmax(torch.nn.functional.gelu(x) * 2, -1) + x.sum(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 8)

    def forward(self, x):
        return torch.tanh(self.a(x)) * 3
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """A module that both processes import."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "precompiled_functions.py").write_text(FUNCTIONS)
    sys.path.insert(0, str(folder))
    import precompiled_functions

    yield precompiled_functions
    sys.path.remove(str(folder))
    del sys.modules["precompiled_functions"]


def loaded_elsewhere(functions, path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(path.parent / "fresh"))
    done = run_forked(CHILD, [str(path), kind])
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("options", [{}, {"numerics": "fast", "fusion": False}])
def test_a_function(functions, dynamic, options, tmp_path, monkeypatch):
    x, path = torch.randn(4, 16), tmp_path / "saved"
    compiled = torch.compile(
        functions.pointwise, fullgraph=True, backend="gyrator", dynamic=dynamic, options=options
    )
    saved = compiled.aot_compile(((x,), {}))
    torch.testing.assert_close(saved(x), functions.pointwise(x))
    saved.save_compiled_function(str(path))
    torch.save({"x": x, "dynamic": dynamic}, f"{path}.pt")
    loaded_elsewhere(functions, path, "function", monkeypatch)


def test_a_training_step(functions, tmp_path, monkeypatch):
    net, x, path = functions.Net(), torch.randn(4, 16), tmp_path / "saved"
    saved = torch.compile(net.forward, fullgraph=True, backend="gyrator").aot_compile(((x,), {}))
    torch.testing.assert_close(saved(net, x), net(x))
    saved.save_compiled_function(str(path))
    torch.save({"x": x, "state": net.state_dict()}, f"{path}.pt")
    loaded_elsewhere(functions, path, "module", monkeypatch)


def reloaded(function, *inputs):
    """A function as it comes back from its bytes."""
    compiled = torch.compile(function, fullgraph=True, backend="gyrator")
    graph = compiled.aot_compile((inputs, {}))._artifacts.compiled_fn
    assert isinstance(graph, Precompiled)
    return Precompiled.deserialize_compile_artifacts(Precompiled.serialize_compile_artifacts(graph))


def test_what_a_loaded_function_cannot_do():
    x = torch.randn(3, requires_grad=True)
    (y,) = reloaded(lambda x: x.sin() * x, x)(x)
    with pytest.raises(GyratorError, match=r"GY-COMPILE-010.*it was loaded from a file"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    call = reloaded(lambda x: x.cos(), torch.randn(3))
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(GyratorError, match="GY-AOT-006: forward-mode derivatives"),
    ):
        call(torch.randn(3))


def test_what_cannot_be_saved():
    compiled = torch.compile(lambda x: (x.t(), x + 1), fullgraph=True, backend="gyrator")
    with pytest.raises((UnsupportedError, torch._dynamo.exc.BackendCompilerFailed)) as caught:
        compiled.aot_compile(((torch.randn(2, 3),), {}))
    assert "GY-AOT-006" in str(caught.value)


def test_bytes_that_do_not_fit(monkeypatch):
    x = torch.randn(5)
    compiled = torch.compile(lambda x: x.exp() - 1, fullgraph=True, backend="gyrator")
    graph = compiled.aot_compile(((x,), {}))._artifacts.compiled_fn
    data = Precompiled.serialize_compile_artifacts(graph)
    with pytest.raises(GyratorError, match="GY-CACHE-012"):
        Precompiled.deserialize_compile_artifacts(data[:-9])
    monkeypatch.setattr("gyrator.engine.engine.Engine.find", lambda *_: None)
    with pytest.raises(GyratorError, match="GY-CACHE-004"):
        Precompiled.deserialize_compile_artifacts(data)
