"""The ops that AOTAutograd decomposes before lowering: the long tail that has no rule."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch._decomp import _core_aten_decompositions_post_autograd as core_decompositions
from torch._decomp import decomposition_table
from torch.fx.experimental.symbolic_shapes import guard_or_false

from gyrator_ir.diagnostics import GyratorError
from gyrator_lowering.default import default_table
from gyrator_lowering.foreach import element_of
from gyrator_lowering.resizing import cubic, cubic_by, in_fixed_point, nearest, resized, resized_by
from gyrator_lowering.table import LoweringTable

aten = torch.ops.aten


class DecompositionError(GyratorError):
    """A decomposition table has an invalid key."""


Decompositions = dict[torch._ops.OpOverload, Callable[..., Any]]


def default_decompositions(table: LoweringTable | None = None) -> Decompositions:
    """Return torch's decompositions of every op that has no rule in `table`.

    Views, random ops, composite ops and ops on lists are left out: views cost nothing, random ops
    advance a generator, AOTAutograd decomposes composite ops itself, and the pass `expand-foreach`
    expands ops on lists, so that they round as in eager mode.

    Args:
        table: the rules that lowering will use; the default ones if None.
    """
    rules = default_table() if table is None else table
    decompositions = {
        op: function for op, name, function in _candidates() if rules.find(name) is None
    }
    return decompositions | dict(CORRECTIONS) | _of_libraries()


def edited(
    table: Decompositions, changes: Mapping[Any, Callable[..., Any] | None]
) -> Decompositions:
    """Return `table` with a user's functions in place of its own; None keeps an op whole.

    Args:
        table: the decompositions to start from.
        changes: functions by overload, or by packet for all of its overloads.

    Raises:
        DecompositionError: GY-LOWER-040 for a key that is not an op.
    """
    result = dict(table)
    for key, function in changes.items():
        if isinstance(key, torch._ops.OpOverloadPacket):
            packet: Any = key
            overloads = [getattr(packet, name) for name in packet.overloads()]
        elif isinstance(key, torch._ops.OpOverload):
            overloads = [key]
        else:
            message = f"the key {key!r} of a decomposition table is not an op"
            help = "give `torch.ops.aten.softplus.default`, or `torch.ops.aten.softplus`"
            raise DecompositionError.of("GY-LOWER-040", message, help=help)
        for overload in overloads:
            if function is None:
                result.pop(overload, None)
            else:
                result[overload] = function
    return result


_SLOPES = (
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
)
_GAMMAS = aten.mvlgamma.default
_SHUFFLE = aten.channel_shuffle.default
_NORM = aten.linalg_vector_norm.default
_LDEXP = aten.ldexp.Tensor
_MARGINS = aten.multilabel_margin_loss_forward.default
_ISIN = aten.isin.Tensor_Tensor
_NUMBER_ISIN = aten.isin.Scalar_Tensor
_BICUBIC = aten.upsample_bicubic2d.default
_FEW = 10.0
"""Eager compares a number with fewer than these, and `n` numbers with fewer than
`_FEW * n ** 0.145`."""
_UNSEARCHED = frozenset({torch.uint16, torch.uint32, torch.uint64})


def _empty_loss_gradient(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Any:
    """The gradient of a loss over no elements: torch's fake kernels divide by the element count."""
    return torch.empty_like(x) if guard_or_false(x.numel() == 0) else NotImplemented


def _log_gammas(x: torch.Tensor, p: int) -> Any:
    """`mvlgamma`, whose decomposition takes what eager refuses."""
    return NotImplemented if x.dtype is torch.bool or p < 1 else decomposition_table[_GAMMAS](x, p)


def _resized_cubically(x: torch.Tensor, *args: Any) -> Any:
    """`upsample_bicubic2d` by its formula, but where ATen has a better kernel."""
    return NotImplemented if in_fixed_point(x) else decomposition_table[_BICUBIC](x, *args)


def _shuffled(x: torch.Tensor, groups: int) -> torch.Tensor:
    """`channel_shuffle` that always copies; torch's decomposition returns a single group
    uncopied."""
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]).transpose(1, 2)
    return parts.clone(memory_format=torch.contiguous_format).reshape(x.shape)


def _norm(
    x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """A norm over axes counted from the start: torch 2.11's fake kernel keeps axes of size 1 that
    are counted from the end."""
    if not dim or not x.dim() or min(dim) >= 0:
        return NotImplemented
    return _NORM(x, ord, [d % x.dim() for d in dim], keepdim, dtype=dtype)


def _times_power_of_two(x: torch.Tensor, exponent: torch.Tensor) -> Any:
    """`ldexp`, for which torch's decomposition always multiplies by a power. Eager adds integers to
    the exponents of floats (torch 2.11 does not, and has a composite op), and raises a number to
    a power unless it needs another dtype than that of a number."""
    if x.is_floating_point() and not (exponent.is_floating_point() or exponent.is_complex()):
        return NotImplemented
    if x.dtype is torch.float32 or not (x.is_floating_point() or x.is_complex()):
        return x * torch.pow(2.0, exponent)
    return decomposition_table[_LDEXP](x, exponent)


def _margins(
    x: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`multilabel_margin_loss_forward`, for which torch's decomposition adds, for each position
    after the labels of a row, the margin of class 0."""
    count = x.shape[-1] if x.dim() else 1
    rows, labels = x.reshape(-1, count), target.reshape(-1, count)
    classes = torch.arange(count, device=x.device)
    end = torch.where(labels == -1, classes, count).amin(-1, keepdim=True)
    is_label = classes < end
    # Beside an infinite score no margin counts.
    scores = rows.gather(1, torch.where(is_label, labels, 0))
    scores = torch.where(is_label, scores, torch.inf)
    is_target = (classes == torch.where(is_label, labels, -1).unsqueeze(-1)).any(1)
    margins = 1.0 - scores.unsqueeze(-1) + rows.unsqueeze(1)
    counts = (margins > 0) & ~is_target.unsqueeze(1)
    losses = torch.where(counts, margins / count, 0.0).sum((1, 2))
    loss = (losses, losses.mean(), losses.sum())[reduction]
    return loss.view(x.shape[:-1]) if reduction == 0 else loss, is_target.to(x.dtype).view(x.shape)


def _isin(
    x: torch.Tensor, tests: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """`isin`, except that torch's decomposition searches a sorted row that may end with NaN, which
    breaks binary search, and dtypes that ATen cannot search, and promotes as neither way of
    eager's does."""
    few = guard_or_false(tests.numel() < _FEW * pow(x.numel(), 0.145))
    # Among few numbers eager compares, where a tensor without axes does not widen the other one;
    # among many it joins rows.
    wide = torch.result_type(x, tests) if few else torch.promote_types(x.dtype, tests.dtype)
    x, tests = x.to(wide), tests.to(wide)
    if wide in _UNSEARCHED:
        x, tests = x.to(torch.int64), tests.to(torch.int64)
    if few or not wide.is_floating_point:
        mask: torch.Tensor = decomposition_table[_ISIN](x, tests, invert=invert)
        return mask
    row, values = tests.flatten().sort()[0], x.flatten()
    positions = torch.searchsorted(torch.where(row.isnan(), torch.inf, row), values)
    same = row[torch.where(positions < row.numel(), positions, 0)] == values
    return (~same if invert else same).view(x.shape)


def _is_number_in(
    number: Any, tests: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """`isin` of a number, which torch's decomposition rounds to the default dtype. Among few
    numbers it takes their dtype, as in elementwise ops; among many it has that of Python."""
    few = guard_or_false(tests.numel() < _FEW)
    dtype = torch.result_type(number, tests) if few else _dtype_of(number)
    x = torch.scalar_tensor(number, dtype=_dtype_of(number), device=tests.device).to(dtype)
    return _isin(x, tests, invert=invert)


def _dtype_of(number: Any) -> torch.dtype:
    """The widest dtype that eager gives a number of Python's."""
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, (int, torch.SymInt)):
        return torch.int64
    return torch.complex128 if isinstance(number, complex) else torch.float64


CORRECTIONS: Mapping[torch._ops.OpOverload, Callable[..., Any]] = MappingProxyType(
    dict.fromkeys(_SLOPES, _empty_loss_gradient)
    | {
        _GAMMAS: _log_gammas,
        _SHUFFLE: _shuffled,
        _NORM: _norm,
        _LDEXP: _times_power_of_two,
        _MARGINS: _margins,
        _ISIN: _isin,
        _NUMBER_ISIN: _is_number_in,
        aten.upsample_linear1d.default: resized_by,
        aten.upsample_trilinear3d.default: resized_by,
        _BICUBIC: _resized_cubically,
    }
)
"""Decompositions of ops for which torch's own fake kernels or decompositions are wrong. Where they
return `NotImplemented`, the op stays whole."""


def _of_libraries() -> Decompositions:
    """Return corrections for ops that exist only once the libraries that define them are
    imported."""
    quantized: Any = torch.ops.quantized_decomposed
    packet = getattr(quantized, "choose_qparams_per_token", None)
    return {} if packet is None else {packet.default: _scales_of_tokens}


def _scales_of_tokens(x: torch.Tensor, dtype: torch.dtype) -> Any:
    """`choose_qparams_per_token`, whose fake kernel announces other dtypes than eager returns."""
    if dtype != torch.int8:
        return NotImplemented
    largest = x.abs().amax(-1, keepdim=True)
    scales = (largest.float() if x.dtype is torch.float16 else largest).clamp(min=1e-5).div(127)
    return scales, torch.zeros_like(scales)


_RESIZING = ("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
_NEAREST = "upsample_nearest2d.vec"
_BILINEAR = "upsample_bilinear2d.default"
_REWRITTEN = (
    "matmul.default", "softshrink.default", "hardshrink.default", "multi_margin_loss.default",
    "multilabel_margin_loss_forward.default", *_RESIZING, _BILINEAR, "upsample_bicubic2d.vec",
    "upsample_bicubic2d.default", "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec",
    "_upsample_lanczos2d_aa.vec",
)  # fmt: skip
"""Ops for which torch always traces a Python formula, whatever decompositions it is given, that
does not round as eager's op does or multiplies different matrices."""


def whole_ops() -> AbstractContextManager[None]:
    """Make torch trace the ops of `_REWRITTEN` as eager runs them, without its own formulas, and
    those of `_FORMULAS` by ours."""
    return _traced_as(dict.fromkeys(_REWRITTEN) | dict(_FORMULAS) | {_NEAREST: nearest})


def right_formulas() -> AbstractContextManager[None]:
    """Make torch trace ours in place of formulas that are wrong, which it traces, for gradients,
    whatever decompositions it is given."""
    ours: dict[str, Callable[..., Any]] = dict.fromkeys(_RESIZING, resized)
    ours[str(_MARGINS).removeprefix("aten.")] = _margins
    ours |= {_BILINEAR: resized_by, _NEAREST: nearest}
    ours |= {"upsample_bicubic2d.vec": cubic, "upsample_bicubic2d.default": cubic_by}
    return _traced_as(ours)


@contextmanager
def _traced_as(formulas: Mapping[str, Callable[..., Any] | None]) -> Iterator[None]:
    """Replace the formulas of ATen's ops; None leaves an op whole."""
    saved: list[tuple[Any, dict[Any, Any]]] = []
    for name, formula in formulas.items():
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if op is not None:
            saved.append((op, dict(op.py_kernels)))
            for key in _TRACED:
                op.py_kernels.pop(key, None)
                if formula is not None:
                    op.py_kernels[key] = formula
            op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in saved:
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _gru_cell(
    x: torch.Tensor,
    hidden: torch.Tensor,
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`gru_cell` whose `sigmoid` reads rows of a wider matrix, as eager's does, which writes its
    gates in place: the ends of rows are not computed in vectors, and may have other bits."""
    width = hidden.shape[1]
    widths = [2 * width, width]
    inputs = torch.split(torch.nn.functional.linear(x, of_input, input_bias), widths, 1)
    state = torch.split(torch.nn.functional.linear(hidden, of_hidden, hidden_bias), widths, 1)
    gates = torch.split(state[0] + inputs[0], width, 1)
    reset, update = gates[0].sigmoid(), gates[1].sigmoid()
    fresh = (inputs[1] + state[1] * reset).tanh()
    return (hidden - fresh) * update + fresh


def _margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """`multilabel_margin_loss`, of a row as of a matrix if nothing is reduced: ATen's loss of a row
    has no axes, but its meta function gives it one."""
    if x.dim() > 1 or reduction:
        loss: torch.Tensor = _MARGINS(x, target, reduction)[0]
        return loss
    return _margin_loss(x.reshape(1, -1), target.reshape(1, -1), reduction).view(())


_FORMULAS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "gru_cell.default": _gru_cell,
    "multilabel_margin_loss.default": _margin_loss,
})  # fmt: skip
"""What is traced in place of an op whose own formula has the layout of other tensors than
eager's."""
_TRACED = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)


_MOVES = frozenset(
    """
    stack unsafe_split unsafe_split_with_sizes split_with_sizes_copy pixel_shuffle pixel_unshuffle
    diagonal_backward select_backward slice_backward unfold_backward triu_indices tril_indices
    narrow_copy unbind_copy block_diag diag_embed unfold_copy channel_shuffle hstack vstack dstack
    """.split()
)
"""Ops that only move values: every decomposition of them gives the same bits."""


def exact_decompositions(table: LoweringTable | None = None) -> Decompositions:
    """Return those of `default_decompositions` that preserve eager's bits."""
    decompositions = default_decompositions(table)
    moves = {
        op: function
        for op, function in decompositions.items()
        if str(op).split(".")[1] in _MOVES or op is _LDEXP
    }
    return moves | _of_libraries()


@cache
def _candidates() -> tuple[tuple[torch._ops.OpOverload, str, Callable[..., Any]], ...]:
    """Return the ops that may be decomposed, with their names and decompositions. Depends on torch
    alone."""
    # Not the public table: it adds composite ops, which are not needed and take 0.1 s.
    return tuple(
        (op, str(op), function)
        for op, function in core_decompositions().items()
        if isinstance(op, torch._ops.OpOverload)
        and op.namespace in ("aten", "prims")
        and torch.Tag.nondeterministic_seeded not in op.tags
        and not op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        and not op.is_view
        and element_of(op) is None
    )
