"""Functions that every tracer of torch keeps as one call.

A graph's own functions must survive a second trace. `torch.fx.symbolic_trace` and
`torch.fx.Transformer` pass proxies, `make_fx` watches from a dispatch mode, and fake tensors have
no data. `leaf` sorts these cases out, so that a function is written for real tensors only.
"""

import functools
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    track_tensor_tree,
)
from torch.fx.node import has_side_effect
from torch.utils import _pytree as pytree

F = TypeVar("F", bound=Callable[..., Any])


class _Found(Enum):
    """What the arguments of a call hold."""

    REAL = 0
    FAKE = 1
    PROXY = 2


_SYMBOLIC = (FakeTensor, torch.SymInt, torch.SymBool)
_PLAIN = frozenset({int, str, bool, float, torch.Tensor, type(None)})


def leaf(
    fake: Callable[..., Any] | None = None, *, opaque: bool = True, pure: bool = False
) -> Callable[[F], F]:
    """Decorate a function that graphs call.

    Args:
        fake: what the function does on fake tensors and symbolic sizes; None for the same.
        opaque: `make_fx` records one call, too, and not the dispatcher ops that the function runs.
        pure: dead code elimination may drop a call whose result is not used.
    """

    def decorate(function: F) -> F:
        on_fakes = fake or function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            found = _scan((*args, *kwargs.values()))
            if found is _Found.PROXY:
                every = pytree.tree_leaves((args, kwargs))
                proxies = [a for a in every if isinstance(a, torch.fx.Proxy)]
                return torch.overrides.handle_torch_function(call, proxies, *args, **kwargs)
            chosen = on_fakes if found is _Found.FAKE else function
            mode = get_proxy_mode() if opaque else None
            if mode is None:
                return chosen(*args, **kwargs)
            return _record(mode, call, chosen, args, kwargs)

        if not pure:
            has_side_effect(call)
        return cast(F, call)

    return decorate


def _scan(values: Iterable[Any]) -> _Found:
    found = _Found.REAL
    for value in values:
        kind = value.__class__
        if kind in _PLAIN:
            continue
        if issubclass(kind, tuple | list):
            inner = _scan(value)
            if inner is _Found.PROXY:
                return inner
            found = inner if found is _Found.REAL else found
        elif issubclass(kind, torch.fx.Proxy):
            return _Found.PROXY
        elif issubclass(kind, _SYMBOLIC):
            found = _Found.FAKE
    return found


def _record(
    mode: Any,
    target: Callable[..., Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call under `make_fx`, which records it as one node."""
    with disable_proxy_modes_tracing():
        result = function(*args, **kwargs)
    tracer = mode.tracer
    # Streams and events are no values that torch's tracer follows.
    followed: dict[int, tuple[Any, Any]] = vars(tracer).setdefault("gyrator_followed", {})

    def proxied(value: Any) -> Any:
        if isinstance(value, torch.Stream | torch.Event):
            return followed[id(value)][1]
        if isinstance(value, torch.nn.Module):
            return tracer.create_proxy("get_attr", _attribute(tracer, value), (), {})
        return tracer.unwrap_proxy(value)

    passed = pytree.tree_map(proxied, (args, kwargs))
    node = tracer.create_proxy("call_function", target, *passed, name=target.__name__)
    if isinstance(result, torch.Stream | torch.Event):
        followed[id(result)] = (result, node)
        return result
    return track_tensor_tree(result, node, constant=None, tracer=tracer)


def _attribute(tracer: Any, module: torch.nn.Module) -> str:
    """Return the path of a module under the root of a trace, putting it there if need be."""
    for path, known in tracer.root.named_modules():
        if known is module:
            return str(path)
    name = str(tracer.get_fresh_qualname("carried"))
    tracer.root.add_module(name, module)
    return name
