"""Nodes have the user's source line and the module that they come from."""

import os

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_lowering.fx_text import parse, show
from gyrator_lowering.torch_bridge.origins import Locator, innermost

USER = '  File "model.py", line 12, in forward\n    return self.act(x)\n           ^^^^^^^^'
INSIDE = os.path.join(os.path.dirname(torch.__file__), "nn", "functional.py")
TORCH = f'  File "{INSIDE}", line 1700, in relu\n    return torch.relu(input)'
NOTE = "Gradient addition node due to multiple use of tensor around:"


@pytest.mark.parametrize("frames", [(USER,), (USER, TORCH), (TORCH, USER, TORCH), (USER, NOTE)])
def test_the_line_is_the_users(frames):
    assert innermost("\n".join(frames)) == ("model.py:12 in forward", "return self.act(x)")


def test_lines_of_pytorch_are_the_fallback():
    assert innermost(TORCH) == (f"{INSIDE}:1700 in relu", "return torch.relu(input)")
    assert innermost(TORCH.partition("\n")[0]) == (f"{INSIDE}:1700 in relu", "")
    assert innermost("") == innermost("no frame") == ("", "")


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("L['self'].blocks.0.norm", "blocks.0.norm"),
        ("L['fn'][3]", "3"),
        ("L['self']._modules['layers'][1].act", "layers.1.act"),
        ("L['self']", ""),
        ("encoder.layers.0", "encoder.layers.0"),
    ],
)
@pytest.mark.parametrize("key", ["nn_module_stack", "fwd_nn_module_stack"])
def test_modules(path, module, key):
    gm = make_fx(lambda x: x.relu())(torch.ones(2))
    (node,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    node.meta[key] = {"1": ("L['self']", object), "2": (path, object)}
    assert Locator().origin(node).module == module
    text = show(gm)
    (again,) = parse(text).graph.find_nodes(op="call_function", target=node.target)
    assert show(parse(text)) == text and Locator().origin(again).module == module
