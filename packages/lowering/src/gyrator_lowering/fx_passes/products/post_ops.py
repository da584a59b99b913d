"""Elementwise functions that oneDNN can apply to a product or a convolution before storing it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from gyrator_ir.define import frozen
from gyrator_lowering.torch_bridge.kernel_ops import FUNCTIONS

aten = torch.ops.aten
_SAME_ELEMENTS = (aten.view.default, aten._unsafe_view.default)


@frozen
class Activation:
    """An elementwise function, as arguments of oneDNN's calls."""

    attr: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""

    @property
    def arguments(self) -> tuple[str, list[float], str]:
        """The last arguments of a call."""
        return self.attr, list(self.scalars), self.algorithm

    def in_aten(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the function with ATen."""
        result: torch.Tensor = _ATEN[self.attr](x, *self.scalars, **_NAMED.get(self.algorithm, {}))
        return result


NOTHING = Activation("none")

_ATEN: Mapping[str, Callable[..., torch.Tensor]] = MappingProxyType(
    {**FUNCTIONS, "gelu": aten.gelu.default}
)
_ATTRS = {op: attr for attr, op in _ATEN.items() if attr != "none"}
_NAMED = {name: {"approximate": name} for name in ("none", "tanh")}
_DEFAULTS = {"leaky_relu": (0.01,), "hardtanh": (-1.0, 1.0)}


def activation_of(node: Node) -> Activation | None:
    """Return the elementwise function that a node computes, if oneDNN supports it."""
    attr = _ATTRS.get(node.target)  # type: ignore[arg-type]  # a key that is absent
    if attr is None:
        return None
    if attr == "gelu":
        return Activation(attr, (), str(node.kwargs.get("approximate", "none")))
    scalar_args, defaults = node.args[1:], _DEFAULTS.get(attr, ())
    scalars = (*scalar_args, *defaults[len(scalar_args) :])
    if node.kwargs or not all(type(s) in (int, float) for s in scalars):
        return None
    return Activation(attr, tuple(float(s) for s in scalars))  # type: ignore[arg-type]  # as above


def only_reader(node: Node) -> Any:
    """Return the only reader of a node's elements, looking through views; None if there are
    several."""
    users = list(node.users)
    if len(users) != 1:
        return None
    return only_reader(users[0]) if users[0].target in _SAME_ELEMENTS else users[0]


def readers(node: Node) -> set[Any]:
    """Return the readers of a node's elements, looking through views."""
    result: set[Any] = set()
    for user in node.users:
        result |= readers(user) if user.target in _SAME_ELEMENTS else {user}
    return result
