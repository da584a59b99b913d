"""The canonical form of a graph, as bytes: graphs with equal bytes compile to the same program."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from gyrator_lowering.folding import PACKED

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


def fills_empty() -> bool:
    """Return whether eager mode initialises the memory that `torch.empty` returns."""
    filled: bool = torch._C._get_deterministic_fill_uninitialized_memory()
    return filled and torch.are_deterministic_algorithms_enabled()


def graph_bytes(gm: GraphModule) -> bytes:
    """Return a canonical form of a graph: its nodes, their arguments, and the metadata of values.

    Names of nodes are replaced by positions, and source locations are ignored. Symbolic sizes are
    included with their names, ranges and hints.
    """
    number: dict[Node, int] = {}
    lines: list[str] = []
    symbols: dict[str, str] = {}
    for node in gm.graph.nodes:
        number[node] = len(number)
        args = _argument(node.args, number)
        kwargs = _argument(_keywords(node, lines), number)
        target = node.target if isinstance(node.target, str) else _name(node.target)
        name = "" if node.op in ("placeholder", "output", "call_function") else target
        op = target if node.op == "call_function" else node.op
        packed = " packed" if node.op == "placeholder" and node.meta.get(PACKED) else ""
        value = _value(node.meta.get("val"), symbols)
        lines.append(f"{op} {name} {args} {kwargs} : {value}{packed}{_kinds(node)}")
    for nested in gm.graph.nodes:
        if nested.op == "get_attr":
            lines.append(_attribute(gm, str(nested.target)))
    lines.extend(f"{name}: {facts}" for name, facts in sorted(symbols.items()))
    return "\n".join(lines).encode()


def _kinds(node: Node) -> str:
    """Return what AOTAutograd uses each result of a graph for: only results of the forward pass
    have to be objects of their own."""
    described = node.meta.get("desc", ()) if node.op == "output" else ()
    return "".join(f" {type(kind).__name__}" for kind in described)


def _launches(target: Any) -> bool:
    """Return whether a target launches a user's Triton kernel, which it refers to by an index."""
    higher = isinstance(target, torch._ops.HigherOrderOperator)
    return higher and target.__name__.startswith("triton_kernel_wrapper")


def _keywords(node: Node, lines: list[str]) -> Mapping[str, Any]:
    """Return the keywords of a node; the contents of process-specific indices are added to
    `lines`."""
    if not _launches(node.target):
        return node.kwargs
    # Imported only for graphs with such kernels.
    from gyrator_lowering.user_kernels.launches import launch_bytes

    lines.append(launch_bytes(node).decode())
    return {k: v for k, v in node.kwargs.items() if not k.endswith("_idx")}


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"


def _any(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"


def _argument(value: Any, number: Mapping[Node, int], leaf: Callable[[Any], str] = _any) -> str:
    """Return an argument of a node, in which nodes are numbers, and other values as `leaf`."""
    match value:
        case Node():
            return f"%{number[value]}"
        case tuple() | list():
            items = (_argument(v, number, leaf) for v in value)
            return f"{type(value).__name__}[{', '.join(items)}]"
        case dict():
            items = (f"{k}: {_argument(v, number, leaf)}" for k, v in value.items())
            return f"{{{', '.join(items)}}}"
        case slice():
            return f"slice({_argument((value.start, value.stop, value.step), number, leaf)})"
    return leaf(value)


def _value(value: Any, symbols: dict[str, str]) -> str:
    match value:
        case torch.Tensor():
            shape = _ints(value.shape, symbols)
            if value.layout is not torch.strided:
                return f"{value.layout} {value.dtype} {shape}"
            layout = f"{shape} {_ints(value.stride(), symbols)}"
            flags = f"{value.is_conj()} {value.is_neg()}"
            return f"{value.dtype} {value.device} {layout} {flags}"
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return _symbolic(value, symbols)
        case tuple() | list():
            return f"({', '.join(_value(v, symbols) for v in value)})"
        case _:
            return f"{type(value).__name__} {value!r}"


def _ints(sizes: Iterable[Any], symbols: dict[str, str]) -> str:
    return f"({', '.join(str(s) if isinstance(s, int) else _symbolic(s, symbols) for s in sizes)})"


def _symbolic(value: Any, symbols: dict[str, str]) -> str:
    node = value.node
    env = node.shape_env
    for symbol in node.expr.free_symbols:
        if symbol.name not in symbols:
            hint = env.backed_var_to_val.get(symbol)
            symbols[symbol.name] = f"{env.var_to_range.get(symbol)} hint {hint}"
    return str(node.expr)


def _attribute(gm: GraphModule, path: str) -> str:
    value = attrgetter(path)(gm)
    if isinstance(value, GraphModule):
        return f"{path} = {graph_bytes(value).decode()}"
    return f"{path} = {_value(value, {})}"


def traced_bytes(gm: GraphModule, inputs: Sequence[Any]) -> bytes | None:
    """Return a canonical form of a Dynamo graph and its inputs.

    Equal bytes give equal ATen graphs. Returns None for a graph for which that cannot be
    guaranteed: one with symbolic sizes or floats, attributes, nested graphs, inputs that share
    memory, or functions from outside torch.
    """
    number: dict[Node, int] = {}
    lines = [_environment()]
    for node in gm.graph.nodes:
        number[node] = len(number)
        # Tracing may take such a float's present value as a constant, and then adds a guard.
        example = node.meta.get("example_value")
        if isinstance(example, torch.SymFloat) and example.node.has_hint():
            return None
        if node.op == "call_function" and not is_torch_function(node.target):
            return None
        if node.op not in ("placeholder", "call_function", "call_method", "output"):
            return None
        target = "" if node.op in ("placeholder", "output") else node.target
        name = target if isinstance(target, str) else _name(target)
        try:
            args = " ".join(_argument(a, number, _constant) for a in (node.args, node.kwargs))
        except TypeError:
            return None
        lines.append(f"{node.op} {name} {args}")
    storages: set[int] = set()
    for value in inputs:
        if type(value) not in _PLAIN or any(not isinstance(s, int) for s in value.shape):
            return None
        storage = value.untyped_storage()._cdata
        if storage in storages or value.layout is not torch.strided:
            return None
        storages.add(storage)
        flags = f"{value.requires_grad} {value.is_leaf} {value.is_conj()} {value.is_neg()}"
        layout = f"{tuple(value.shape)} {value.stride()}"
        lines.append(f"{value.dtype} {value.device} {layout} {flags}")
    for device in sorted({v.device.type for v in inputs}):
        if not torch.amp.is_autocast_available(device):
            continue
        lines.append(f"{torch.is_autocast_enabled(device)} {torch.get_autocast_dtype(device)}")
    return "\n".join(lines).encode()


def _environment() -> str:
    """Return the global state that affects tracing: modes, flags and default types."""
    facts = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._is_any_autocast_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        fills_empty(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        torch.backends.mha.get_fastpath_enabled(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
    )
    return " ".join(map(str, facts))


def is_torch_function(target: Any) -> bool:
    """Return whether a node's target is a function, a method or an op of PyTorch itself, other than
    a launch of a user's kernel."""
    if _launches(target):
        return False
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target).partition(".")[0] in ("aten", "prims")
    module = getattr(target, "__module__", None) or ""
    if not module:
        # Methods of C types, such as those of torch.Tensor.
        module = getattr(getattr(target, "__objclass__", None), "__module__", "") or ""
    return module.partition(".")[0] in ("torch", "_operator", "math", "builtins")


def _constant(value: Any) -> str:
    match value:
        case None | bool() | int() | float() | complex() | str():
            return _any(value)
        case torch.dtype() | torch.device() | torch.layout() | torch.memory_format():
            return repr(value)
        case _ if value is Ellipsis:
            return "..."
    raise TypeError(f"{type(value).__name__} is not a constant of a graph")
