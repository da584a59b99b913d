"""The strides that eager mode gives a graph's results.

Dynamo's fake tensors tell them, but for some ops torch's fake kernels are wrong where an argument
is not laid out row by row: what a decomposition gives is taken for what the op gives. A graph with
such a call runs once more on fake tensors, which are corrected after each of these ops.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gyrator.frontend.dynamo_graph import fake_of, name_of

aten = torch.ops.aten

Strides = tuple[Any, ...]


def strides_of_results(gm: GraphModule) -> list[Strides | None]:
    """Return the strides of each result of a graph of Dynamo's; None where they are not known."""
    (results,) = gm.graph.output_node().args
    fakes = [fake_of(result) for result in results]  # type: ignore[union-attr]
    if any(isinstance(f, torch.Tensor) for f in fakes) and any(map(_doubtful, gm.graph.nodes)):
        fakes = _corrected(gm) or fakes
    return [f.stride() if _strided(f) else None for f in fakes]


_NAMES = frozenset(
    {
        "angle", "as_strided_scatter", "batch_norm", "channel_shuffle", "copysign", "div", "divide",
        "floor_divide", "getitem", "heaviside", "index_fill", "isin", "log_sigmoid", "logaddexp",
        "logaddexp2", "logical_and", "logical_or", "logical_xor", "logsigmoid", "max_pool1d",
        "max_unpool2d", "native_dropout_backward", "normal", "one_hot", "pad", "poisson", "pow",
        "roll", "rpow", "rrelu", "_foreach_div", "__rpow__",
    }
)  # fmt: skip
"""The functions of torch, and methods, that reach the ops below."""
_ANYHOW = frozenset({"stft", "istft", "unique", "unique_consecutive"})
"""Those, beside `fft_*`, whose results may lie otherwise even if all arguments lie row by row."""


def _doubtful(node: Node) -> bool:
    name = name_of(node).rpartition(".")[2]
    if not node.op.startswith("call_"):
        return False
    if name in _ANYHOW or name.startswith("fft_"):
        return True
    if name not in _NAMES:
        return False
    if node.target is operator.getitem and not any(
        isinstance(fake_of(i), torch.Tensor) for i in tree_leaves(node.args[1])
    ):
        return False
    return any(_strided(f) and not _row_by_row(f) for f in map(fake_of, node.all_input_nodes))


def _corrected(gm: GraphModule) -> list[Any]:
    """Run a graph on new fake tensors; return its results, none where it cannot be run so."""
    inputs = [fake_of(node) for node in gm.graph.find_nodes(op="placeholder")]
    mode = next((f.fake_mode for f in inputs if hasattr(f, "fake_mode")), None)
    if mode is None or mode.shape_env is None:
        return []
    try:
        with mode, mode.shape_env.ignore_fresh_unbacked_symbols(), torch.no_grad():
            fresh = [_like(f, f.stride()) if _strided(f) else f for f in inputs]
            # Without Python's dispatcher, fake kernels that call other ops take no symbolic sizes.
            with enable_python_dispatcher(), _EagerStrides():  # type: ignore[no-untyped-call]
                return list(_Run(gm).run(*fresh))
    except Exception:  # a call that wants the very tensors that Dynamo saw
        return []


class _Run(torch.fx.Interpreter):
    """Runs a graph, and gives the results of functions that fake tensors see as several ops the
    strides that eager mode's one op gives."""

    def run_node(self, n: Node) -> Any:
        """Run a node."""
        result = super().run_node(n)
        name = getattr(n.target, "__name__", "")
        # Without gradients, the host pools rows by an op of its own.
        rows = name == "max_pool1d" and not getattr(fake_of(n), "requires_grad", True)
        if _strided(result) and (name == "one_hot" or (rows and not _elsewhere(result))):
            return _like(result, contiguous(result.shape))
        return result


class _EagerStrides(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives fake results of some ops the strides that the ops give."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is aten._foreach_div.Scalar:
            pairs = zip(result, args[0], strict=True)
            return [_like(r, _divided(r, (x, args[1]))) for r, x in pairs]
        rule = _RULES.get(func)
        if rule is None:
            return result
        rest = func._schema.arguments[len(args) :]
        args = (*args, *((kwargs or {}).get(a.name, a.default_value) for a in rest))
        if isinstance(result, torch.Tensor):
            return _like(result, rule(result, args))
        return type(result)((_like(result[0], rule(result[0], args)), *result[1:]))


Rule = Callable[[torch.Tensor, Sequence[Any]], Strides]


def _elementwise(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    tensors = [a.expand(result.shape) for a in args if isinstance(a, torch.Tensor)]
    return tuple(compute_elementwise_output_strides(*tensors))


def _divided(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """A number is an operand like others, without strides: it decides about axes of one element."""
    x, y = args[:2]
    if not isinstance(x, torch.Tensor) or (isinstance(y, torch.Tensor) and y.dim()):
        return result.stride()
    return tuple(compute_elementwise_output_strides(x, x.new_empty(()).expand(x.shape)))


def _host_elementwise(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    return result.stride() if _elsewhere(result) else _elementwise(result, args)


def _contiguous(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    return contiguous(result.shape)


def _preserved(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The strides of a copy of the argument."""
    return torch.empty_like(args[0]).stride()


def _contiguous_if_complex(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    return contiguous(result.shape) if args[0].is_complex() else result.stride()


def _channels_last(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """Channels last if that is how the argument lies, else row by row."""
    dense = torch.empty(result.shape, device=result.device)
    return dense.to(memory_format=suggest_memory_format(args[0])).stride()


def _host_channels_last(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    return _contiguous(result, args) if _elsewhere(result) else _channels_last(result, args)


def _rolled(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The host joins two parts; without axes it rolls the flat tensor."""
    if _elsewhere(result) or result.numel() == 0:
        return result.stride()
    return _channels_last(result, args) if len(args) > 2 and args[2] else _contiguous(result, args)


def _host_contiguous(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """Kernels of the host write row by row, or channels last if that is how the argument lies."""
    last = result.dim() == 4 and result.is_contiguous(memory_format=torch.channels_last)
    return result.stride() if last or _elsewhere(result) else contiguous(result.shape)


def _elsewhere(result: torch.Tensor) -> bool:
    """Whether a tensor lies on an accelerator."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == result.device.type


def _transformed(result: torch.Tensor, strides: Sequence[Any], order: Sequence[int]) -> Strides:
    """The strides of a Fourier transform of MKL's along the axes `order`: what it transforms lies
    innermost, in that order, and the others around it, in the order of the argument's `strides`.

    Of axes with equal strides the order is what `std::partition` leaves: each transformed axis has
    changed places with the last other one.
    """
    outer = [d for d in range(result.dim()) if d not in order]
    kept, moved = [d for d in outer if d < len(outer)], [d for d in outer if d >= len(outer)]
    for d in range(len(outer)):
        if d in order:
            kept.insert(d, moved.pop())
    outer = sorted(kept, key=lambda d: strides[d], reverse=True)
    return _nested(result.shape, (*outer, *order))


def _nested(shape: Sequence[Any], order: Sequence[int]) -> Strides:
    """The strides of a dense tensor whose axes lie in this order, the innermost last."""
    made: list[Any] = [1] * len(shape)
    for d, step in zip(order, contiguous([shape[d] for d in order]), strict=True):
        made[d] = step
    return tuple(made)


def _fourier(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """Of complex numbers, or of real ones: those of the last axis come first."""
    x, dims = args[0], [d % args[0].dim() for d in args[1]]
    if _elsewhere(result) or not dims:
        return result.stride()
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return contiguous(result.shape)
    last = [] if x.is_complex() else dims[-1:]
    first = sorted(dims[: len(dims) - len(last)], key=lambda d: x.stride(d), reverse=True)
    return _transformed(result, x.stride(), [*first, *last])


def _to_real(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """All axes but the last are transformed first, as complex numbers."""
    x, dims = args[0], [d % args[0].dim() for d in args[1]]
    if _elsewhere(result) or not dims:
        return result.stride()
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return contiguous(result.shape)
    strides = x.stride() if len(dims) == 1 else _fourier(x, (x, dims[:-1]))
    return _transformed(result, strides, dims[-1:])


def _unique(result: torch.Tensor, dim: int | None) -> Strides:
    """The host finds different rows, and moves their axis to where it was."""
    if dim is None or _elsewhere(result) or not result.dim():
        return result.stride()
    dim %= result.dim()
    return _nested(result.shape, (dim, *(d for d in range(result.dim()) if d != dim)))


def _index(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The op is elementwise over the indices and the tensor, which stands still along them."""
    x, indices = args[0], list(args[1])
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return result.stride()
    indices += [None] * (x.dim() - len(indices))
    places = [d for d, i in enumerate(indices) if i is not None]
    if places != list(range(places[0], places[0] + len(places))):
        order = [*places, *(d for d in range(x.dim()) if d not in places)]
        x, places = x.permute(order), list(range(len(places)))
    given: Any = torch.functional.broadcast_tensors(*(i for i in indices if i is not None))  # type: ignore[no-untyped-call]
    before, after = places[0], places[-1] + 1
    inside = given[0].dim()
    still = (*x.stride()[:before], *(0 for _ in range(inside)), *x.stride()[after:])
    rest = x.dim() - after
    shape = (*(1,) * before, *given[0].shape, *(1,) * rest)
    # As eager mode does it: what stride an axis of one element gets counts for the order of axes.
    parts = [
        tuple(
            0 if size == 1 and total != 1 else step
            for size, total, step in zip(shape, result.shape, i.stride(), strict=True)
        )
        for i in (i.reshape(shape) for i in given)
    ]
    operands = [torch.empty_strided(result.shape, s, device=result.device) for s in (still, *parts)]
    return tuple(compute_elementwise_output_strides(*operands))


_RULES: dict[Any, Rule] = {
    aten._fft_c2c.default: _fourier,
    aten._fft_r2c.default: _fourier,
    aten._fft_c2r.default: _to_real,
    aten.unique_consecutive.default: lambda result, args: _unique(result, args[3]),
    aten.unique_dim.default: lambda result, args: _unique(result, args[1]),
    aten.reflection_pad2d.default: _host_channels_last,
    aten.replication_pad2d.default: _host_channels_last,
    aten.angle.default: _contiguous_if_complex,
    aten.channel_shuffle.default: _host_channels_last,
    aten.copysign.Tensor: _elementwise,
    aten.isin.Tensor_Tensor: _contiguous,
    aten.isin.Tensor_Scalar: _contiguous,
    aten.max_unpool2d.default: _channels_last,
    aten.native_dropout_backward.default: _host_elementwise,
    aten.reflection_pad3d.default: _host_channels_last,
    aten.replication_pad3d.default: _host_channels_last,
    aten.roll.default: _rolled,
    aten.rrelu_with_noise.default: _contiguous,
    aten.heaviside.default: _elementwise,
    aten.logaddexp.default: _elementwise,
    aten.logaddexp2.default: _elementwise,
    aten.logical_and.default: _elementwise,
    aten.logical_or.default: _elementwise,
    aten.logical_xor.default: _elementwise,
    aten.div.Tensor: _divided,
    aten.div.Tensor_mode: _elementwise,
    aten.floor_divide.default: _elementwise,
    aten.index.Tensor: _index,
    aten.index_fill.int_Scalar: _preserved,
    aten.index_fill.int_Tensor: _preserved,
    aten.normal.Tensor_Tensor: _contiguous,
    aten.normal.float_Tensor: _contiguous,
    aten.as_strided_scatter.default: _preserved,
    aten.poisson.default: _contiguous,
    aten.pow.Scalar: _contiguous,
    aten.log_sigmoid_forward.default: _host_contiguous,
    aten.native_batch_norm.default: _host_contiguous,
    aten._native_batch_norm_legit.default: _host_contiguous,
    aten._native_batch_norm_legit.no_stats: _host_contiguous,
    aten._native_batch_norm_legit_no_training.default: _host_contiguous,
}


def contiguous(shape: Sequence[Any]) -> Strides:
    """Return the strides of a tensor whose elements lie row by row."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def _like(fake: torch.Tensor, strides: Strides) -> torch.Tensor:
    return torch.empty_strided(fake.shape, strides, dtype=fake.dtype, device=fake.device)


def _row_by_row(fake: torch.Tensor) -> bool:
    """Whether elements surely lie row by row, decided without a guard."""
    return all(
        size == 1 or _expr(mine) == _expr(theirs)
        for size, mine, theirs in zip(
            map(_expr, fake.shape), fake.stride(), contiguous(fake.shape), strict=True
        )
    )


def _expr(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt) else value


def _strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided
