"""The strides of tensors in eager mode.

Dynamo's fake tensors have them, but for some ops and non-contiguous arguments torch's fake kernels
are wrong: they return the strides of a decomposition, not those of the op. To learn the strides of
a graph's results, such calls run again on fake tensors, which are corrected after each of these
ops, and so do calls that take a tensor whose strides this changed. With `numerics="bitwise"`, where
sums depend on the strides of their terms, graphs are also traced with corrected fake tensors.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from gyrator.frontend.dynamo.graph import fake_of, name_of, nodes_of, writes_by_name
from gyrator_lowering.torch_bridge.graphs import graph_results
from gyrator_lowering.torch_bridge.symbols import expression_of

aten = torch.ops.aten

Strides = tuple[Any, ...]


def strides_of_results(gm: GraphModule) -> list[Strides | None]:
    """Return the strides of each result of a Dynamo graph; None if they are unknown."""
    fakes = [fake_of(result) for result in graph_results(gm)]
    if any(isinstance(f, torch.Tensor) for f in fakes) and any(map(_doubtful, nodes_of(gm))):
        fakes = _corrected(gm) or fakes
    return [f.stride() if _strided(f) else None for f in fakes]


_NAMES = frozenset(
    {
        "angle", "as_strided_scatter", "batch_norm", "binary_cross_entropy", "channel_shuffle",
        "copysign", "cross_entropy", "div", "divide", "floor_divide", "floordiv", "getitem",
        "heaviside", "index_fill", "isin", "ldexp", "log_sigmoid", "logaddexp", "logaddexp2",
        "logical_and", "logical_or", "logical_xor", "logsigmoid", "max_pool1d", "max_unpool2d",
        "native_dropout_backward", "nll_loss", "normal", "one_hot", "pad", "poisson", "pow", "roll",
        "rpow", "rrelu", "special_xlog1py", "special_xlogy", "xlogy", "_foreach_div",
        "__floordiv__", "__rfloordiv__", "__rpow__",
    }
)  # fmt: skip
"""The torch functions and methods that call the ops in `_RULES`."""
_ALWAYS = frozenset({"stft", "istft", "unique", "unique_consecutive", "quantize_dequantize"})
"""Functions, in addition to `fft_*`, whose strides may be wrong even for contiguous arguments."""


def _doubtful(node: Node) -> bool:
    name = name_of(node).rpartition(".")[2]
    if not node.op.startswith("call_"):
        return False
    if name in _ALWAYS or name.startswith("fft_"):
        return True
    if name not in _NAMES:
        return False
    if node.target is operator.getitem and not any(
        isinstance(fake_of(i), torch.Tensor) for i in tree_leaves(node.args[1])
    ):
        return False
    return any(_strided(f) and not _is_contiguous(f) for f in map(fake_of, node.all_input_nodes))


def _corrected(gm: GraphModule) -> list[Any]:
    """Run a graph on new fake tensors; return its results, or an empty list if it cannot be run."""
    inputs = [fake_of(node) for node in gm.graph.find_nodes(op="placeholder")]
    mode = next((f.fake_mode for f in inputs if hasattr(f, "fake_mode")), None)
    if mode is None or mode.shape_env is None:
        return []
    try:
        with mode, mode.shape_env.ignore_fresh_unbacked_symbols(), torch.no_grad():
            fresh = [_like(f, f.stride()) if _strided(f) else f for f in inputs]
            # Without Python's dispatcher, fake kernels that call other ops reject symbolic sizes.
            with enable_python_dispatcher(), with_eager_strides(mode):
                run = _Run(gm) if any(map(_reshapes_in_place, nodes_of(gm))) else _ShortRun(gm)
                return list(run.run(*fresh))
    except Exception:  # a call that depends on the identity of Dynamo's tensors
        return []


class _Run(torch.fx.Interpreter):
    """Runs a graph, and corrects the strides of functions that are single ops in eager mode but
    several ops on fake tensors. The bodies of higher-order ops run in place of the ops."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function, or the bodies that are the result of a higher-order op.

        Raises:
            ValueError: the results of the branches of a choice have different strides.
        """
        if not isinstance(target, torch._ops.HigherOrderOperator):
            return super().call_function(target, args, kwargs)
        name = target.__name__
        if name == "cond":
            _, chosen, other, operands = args
            results = [_Run(branch).run(*operands) for branch in (chosen, other)]
            if not all(map(_has_strides_of, *map(tree_leaves, results))):
                raise ValueError("the branches' results have different strides")
            return results[0]
        if name == "autograd_function_apply":
            forward, _, *operands = args
            return _Run(forward).run(*operands)[0]
        if name in ("tag_activation_checkpoint", "wrap"):
            body, *operands = args
            return _Run(body).run(*operands)
        return super().call_function(target, args, kwargs)

    def run_node(self, n: Node) -> Any:
        """Run a node."""
        if n.op == "call_method" and n.target == "item":  # fake tensors have no values
            return fake_of(n)
        result = super().run_node(n)
        name = getattr(n.target, "__name__", "")
        # Without gradients, the CPU pools rows with a separate op.
        rows = name == "max_pool1d" and not getattr(fake_of(n), "requires_grad", True)
        if _strided(result) and (name == "one_hot" or (rows and not _on_accelerator(result))):
            return _like(result, contiguous(result.shape))
        return result


class _ShortRun(_Run):
    """Runs only the calls whose results may differ from Dynamo's fake tensors. With symbolic sizes,
    where few tensors are known to be contiguous and an op takes milliseconds, most of a graph is
    not run."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.changed: set[Node] = set()

    def run_node(self, n: Node) -> Any:
        """Return Dynamo's result if the node's arguments have the strides that Dynamo saw."""
        if not n.op.startswith("call_"):
            return super().run_node(n)
        known = fake_of(n)
        if known is not None and not self._to_run(n):
            return known
        result = super().run_node(n)
        if known is not None and _alike(result, known):
            return known
        self.changed.add(n)
        return result

    def _to_run(self, n: Node) -> bool:
        if n.args and writes_by_name(n):  # keeps the strides of what it writes
            return n.args[0] in self.changed
        if n.op == "call_module" or isinstance(n.target, torch._ops.HigherOrderOperator):
            return True
        return _doubtful(n) or not self.changed.isdisjoint(n.all_input_nodes)


def _reshapes_in_place(node: Node) -> bool:
    """Return whether a call changes the sizes or strides of a tensor that it takes."""
    if not node.op.startswith("call_"):
        return False
    packet = getattr(aten, name_of(node), None)
    overloads = () if packet is None else (getattr(packet, o) for o in packet.overloads())
    return "out" in node.kwargs or any(torch.Tag.inplace_view in o.tags for o in overloads)


def _alike(a: Any, b: Any) -> bool:
    """Return whether results have equal sizes and strides, without adding a guard."""
    ours, others = tree_leaves(a), tree_leaves(b)
    return len(ours) == len(others) and all(map(_alike_leaves, ours, others))


def _alike_leaves(a: Any, b: Any) -> bool:
    if not _strided(a) or not _strided(b):
        return type(a) is type(b) and _plain(a) == _plain(b)
    shapes = [tuple(map(expression_of, (*t.shape, *t.stride()))) for t in (a, b)]
    return shapes[0] == shapes[1]


def _plain(number: Any) -> Any:
    """Return the expression of a symbolic number, and any other value unchanged."""
    symbolic = isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)
    return number.node.expr if symbolic else number


@contextmanager
def with_eager_strides(mode: FakeTensorMode) -> Iterator[None]:
    """Correct the strides of the fake results of some ops."""
    kernels, inside = mode.dispatch, False

    def dispatch(
        func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        nonlocal inside
        # torch caches what its kernels return, also for those outside of this context, so the ops
        # that they call are not corrected.
        if inside:
            return kernels(func, types, args, kwargs or {})
        inside = True
        try:
            result = kernels(func, types, args, kwargs or {})
            if func not in _RULES or result is NotImplemented:
                return result
            with mode:
                return _restrided(func, result, args, kwargs or {})
        finally:
            inside = False

    mode.dispatch = dispatch  # type: ignore[method-assign]
    try:
        yield
    finally:
        del mode.dispatch


def _restrided(func: Any, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    rule = _RULES[func]
    rest = func._schema.arguments[len(args) :]
    args = (*args, *(kwargs.get(a.name, a.default_value) for a in rest))
    if isinstance(result, torch.Tensor):
        return _like(result, rule(result, args))
    if func is aten._foreach_div.Scalar:
        pairs = zip(result, args[0], strict=True)
        return [_like(r, rule(r, (x, args[1]))) for r, x in pairs]
    count = len(result) if func in _EVERY_RESULT else 1
    corrected = [None if r is None else _like(r, rule(r, args)) for r in result[:count]]
    return (*corrected, *result[count:])


Rule = Callable[[torch.Tensor, Sequence[Any]], Strides]


def _elementwise(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    tensors = [a.expand(result.shape) for a in args if isinstance(a, torch.Tensor)]
    return tuple(compute_elementwise_output_strides(*tensors))


def _divided(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The strides of a division: a scalar participates as an operand without strides, which
    matters for axes of size 1."""
    x, y = args[:2]
    if not isinstance(x, torch.Tensor) or (isinstance(y, torch.Tensor) and y.dim()):
        return result.stride()
    return tuple(compute_elementwise_output_strides(x, x.new_empty(()).expand(x.shape)))


def _scaled(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The strides of a product with a power, which is contiguous."""
    x, exponent = args
    return _elementwise(result, (x, exponent.new_empty(exponent.shape)))


def _host_elementwise(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    return result.stride() if _on_accelerator(result) else _elementwise(result, args)


def _gradient_last(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The op is elementwise, and the gradient, its first argument, is its last operand."""
    return _host_elementwise(result, (*args[1:], args[0]))


def _contiguous(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    return contiguous(result.shape)


def _preserved(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The strides of a copy of the argument; none if the result is a number."""
    return torch.empty_like(args[0]).stride() if result.dim() else ()


def _contiguous_if_complex(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    return contiguous(result.shape) if args[0].is_complex() else result.stride()


def _channels_last(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """Channels-last if the argument is channels-last, else contiguous."""
    dense = torch.empty(result.shape, device=result.device)
    return dense.to(memory_format=suggest_memory_format(args[0])).stride()


def _of_second(rule: Rule) -> Rule:
    """Return a rule that depends on the second argument and those after it."""
    return lambda result, args: rule(result, args[1:])


def _host_channels_last(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    return _contiguous(result, args) if _on_accelerator(result) else _channels_last(result, args)


def _rolled(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The CPU concatenates two parts; without axes it rolls the flattened tensor."""
    if _on_accelerator(result) or result.numel() == 0:
        return result.stride()
    return _channels_last(result, args) if len(args) > 2 and args[2] else _contiguous(result, args)


def _host_contiguous(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    return result.stride() if _on_accelerator(result) else contiguous(result.shape)


def _normalized(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The CPU keeps the strides of a channels-last argument."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(args[0].dim())
    if last is None or _on_accelerator(result):
        return _host_contiguous(result, args)
    dense = args[0].is_contiguous(memory_format=last) and not args[0].is_contiguous()
    return _preserved(result, args) if dense else _channels_last(result, args)


def _on_accelerator(result: torch.Tensor) -> bool:
    """Return whether a tensor is on an accelerator."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == result.device.type


def _transformed(result: torch.Tensor, strides: Sequence[Any], order: Sequence[int]) -> Strides:
    """The strides of MKL's Fourier transform along the axes `order`: the transformed axes are
    innermost, in that order, and the others outside, in the order of the argument's `strides`.

    Axes with equal strides are in the order that `std::partition` leaves: each transformed axis is
    swapped with the last other one.
    """
    outer = [d for d in range(result.dim()) if d not in order]
    stationary, moved = [d for d in outer if d < len(outer)], [d for d in outer if d >= len(outer)]
    for d in range(len(outer)):
        if d in order:
            stationary.insert(d, moved.pop())
    outer = sorted(stationary, key=lambda d: strides[d], reverse=True)
    return _nested(result.shape, (*outer, *order))


def _nested(shape: Sequence[Any], order: Sequence[int]) -> Strides:
    """The strides of a dense tensor with its axes in this order, innermost last."""
    strides: list[Any] = [1] * len(shape)
    for d, step in zip(order, contiguous([shape[d] for d in order]), strict=True):
        strides[d] = step
    return tuple(strides)


def _fourier(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """A complex transform, or a real one, which transforms the last axis first."""
    x, dims = args[0], [d % args[0].dim() for d in args[1]]
    if _on_accelerator(result) or not dims:
        return result.stride()
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return contiguous(result.shape)
    last = [] if x.is_complex() else dims[-1:]
    first = sorted(dims[: len(dims) - len(last)], key=lambda d: x.stride(d), reverse=True)
    return _transformed(result, x.stride(), [*first, *last])


def _to_real(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """All axes but the last are transformed first, as complex values."""
    x, dims = args[0], [d % args[0].dim() for d in args[1]]
    if _on_accelerator(result) or not dims:
        return result.stride()
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return contiguous(result.shape)
    strides = x.stride() if len(dims) == 1 else _fourier(x, (x, dims[:-1]))
    return _transformed(result, strides, dims[-1:])


def _unique(result: torch.Tensor, dim: int | None) -> Strides:
    """The CPU finds the distinct rows, and moves their axis back to its original position."""
    if dim is None or _on_accelerator(result) or not result.dim():
        return result.stride()
    dim %= result.dim()
    return _nested(result.shape, (dim, *(d for d in range(result.dim()) if d != dim)))


def _index(result: torch.Tensor, args: Sequence[Any]) -> Strides:
    """The op is elementwise over the indices and the tensor, which has stride 0 along them."""
    x, indices = args[0], list(args[1])
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return result.stride()
    indices += [None] * (x.dim() - len(indices))
    indexed = [d for d, i in enumerate(indices) if i is not None]
    if indexed != list(range(indexed[0], indexed[0] + len(indexed))):
        order = [*indexed, *(d for d in range(x.dim()) if d not in indexed)]
        x, indexed = x.permute(order), list(range(len(indexed)))
    broadcast: Any = torch.functional.broadcast_tensors(*(i for i in indices if i is not None))  # type: ignore[no-untyped-call]
    before, after = indexed[0], indexed[-1] + 1
    inside = broadcast[0].dim()
    base = (*x.stride()[:before], *(0 for _ in range(inside)), *x.stride()[after:])
    rest = x.dim() - after
    shape = (*(1,) * before, *broadcast[0].shape, *(1,) * rest)
    # As in eager mode: the stride of an axis of size 1 affects the order of the axes.
    parts = [
        tuple(
            0 if size == 1 and total != 1 else step
            for size, total, step in zip(shape, result.shape, i.stride(), strict=True)
        )
        for i in (i.reshape(shape) for i in broadcast)
    ]
    operands = [torch.empty_strided(result.shape, s, device=result.device) for s in (base, *parts)]
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
    aten._foreach_div.Scalar: _divided,
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
    aten.binary_cross_entropy.default: _preserved,
    aten.binary_cross_entropy_backward.default: _of_second(_preserved),
    aten.xlogy.Tensor: _elementwise,
    aten.special_xlog1py.default: _elementwise,
    aten.ldexp.Tensor: _scaled,
    aten.mse_loss_backward.default: _contiguous,
    aten.smooth_l1_loss_backward.default: _contiguous,
    aten.huber_loss_backward.default: _contiguous,
    aten._log_softmax_backward_data.default: _host_contiguous,
    aten.nll_loss2d_forward.default: _host_contiguous,
    aten.glu_backward.default: _host_contiguous,
    aten.threshold_backward.default: _gradient_last,
    aten.hardtanh_backward.default: _host_elementwise,
    aten.hardswish_backward.default: _host_elementwise,
    aten.leaky_relu_backward.default: _gradient_last,
    aten.logit_backward.default: _host_elementwise,
    aten.elu_backward.default: _host_elementwise,
    aten._prelu_kernel_backward.default: _gradient_last,
    aten.reflection_pad2d_backward.default: _of_second(_host_channels_last),
    aten.reflection_pad3d_backward.default: _of_second(_host_channels_last),
    aten.replication_pad2d_backward.default: _of_second(_host_channels_last),
    aten.replication_pad3d_backward.default: _of_second(_host_channels_last),
    aten.native_batch_norm_backward.default: _of_second(_host_channels_last),
    aten.native_layer_norm_backward.default: _host_contiguous,
    aten.native_batch_norm.default: _normalized,
    aten._native_batch_norm_legit.default: _normalized,
    aten._native_batch_norm_legit.no_stats: _normalized,
    aten._native_batch_norm_legit_no_training.default: _normalized,
}
_EVERY_RESULT = frozenset({
    aten._prelu_kernel_backward.default, aten.log_sigmoid_forward.default,
    aten.native_layer_norm_backward.default,
})  # fmt: skip
"""The ops in `_RULES` of which each result has the strides of the rule; of others, the first."""


def contiguous(shape: Sequence[Any]) -> Strides:
    """Return the strides of a contiguous tensor of a shape."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def _like(fake: torch.Tensor, strides: Strides) -> torch.Tensor:
    return torch.empty_strided(fake.shape, strides, dtype=fake.dtype, device=fake.device)


def _is_contiguous(fake: torch.Tensor) -> bool:
    """Return whether a tensor is statically known to be contiguous, without adding a guard."""
    return all(
        size == 1 or expression_of(stride) == expression_of(expected)
        for size, stride, expected in zip(
            map(expression_of, fake.shape), fake.stride(), contiguous(fake.shape), strict=True
        )
    )


def _has_strides_of(a: Any, b: Any) -> bool:
    return not _strided(a) or not _strided(b) or a.stride() == b.stride()


def _strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided
