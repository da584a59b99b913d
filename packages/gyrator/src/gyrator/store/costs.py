"""Bytes moved and floating-point operations of kernels and calls in one run."""

from collections.abc import Iterable
from math import prod
from types import MappingProxyType

from gyrator.store.lifetimes import hinted, strided_bytes
from gyrator_ir.body.nodes import Axis, Let, Reduce
from gyrator_ir.body.ops import OPS
from gyrator_ir.expr import Expr, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, Level, Schedule, Stage
from gyrator_ir.loop.nodes import Arg, Buffer, Extern, Literal, TensorRef
from gyrator_ir.loop.uses import arguments_of, refs_in, results_of


def buffer_bytes(buffer: Buffer, facts: ShapeFacts) -> int:
    """Return the bytes of the elements of a buffer, counting broadcast elements once."""
    return strided_bytes(buffer.dtype, buffer.shape, buffer.strides, facts)


def kernel_flops(kernel: Launchable, facts: ShapeFacts) -> int:
    """Return the floating-point operations of one run of a kernel; 0 for a template."""
    match kernel:
        case Kernel(axes=axes, inner=inner, stages=stages):
            count = _extent(axes, facts)
            return sum(
                count * (_extent(inner, facts) if stage.level is Level.INNER else 1) * _work(stage)
                for stage in stages
            )
        case KernelGroup(kernels=kernels, members=members):
            return sum(kernel_flops(kernels[number], facts) for number in members)
        case _:
            return 0


def _work(stage: Stage) -> int:
    """Return the floating-point operations of one evaluation of a stage; moves and casts are
    free."""
    work = 0
    for s in stage.body:
        match s:
            case Let(op=op, dtype=dtype):
                work += dtype.is_float and OPS[op].cost > 0 and op not in _MOVES
            case Reduce():
                work += len(s.args)
    return work


_MOVES = ("cast", "bitcast", "select")


def _extent(axes: Iterable[Axis], facts: ShapeFacts) -> int:
    return _count((a.extent for a in axes), facts)


def _count(shape: Iterable[Expr], facts: ShapeFacts) -> int:
    return prod(max(0, hinted(n, facts)) for n in shape)


# Calls ------------------------------------------------------------------------------------------

_LEFT = MappingProxyType({
    "aten.mm": 0, "aten.bmm": 0, "aten.addmm": 1, "aten.baddbmm": 1, "aten.linear": 0,
    "aten.mv": 0, "aten.addmv": 1, "aten.dot": 0, "aten.vdot": 0, "aten._int_mm": 0,
    "aten._scaled_mm": 0, "mkldnn._linear_pointwise": 0,
    "onednn.qlinear_pointwise": 0,
})  # fmt: skip
"""The index of the argument of a product whose last axis is contracted."""
_CONVOLUTIONS = (
    "aten.convolution", "aten.mkldnn_convolution", "mkldnn._convolution_pointwise",
    "onednn.qconv_pointwise",
)  # fmt: skip


def call_bytes(call: Extern, schedule: Schedule) -> int:
    """Return the bytes of a call's arguments and results."""
    facts = schedule.facts
    tensors = dict.fromkeys(refs_in(arguments_of(call)))
    argument_bytes = sum(strided_bytes(t.dtype, t.shape, t.strides, facts) for t in tensors)
    return argument_bytes + sum(buffer_bytes(b, facts) for b in _results(call, schedule))


def call_flops(call: Extern, schedule: Schedule) -> int:
    """Return the floating-point operations of a product or a convolution; 0 for other calls."""
    facts = schedule.facts
    op = call.target.rpartition(".")[0]
    results = _results(call, schedule)
    if op in _LEFT and results:
        left = call.args[_LEFT[op]]
        if isinstance(left, TensorRef):
            return 2 * _count(results[0].shape, facts) * _count(left.shape[-1:], facts)
    if op in _CONVOLUTIONS and results:
        images, weight = call.args[:2]
        at = images if _is_true(call.args[6:7]) else results[0]
        return 2 * _size(at, facts) * _size(weight, facts, 1)
    if op == "aten.convolution_backward":
        # Each gradient takes as many as the convolution itself, except that of a bias, which is a
        # sum.
        gradient, images, weight = call.args[:3]
        at = images if _is_true(call.args[7:8]) else gradient
        gradients = sum(r is not None for r in call.results[:2])
        return 2 * gradients * _size(at, facts) * _size(weight, facts, 1)
    return 0


def _is_true(flags: Iterable[Arg]) -> bool:
    """Return whether the argument `transposed` is present and true: weights are then applied at
    each element of the input, not of the result."""
    return any(isinstance(f, Literal) and f.value is True for f in flags)


def _size(tensor: Arg | Buffer, facts: ShapeFacts, first: int = 0) -> int:
    """Return the number of elements of a tensor along its axes from `first` on."""
    return _count(tensor.shape[first:], facts) if isinstance(tensor, TensorRef | Buffer) else 0


def _results(call: Extern, schedule: Schedule) -> list[Buffer]:
    buffers = {b.name: b for b in schedule.buffers}
    return [buffers[name] for name in results_of(call) if name in buffers]
