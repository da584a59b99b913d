"""Functions that all of torch's tracers record as a single call.

The functions in a graph must survive retracing. `torch.fx.symbolic_trace` and
`torch.fx.Transformer` pass proxies, `make_fx` records in a dispatch mode, and fake tensors have no
data. `leaf` handles these cases, so that a function only has to support real tensors.
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


class _Content(Enum):
    """The most abstract kind of value among the arguments of a call."""

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
        fake: the function for fake tensors and symbolic sizes; None to use the function itself.
        opaque: whether `make_fx` also records a single call instead of the dispatcher ops of the
            function.
        pure: whether dead code elimination may remove a call whose result is not used.
    """

    def decorate(function: F) -> F:
        on_fakes = fake or function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            content = _scan((*args, *kwargs.values()))
            if content is _Content.PROXY:
                every = pytree.tree_leaves((args, kwargs))
                proxies = [a for a in every if isinstance(a, torch.fx.Proxy)]
                return torch.overrides.handle_torch_function(call, proxies, *args, **kwargs)
            chosen = on_fakes if content is _Content.FAKE else function
            mode = get_proxy_mode() if opaque else None
            if mode is None:
                return chosen(*args, **kwargs)
            return _record(mode, call, chosen, args, kwargs)

        if not pure:
            has_side_effect(call)
        return cast(F, call)

    return decorate


def _scan(values: Iterable[Any]) -> _Content:
    content = _Content.REAL
    for value in values:
        kind = value.__class__
        if kind in _PLAIN:
            continue
        if issubclass(kind, tuple | list):
            inner = _scan(value)
            if inner is _Content.PROXY:
                return inner
            content = inner if content is _Content.REAL else content
        elif issubclass(kind, torch.fx.Proxy):
            return _Content.PROXY
        elif issubclass(kind, _SYMBOLIC):
            content = _Content.FAKE
    return content


def _record(
    mode: Any,
    target: Callable[..., Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call under `make_fx`, and record it as one node."""
    with disable_proxy_modes_tracing():
        result = function(*args, **kwargs)
    tracer = mode.tracer
    # torch's tracer does not track streams and events.
    tracked: dict[int, tuple[Any, Any]] = vars(tracer).setdefault("gyrator_tracked", {})

    def proxied(value: Any) -> Any:
        if isinstance(value, torch.Stream | torch.Event):
            return tracked[id(value)][1]
        if isinstance(value, torch.nn.Module):
            return tracer.create_proxy("get_attr", _attribute(tracer, value), (), {})
        return tracer.unwrap_proxy(value)

    passed = pytree.tree_map(proxied, (args, kwargs))
    node = tracer.create_proxy("call_function", target, *passed, name=target.__name__)
    if isinstance(result, torch.Stream | torch.Event):
        tracked[id(result)] = (result, node)
        return result
    return track_tensor_tree(result, node, constant=None, tracer=tracer)


def _attribute(tracer: Any, module: torch.nn.Module) -> str:
    """Return the path of a module under the root of a trace, adding it if necessary."""
    for path, submodule in tracer.root.named_modules():
        if submodule is module:
            return str(path)
    name = str(tracer.get_fresh_qualname("carried"))
    tracer.root.add_module(name, module)
    return name
