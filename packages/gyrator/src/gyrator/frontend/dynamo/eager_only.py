"""Dynamo graphs that would be traced incorrectly to ATen, so that PyTorch must run them.

AOTAutograd replaces a write by a new value, which is wrong for elements that overlap in memory, and
torch's fake kernels accept arguments that its real ones reject. Such graphs are recognised by
Dynamo's fake tensors.
"""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import guard_or_true

from gyrator.frontend.dynamo.arguments import QUANTISING, refused
from gyrator.frontend.dynamo.graph import fake_of, name_of, writes_by_name
from gyrator.frontend.gradients import is_batched
from gyrator_ir.diagnostics import Diagnostic
from gyrator_lowering.torch_bridge.symbols import hint_of

aten = torch.ops.aten

_OPERATORS = frozenset(
    {
        operator.iadd, operator.iand, operator.ifloordiv, operator.ilshift, operator.imod,
        operator.imul, operator.ior, operator.ipow, operator.irshift, operator.isub,
        operator.itruediv, operator.ixor,
    }
)  # fmt: skip
_SCATTERS = {
    "slice_scatter": aten.slice.Tensor,
    "select_scatter": aten.select.int,
    "diagonal_scatter": aten.diagonal.default,
}
"""The view whose elements each of these ops replaces."""
_LOSSES = ("huber_loss", "soft_margin_loss")
"""Losses whose fake kernels promote dtypes differently from the real ones."""
_COPIED_OR_CAST = "copy the tensor before writing to it, or cast the arguments to one dtype"
_QUANTISED = "compute with integers, as the ops of torch.ops.quantized_decomposed do"


def eager_only(gm: GraphModule) -> Diagnostic | None:
    """Return why PyTorch has to run a Dynamo graph; None if it can be compiled. The bodies of
    higher-order ops count, such as what `checkpoint` and `cond` call."""
    for module in gm.modules():
        if isinstance(module, GraphModule) and (reason := _reason(module.graph)) is not None:
            return reason
    return None


def _reason(graph: Graph) -> Diagnostic | None:
    inputs = [fake_of(node) for node in graph.find_nodes(op="placeholder")]
    strided = [f for f in inputs if _is_strided(f)]
    overlapping = [f for f in strided if _overlaps_itself(f)]
    recast = list(_recast(strided))
    for node in graph.nodes:
        called = node.op in ("call_function", "call_method")
        why = _wrong(node, overlapping, recast) if called else ""
        if why:
            from gyrator_lowering.torch_bridge.origins import innermost  # rarely used

            line, code = innermost(node.meta.get("stack_trace") or "")
            return Diagnostic(
                "GY-COMPILE-020",
                f"{node.target if isinstance(node.target, str) else node.target.__name__} {why}",
                provenance=(f"{line}: {code}",) if line else (),
                help=_QUANTISED if node.target in QUANTISING else _COPIED_OR_CAST,
            )
    return None


def _recast(inputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the inputs that share memory with an input of another dtype."""
    dtypes: dict[int, set[torch.dtype]] = {}
    for x in inputs:
        dtypes.setdefault(x.untyped_storage()._cdata, set()).add(x.dtype)
    for x in inputs:
        if len(dtypes[x.untyped_storage()._cdata]) > 1:
            yield x


def _wrong(node: Node, overlapping: list[torch.Tensor], recast: list[torch.Tensor]) -> str:
    """Return why a call must run in eager mode, or an empty string.

    Args:
        node: the call.
        overlapping: inputs with overlapping elements: AOTAutograd would copy them as a whole for a
            write to any part.
        recast: inputs that share memory with one of another dtype: AOTAutograd raises an error if
            one of them is written.
    """
    name = name_of(node)
    if why := refused(node, name):
        return why
    if name in _SCATTERS:
        copied = fake_of(next(iter(node.all_input_nodes), None))
        if _is_strided(copied) and _overlaps_itself(copied):
            return "writes to elements that overlap in memory"
        return _mismatch(node, _SCATTERS[name])
    if name in _LOSSES:
        dtypes = {f.dtype for f in map(fake_of, node.args) if isinstance(f, torch.Tensor)}
        return "mixes dtypes" if len(dtypes) > 1 else ""
    outputs = [n for n in _outputs(node) if isinstance(n, Node)]
    if any(_shares(fake_of(n), f) for n in outputs for f in overlapping):
        return "writes to an input whose elements overlap in memory"
    if any(_shares(fake_of(n), f) for n in outputs for f in recast):
        return "writes to an input that shares memory with an input of another dtype"
    for written, owner in _written(node, outputs):
        others = [fake_of(n) for n in node.all_input_nodes if n is not owner]
        if _overlaps_itself(written):
            return "writes to elements that overlap in memory"
        if any(_overlap(written, other) for other in others if _is_strided(other)):
            return "writes to memory that it also reads with another layout"
    return ""


def _outputs(node: Node) -> list[Any]:
    """Return the arguments that a call writes to."""
    if node.kwargs.get("out") is not None:
        out = node.kwargs["out"]
        return list(out) if isinstance(out, (list, tuple)) else [out]
    if (
        writes_by_name(node)
        or node.target in _OPERATORS
        or node.target is operator.setitem
        or node.kwargs.get("inplace") is True
    ):
        first = node.args[:1]
        return list(first[0] if first and isinstance(first[0], (list, tuple)) else first)
    return []


def _written(node: Node, outputs: list[Node]) -> list[tuple[torch.Tensor, Node]]:
    """Return the fake tensors that a call writes to, each with the argument that owns its
    memory."""
    if node.target is operator.setitem and node.kwargs.get("out") is None:
        base, index, *_ = node.args
        view = _part(node, fake_of(base), index) if isinstance(base, Node) else None
        return [] if view is None else [(view, base)]  # type: ignore[list-item]
    return [(f, n) for n in outputs if _is_strided(f := fake_of(n))]


def _part(node: Node, base: Any, index: Any) -> torch.Tensor | None:
    """Return the view that an index selects; None if it need not be checked."""
    fakes = torch.fx.map_arg(index, fake_of)
    items = fakes if isinstance(fakes, tuple) else (fakes,)
    if any(isinstance(i, (torch.Tensor, list)) for i in items) or not _is_strided(base):
        return None
    value = node.args[2]
    shared = isinstance(value, Node) and _shares(base, fake_of(value))
    if not shared and not _overlaps_itself(base):
        return None
    view = _faked(base, lambda: base[fakes])
    return view if isinstance(view, torch.Tensor) else None


def _mismatch(node: Node, view: Any) -> str:
    """Return an error if the replacement of a part of a tensor differs from that part in size."""
    kwargs = dict(node.kwargs)
    x = kwargs.pop("input", None) if not node.args else node.args[0]
    source = kwargs.pop("src") if "src" in kwargs else node.args[1]
    base, values = fake_of(x), fake_of(source)
    if not isinstance(base, torch.Tensor) or not isinstance(values, torch.Tensor):
        return ""
    rest, named = torch.fx.map_arg((node.args[2:], kwargs), fake_of)
    part = _faked(base, lambda: view(base, *rest, **named))
    if isinstance(part, torch.Tensor) and part.dim() == values.dim():
        sizes = zip(part.shape, values.shape, strict=True)
        if all(guard_or_true(old == new) for old, new in sizes):
            return ""
    return "replaces part of a tensor with a tensor of another size"


def _faked(fake: Any, function: Any) -> Any:
    """Evaluate a function of fake tensors; return None if it raises, as eager mode would."""
    try:
        with fake.fake_mode, fake.fake_mode.shape_env.ignore_fresh_unbacked_symbols():
            return function()
    except (RuntimeError, IndexError, ValueError, AttributeError):
        return None


def _overlaps_itself(t: torch.Tensor) -> bool:
    """Return whether two elements may have the same address, given the size hints."""
    layout = _hints(t)
    if layout is None or 0 in layout[0]:
        return False
    axes = sorted((step, n) for n, step in zip(*layout, strict=True) if n > 1)
    span = 1
    for step, n in axes:
        if step < span:
            return True
        span += (n - 1) * step
    return False


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors overlap in memory in a way that eager mode rejects for writes."""
    left, right = _hints(a), _hints(b)
    if left is None or right is None or not _shares(a, b) or not _dense(left, right):
        return False
    starts = [hint_of(t.storage_offset()) for t in (a, b)]
    if None in starts:
        return False
    first, second = (
        (start * t.itemsize, (start + t_numel) * t.itemsize)  # type: ignore[operator]
        for start, t, t_numel in zip(starts, (a, b), map(_count, (left, right)), strict=True)
    )
    if first == second:
        return left != right
    return first[0] < second[1] and second[0] < first[1]


_Layout = tuple[tuple[int, ...], tuple[int, ...]]


def _count(layout: _Layout) -> int:
    count = 1
    for n in layout[0]:
        count *= n
    return count


def _dense(*layouts: _Layout) -> bool:
    """Return whether elements are adjacent in memory without overlap."""
    for sizes, strides in layouts:
        step = 1
        for stride, n in sorted((s, n) for n, s in zip(sizes, strides, strict=True) if n != 1):
            if stride != step:
                return False
            step *= n
    return True


def _shares(a: Any, b: Any) -> bool:
    return (
        _is_strided(a)
        and _is_strided(b)
        and a.untyped_storage()._cdata == b.untyped_storage()._cdata
    )


def _hints(t: torch.Tensor) -> _Layout | None:
    sizes = tuple(n for n in map(hint_of, t.shape) if n is not None)
    strides = tuple(n for n in map(hint_of, t.stride()) if n is not None)
    return (sizes, strides) if len(sizes) == len(strides) == t.dim() else None


def _is_strided(value: Any) -> bool:
    """Whether a value has strides and a storage; tensors that `vmap` and others wrap have none."""
    plain = isinstance(value, torch.Tensor) and not is_batched(value)
    return plain and value.layout is torch.strided
