"""Origins: the user's line of code and the module that an FX node comes from."""

import os
import re
from typing import Any

import torch
from attrs import field
from torch.fx import Node

from gyrator_ir.define import define
from gyrator_ir.provenance import Origin

_FRAME = re.compile(r'  File "([^"]*)", line (\d+), in (.*)')
_TORCH = os.path.dirname(torch.__file__) + os.sep
_ROOT = re.compile(r"L\['\w+'\]")
_MEMBER = re.compile(r"\._modules\['(\w+)'\]|\[(\d+)\]")


@define
class Locator:
    """Creates origins; a stack trace shared by many nodes is parsed once."""

    _memo: dict[str, tuple[str, str]] = field(factory=dict)

    def origin(self, node: Node) -> Origin:
        """Return the origin of a node."""
        trace = node.meta.get("stack_trace") or ""
        location = self._memo.get(trace)
        if location is None:
            location = self._memo[trace] = innermost(trace)
        return Origin(node.name, str(node.target), *location, module_path(node))


def innermost(trace: Any) -> tuple[str, str]:
    """Return `file:line in function` and the source line of the user's frame of a stack trace: the
    last one outside of PyTorch, or the last one if all are inside."""
    lines = str(trace).rstrip().splitlines()
    lines_with_code = zip(map(_FRAME.match, lines), [*lines[1:], ""], strict=False)
    frames = [(frame, code) for frame, code in lines_with_code if frame]
    if not frames:
        return "", ""
    users = [pair for pair in frames if not pair[0][1].startswith(_TORCH)]
    frame, code = (users or frames)[-1]
    return f"{frame[1]}:{frame[2]} in {frame[3]}", code.strip()


def module_path(node: Node) -> str:
    """Return the path of the `nn.Module` whose call, or whose backward pass, created a node:
    `encoder.layers.0`. Empty outside of modules and in the root module."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return _MEMBER.sub(r".\1\2", _ROOT.sub("", str(path), count=1)).removeprefix(".")
