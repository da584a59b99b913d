"""Arguments that torch's fake kernels accept and its real ones refuse, seen from Dynamo's graph."""

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node


def refused(node: Node, name: str) -> str:
    """Say what of a call's arguments eager mode refuses; nothing where tracing says so itself.

    Args:
        name: of the function or method.
    """
    if name in _COUNTING:
        return _counts(node, name)
    if name == _LOGITS:
        return _loss_of_logits(node)
    check = _CHECKS.get(name)
    if check is None or not node.args or getattr(node.target, "__module__", "") == _MASKED:
        return ""
    args, kwargs = torch.fx.map_arg(
        (node.args, dict(node.kwargs)), lambda n: n.meta.get("example_value")
    )
    x = args[0]
    return check(x, args, kwargs) if isinstance(x, torch.Tensor) else ""


_COUNTING = frozenset({"unique", "unique_consecutive", "bincount"})


def _counts(node: Node, name: str) -> str:
    """Find counts and places that torch before 2.12 traces in the element type of the values."""
    made = node.meta.get("example_value")
    weighed = len(node.args) > 1 or node.kwargs.get("weights") is not None
    if isinstance(made, torch.Tensor):
        numbers = [made] if name == "bincount" and not weighed else []
    else:
        numbers = list(made or ())[1:]
    wrong = any(n.dtype is not torch.int64 for n in numbers)
    return "is traced with counts of another element type" if wrong else ""


_LOGITS = "binary_cross_entropy_with_logits"


def _loss_of_logits(node: Node) -> str:
    """Find a loss that torch before 2.12 traces in the logits' element type, not the target's."""
    target = node.args[1] if len(node.args) > 1 else node.kwargs.get("target")
    given = target.meta.get("example_value") if isinstance(target, Node) else None
    made = node.meta.get("example_value")
    if not isinstance(given, torch.Tensor) or not isinstance(made, torch.Tensor):
        return ""
    wrong = made.dtype is not given.dtype
    return "is traced with a result of another element type" if wrong else ""


_MASKED = "torch.masked._ops"
"""Where functions have names of torch's own, and take more."""

_Check = Callable[[torch.Tensor, tuple[Any, ...], Mapping[str, Any]], str]


def _given(args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _dimension(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    dim = _given(args, kwargs, 1, "dim")
    count = max(x.dim(), 1)
    if type(dim) is int and not -count <= dim < count:
        return "names a dimension that its tensor does not have"
    return ""


def _of_floats(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return "" if x.dtype.is_floating_point or x.dtype.is_complex else "takes floats alone"


def _places(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    index = _given(args, kwargs, 2, "index")
    if isinstance(index, torch.Tensor) and index.dtype not in (torch.int32, torch.int64):
        return f"takes places of type {index.dtype}"
    return ""


def _values(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    values = _given(args, kwargs, 2, "values")
    if isinstance(values, torch.Tensor) and values.dtype is not x.dtype:
        return f"puts {values.dtype} into {x.dtype}"
    return ""


def _classes(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    target = _given(args, kwargs, 1, "target")
    if not isinstance(target, torch.Tensor) or target.dtype in (torch.int64, torch.uint8):
        return ""
    return "" if target.dtype.is_floating_point else f"takes classes of type {target.dtype}"


def _numbers(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return "" if x.dtype is torch.int64 else f"takes classes of type {x.dtype}"


def _effect(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return "" if len(args) + len(kwargs) > 1 else "without a message is lost in tracing"


def _turn(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    beta = _given(args, kwargs, 5, "beta")
    return "has a negative beta" if isinstance(beta, int | float) and beta < 0 else ""


def _chance(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    p = _given(args, kwargs, 1, "p")
    wrong = isinstance(p, int | float) and not 0 <= p <= 1
    return "takes probabilities from 0 to 1" if wrong else ""


def _cast(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    other = _given(args, kwargs, 1, "other")
    if not isinstance(other, torch.Tensor | int | float | complex):
        return ""
    result = torch.result_type(x, other)
    return "" if torch.can_cast(result, x.dtype) else f"writes {result} into {x.dtype}"


_CHECKS: Mapping[str, _Check] = MappingProxyType(
    dict.fromkeys(("softmax", "log_softmax", "softmin", "sort", "argsort"), _dimension)
    | dict.fromkeys(("var", "std", "var_mean", "std_mean"), _of_floats)
    | dict.fromkeys(("index_put", "index_put_"), _values)
    | dict.fromkeys(("cross_entropy", "nll_loss"), _classes)
    | dict.fromkeys(("add_", "sub_", "mul_"), _cast)
    | {f.__name__: _cast for f in (operator.iadd, operator.isub, operator.imul)}
    | {"index_select": _places, "smooth_l1_loss": _turn, "one_hot": _numbers}
    | {"_assert_async": _effect, "bernoulli": _chance, "bernoulli_": _chance}
)
