"""Checks of Dynamo's calls for arguments that torch's fake kernels accept and real ones reject."""

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from gyrator.frontend.dynamo.graph import fake_of, name_of
from gyrator_ir.types import HOST


def refused(node: Node, name: str) -> str:
    """Return why eager mode rejects the arguments of a call; empty if it does not, or if tracing
    raises by itself.

    Args:
        name: the name of the function or method.
    """
    if name in _COUNTING_OPS:
        return _counts(node, name)
    if node.target in QUANTISING:
        return "makes a quantised tensor, which is traced as one of floats"
    if name == _LOGITS_LOSS:
        return _loss_of_logits(node)
    if name in _DIFFERENCES and (why := _of_booleans(node)):
        return why
    if name in _CHOOSING_OPS and _is_traced(node):
        return ""
    check = _CHECKS.get(name) or _CHECKS.get(node.target)
    if check is None or getattr(node.target, "__module__", "") == _MASKED:
        return ""
    nodes, named = node.args, dict(node.kwargs)
    if not nodes and "input" in named:
        nodes = (named.pop("input"),)
    args, kwargs = torch.fx.map_arg((nodes, named), lambda n: n.meta.get("example_value"))
    x = args[0] if args else None
    return check(x, args, kwargs) if isinstance(x, torch.Tensor) else ""


QUANTISING = frozenset(
    {torch.quantize_per_tensor, torch.quantize_per_tensor_dynamic, torch.quantize_per_channel}
)
"""Functions that return quantised tensors; those of `quantized_decomposed` return integers."""
_COUNTING_OPS = frozenset({"unique", "unique_consecutive", "bincount"})


def _counts(node: Node, name: str) -> str:
    """Detect counts and indices that torch before 2.12 traces with the dtype of the values."""
    result = node.meta.get("example_value")
    weighed = len(node.args) > 1 or node.kwargs.get("weights") is not None
    if isinstance(result, torch.Tensor):
        numbers = [result] if name == "bincount" and not weighed else []
    else:
        numbers = list(result or ())[1:]
    wrong = any(n.dtype is not torch.int64 for n in numbers)
    return "is traced with counts of the wrong dtype" if wrong else ""


_LOGITS_LOSS = "binary_cross_entropy_with_logits"


def _loss_of_logits(node: Node) -> str:
    """Detect a loss that torch before 2.12 traces with the dtype of the logits, not the
    target's."""
    target = node.args[1] if len(node.args) > 1 else node.kwargs.get("target")
    labels = target.meta.get("example_value") if isinstance(target, Node) else None
    result = node.meta.get("example_value")
    if not isinstance(labels, torch.Tensor) or not isinstance(result, torch.Tensor):
        return ""
    wrong = result.dtype is not labels.dtype
    return "is traced with a result of the wrong dtype" if wrong else ""


_MASKED = "torch.masked._ops"
"""A module whose functions have the names of torch's own, but other parameters."""

_Check = Callable[[torch.Tensor, tuple[Any, ...], Mapping[str, Any]], str]


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], index: int, name: str) -> Any:
    return args[index] if len(args) > index else kwargs.get(name)


def _dimension(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    dim = _argument(args, kwargs, 1, "dim")
    count = max(x.dim(), 1)
    if type(dim) is int and not -count <= dim < count:
        return "has a dimension out of range"
    return ""


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _of_floats(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return "" if _is_inexact(x.dtype) else "requires a floating-point or complex tensor"


def _of_real_floats(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return "" if x.dtype.is_floating_point else "requires a floating-point tensor"


def _some_floats(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    inexact = any(map(_is_inexact, _dtypes(args, kwargs)))
    return "" if inexact else "requires a floating-point tensor"


def _on_host(dtype: torch.dtype, *, least_rank: int = 0) -> _Check:
    """Return the check of an op whose kernels for the CPU lack a dtype."""

    def check(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        lacking = x.device.type == HOST and x.dtype is dtype and x.dim() >= least_rank
        return f"has no kernel for {dtype} on CPUs" if lacking else ""

    return check


def _first(*checks: _Check) -> _Check:
    """Return the check that gives the first reason of several."""

    def check(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return next(filter(None, (c(x, args, kwargs) for c in checks)), "")

    return check


def _resized(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    mode = _argument(args, kwargs, 3, "mode")
    in_bytes = x.dtype is torch.uint8 and mode not in ("linear", "trilinear")
    return "" if in_bytes or mode == "area" else _of_real_floats(x, args, kwargs)


def _mirrored(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    mode = _argument(args, kwargs, 2, "mode")
    return "does not mirror booleans" if mode == "reflect" and x.dtype is torch.bool else ""


def _clamped(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Detect booleans between two bounds; one bound alone is a maximum or minimum."""
    bounds = (_argument(args, kwargs, 1, "min"), _argument(args, kwargs, 2, "max"))
    dtypes = {b.dtype if isinstance(b, torch.Tensor) else type(b) for b in bounds}
    wrong = x.dtype is torch.bool and dtypes <= {torch.bool, bool}
    return "does not accept booleans" if wrong else ""


def _quotient(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Detect the quotient of two tensors of integers."""
    parts = (_argument(args, kwargs, 1, "tensor1"), _argument(args, kwargs, 2, "tensor2"))
    tensors = [p for p in parts if isinstance(p, torch.Tensor)]
    inexact = any(_is_inexact(t.dtype) for t in tensors)
    return "divides integers" if len(tensors) == len(parts) and not inexact else ""


def _all_booleans(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return "does not accept booleans" if _dtypes(args, kwargs) == {torch.bool} else ""


def _index_dtype(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    index = _argument(args, kwargs, 2, "index")
    if isinstance(index, torch.Tensor) and index.dtype not in (torch.int32, torch.int64):
        return f"does not accept indices of type {index.dtype}"
    return ""


def _same_dtype(index: int, name: str) -> _Check:
    """Return the check of an op that reads elements of an argument without a conversion."""

    def check(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        values = _argument(args, kwargs, index, name)
        if isinstance(values, torch.Tensor) and values.dtype is not x.dtype:
            return f"has a {name} of {values.dtype} for a tensor of {x.dtype}"
        return ""

    return check


def _one_dtype(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    same = _dtypes(args, kwargs) <= {x.dtype} or _is_autocast(x)
    return "" if same else "mixes dtypes"


def _no_integers(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    accepted = _is_inexact(x.dtype) or x.dtype is torch.bool
    return "" if accepted else "does not accept integers"


def _no_booleans(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return "does not accept booleans" if torch.bool in _dtypes(args, kwargs) else ""


def _norm_dtypes(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Detect parameters and statistics of a norm that are neither of the input's dtype nor, for an
    input of 16 bits, all `float32`; autocast converts them."""
    dtypes = _dtypes(args[1:], kwargs)
    narrow = x.dtype in (torch.bfloat16, torch.float16)
    if dtypes <= {x.dtype} or (narrow and dtypes == {torch.float32}) or _is_autocast(x):
        return ""
    return f"has parameters of other dtypes than {x.dtype}"


def _dtypes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[torch.dtype]:
    values = (*args, *kwargs.values())
    return {v.dtype for v in values if isinstance(v, torch.Tensor)}


def _is_autocast(x: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def _target_dtype(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    target = _argument(args, kwargs, 1, "target")
    if not isinstance(target, torch.Tensor) or target.dtype.is_floating_point:
        return ""
    if target.dtype not in (torch.int64, torch.uint8):
        return f"does not accept classes of type {target.dtype}"
    if not x.dtype.is_floating_point:
        return "requires floating-point logits"
    weight = _argument(args, kwargs, 2, "weight")
    mixed = isinstance(weight, torch.Tensor) and weight.dtype is not x.dtype
    return "has weights of another dtype" if mixed and not _is_autocast(x) else ""


def _class_dtype(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return "" if x.dtype is torch.int64 else f"does not accept classes of type {x.dtype}"


def _assertion(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return "" if len(args) + len(kwargs) > 1 else "without a message is dropped by tracing"


def _backwards(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Detect negative strides, which the fake kernel of torch 2.11 accepts."""
    strides = _argument(args, kwargs, 2, "stride")
    # Comparing a symbolic stride would add a guard.
    negative = any(isinstance(s, int) and s < 0 for s in strides or ())
    return "has negative strides" if negative else ""


def _negative_beta(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    beta = _argument(args, kwargs, 5, "beta")
    return "has a negative beta" if isinstance(beta, int | float) and beta < 0 else ""


def _probability(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    p = _argument(args, kwargs, 1, "p")
    if p is None and (why := _of_real_floats(x, args, kwargs)):
        return why
    wrong = isinstance(p, int | float) and not 0 <= p <= 1
    return "has a probability outside [0, 1]" if wrong else ""


def _threshold(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Detect a threshold that eager mode cannot convert; torch always traces a comparison with it,
    which accepts any number."""
    from gyrator_lowering.torch_bridge.dtypes import is_in_range  # which a warm start does without

    limit = _argument(args, kwargs, 1, "lambd")
    overflows = type(limit) in (int, float) and not is_in_range(limit, x.dtype)
    return f"has a threshold that overflows {x.dtype}" if overflows else ""


_DIFFERENCES = frozenset({"sub", "sub_", "subtract", "subtract_", "rsub", "isub", "_foreach_sub"})
"""Names of subtractions: functions, methods and operators, which have a number on either side."""


def _of_booleans(node: Node) -> str:
    """Detect booleans in a difference, which torch traces as numbers."""
    values = tree_leaves((node.args[:2], node.kwargs.get("other")))
    fakes = [fake_of(v) for v in values]
    tensors = [f for f in fakes if isinstance(f, torch.Tensor)]
    wrong = any(f is True or f is False for f in fakes) or torch.bool in {t.dtype for t in tensors}
    return "subtracts booleans" if tensors and wrong else ""


def _nonzero_alpha(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    alpha = _argument(args, kwargs, 1, "alpha")
    return "has an alpha of 0" if type(alpha) in (int, float) and alpha == 0 else ""


def _result_dtype(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    other = _argument(args, kwargs, 1, "other")
    if not isinstance(other, torch.Tensor | int | float | complex):
        return ""
    result = torch.result_type(x, other)
    return (
        ""
        if torch.can_cast(result, x.dtype)
        else f"writes a {result} result into a {x.dtype} tensor"
    )


_CHOOSING_OPS = frozenset({"max", "min", "median", "nanmedian", "mode"})
"""Ops that have no result for no elements. Tracing drops eager's error with the op if nothing but
the shape or the dtype of its result is used."""
_SHAPED_OPS = frozenset(
    {"size", "dim", "numel", "zeros_like", "ones_like", "empty_like", "full_like"}
    | {"new_zeros", "new_ones", "new_empty", "new_full"}
)
"""Ops that use only the shape, dtype and device of their first argument."""


def _is_traced(node: Node) -> bool:
    """Return whether the values of a node may reach a result or another tensor."""
    stack, seen = [node], {node}
    while stack:
        for user in stack.pop().users:
            name = name_of(user)
            if user.op == "output" or (name.endswith("_") and not name.startswith("_")):
                return True
            if user not in seen and name not in _SHAPED_OPS:
                seen.add(user)
                stack.append(user)
    return False


def _extremum(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Detect an extremum of no elements."""
    if len(args) + len(kwargs) > 1:
        return _along(x, args, kwargs)
    return _NO_ELEMENTS if any(_is_zero(size) for size in x.shape) else ""


def _along(x: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Detect a choice among the elements of an empty dimension."""
    dim = _argument(args, kwargs, 1, "dim")
    inside = type(dim) is int and -x.dim() <= dim < x.dim()
    return _NO_ELEMENTS if inside and _is_zero(x.shape[dim]) else ""


_NO_ELEMENTS = "has no elements to choose from"


def _is_zero(size: int | torch.SymInt) -> bool:
    """Return whether a size is known to be 0, without a guard."""
    return type(size) is int and size == 0


_UNPROMOTED = (
    "cross", "linalg_cross", "complex", "polar", "heaviside", "heaviside_", "binary_cross_entropy",
)  # fmt: skip
_WITHOUT_BOOLEANS = (
    "relu", "relu_", "threshold", "threshold_", "softsign", "tanhshrink", "abs", "abs_",
    "absolute", "absolute_", "floor", "floor_", "ceil", "ceil_", "trunc", "trunc_", "fix", "fix_",
    "round", "round_", "trace", "argmax", "argmin", "l1_loss", "pairwise_distance",
    "margin_ranking_loss", "multilabel_soft_margin_loss", "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
)  # fmt: skip
"""Ops that eager mode refuses for booleans, or that consist of differences."""
_OF_REAL_FLOATS = ("prelu", "special_round", "logit_", "ldexp_", "max_pool1d")
_SOURCE = _same_dtype(3, "source")
_WITHOUT_HALF = _on_host(torch.float16)
_OF_WIDE_FLOATS = _first(_of_real_floats, _WITHOUT_HALF)
_CHECKS: Mapping[Any, _Check] = MappingProxyType(
    dict.fromkeys(("softmax", "log_softmax", "softmin", "sort", "argsort"), _dimension)
    | dict.fromkeys(("var", "std", "var_mean", "std_mean"), _of_floats)
    | dict.fromkeys(("index_put", "index_put_"), _same_dtype(2, "values"))
    | dict.fromkeys(("index_add", "index_add_", "index_copy", "index_copy_"), _SOURCE)
    | dict.fromkeys(("layer_norm", "group_norm", "batch_norm", "instance_norm"), _norm_dtypes)
    | dict.fromkeys(_UNPROMOTED, _one_dtype)
    | dict.fromkeys(_WITHOUT_BOOLEANS, _no_booleans)
    | dict.fromkeys(_OF_REAL_FLOATS, _of_real_floats)
    | {"multi_margin_loss": _first(_OF_WIDE_FLOATS, _same_dtype(4, "weight"))}
    | {"multilabel_margin_loss": _OF_WIDE_FLOATS}
    | dict.fromkeys(("interpolate", "upsample"), _resized)
    | dict.fromkeys(("clamp", "clamp_", "clip", "clip_"), _clamped)
    | dict.fromkeys(("addcdiv", "addcdiv_"), _quotient)
    | {"pad": _mirrored, "logaddexp2": _some_floats, "soft_margin_loss": _of_floats}
    | {"poisson_nll_loss": _all_booleans}
    | dict.fromkeys(("as_strided", "as_strided_"), _backwards)
    | dict.fromkeys(("special_log_ndtr", "avg_pool3d"), _WITHOUT_HALF)
    | {"local_response_norm": _on_host(torch.float16, least_rank=4)}
    | dict.fromkeys(("nansum", "nanmean", "special_xlog1py"), _on_host(torch.complex64))
    | dict.fromkeys(("cross_entropy", "nll_loss"), _target_dtype)
    | dict.fromkeys(("add_", "sub_", "mul_"), _result_dtype)
    | {f.__name__: _result_dtype for f in (operator.iadd, operator.isub, operator.imul)}
    | {"index_select": _index_dtype, "smooth_l1_loss": _negative_beta, "one_hot": _class_dtype}
    | dict.fromkeys(("celu", "celu_"), _first(_of_real_floats, _nonzero_alpha))
    | {"hardshrink": _first(_of_real_floats, _threshold), "_assert_async": _assertion}
    | {"bernoulli": _probability, "bernoulli_": _probability}
    | dict.fromkeys(_CHOOSING_OPS, _along)
    | {"max": _extremum, "min": _extremum}
    | dict.fromkeys((torch.nn.functional.unfold, torch.nn.functional.fold), _no_integers)
)
"""By name; by function where a method of the same name is another op."""
