"""What oneDNN can compute of each element of a product or a convolution before it is stored."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from attrs import frozen
from torch.fx import Node

aten = torch.ops.aten
_SAME_ELEMENTS = (aten.view.default, aten._unsafe_view.default)


@frozen
class Activation:
    """A function of one number, in the words of oneDNN's calls."""

    attr: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""

    @property
    def arguments(self) -> tuple[str, list[float], str]:
        """The last arguments of a call."""
        return self.attr, list(self.scalars), self.algorithm

    def in_aten(self, x: torch.Tensor) -> torch.Tensor:
        """Return what ATen computes."""
        result: torch.Tensor = _ATEN[self.attr](x, *self.scalars, **_NAMED.get(self.algorithm, {}))
        return result


NOTHING = Activation("none")

_ATEN: Mapping[str, Callable[..., torch.Tensor]] = MappingProxyType({
    "none": lambda x: x,
    "relu": aten.relu.default,
    "leaky_relu": aten.leaky_relu.default,
    "hardtanh": aten.hardtanh.default,
    "gelu": aten.gelu.default,
    "swish": aten.silu.default,
    "tanh": aten.tanh.default,
    "sigmoid": aten.sigmoid.default,
    "hardswish": aten.hardswish.default,
    "hardsigmoid": aten.hardsigmoid.default,
})  # fmt: skip
_ATTRS = {op: attr for attr, op in _ATEN.items() if attr != "none"}
_NAMED = {name: {"approximate": name} for name in ("none", "tanh")}
_DEFAULTS = {"leaky_relu": (0.01,), "hardtanh": (-1.0, 1.0)}


def activation_of(node: Node) -> Activation | None:
    """Return what a node computes of each element of its argument, if oneDNN knows it."""
    attr = _ATTRS.get(node.target)  # type: ignore[arg-type]  # a key that is absent
    if attr is None:
        return None
    if attr == "gelu":
        return Activation(attr, (), str(node.kwargs.get("approximate", "none")))
    given, defaults = node.args[1:], _DEFAULTS.get(attr, ())
    scalars = (*given, *defaults[len(given) :])
    if node.kwargs or not all(type(s) in (int, float) for s in scalars):
        return None
    return Activation(attr, tuple(float(s) for s in scalars))  # type: ignore[arg-type]  # as above


def only_reader(node: Node) -> Any:
    """Return the one node that reads another's elements, behind views; None if there are more."""
    users = list(node.users)
    if len(users) != 1:
        return None
    return only_reader(users[0]) if users[0].target in _SAME_ELEMENTS else users[0]


def readers(node: Node) -> set[Any]:
    """Return what reads the elements of a node, behind views."""
    found: set[Any] = set()
    for user in node.users:
        found |= readers(user) if user.target in _SAME_ELEMENTS else {user}
    return found
