"""Eager execution with changes that no contract rules out.

Each mode changes the results of ATen ops, below autograd, so that gradients change too. A compiled
program that differs from eager only in values that such a mode also changes is not wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten

_EXACT = frozenset(
    """
    _reshape_alias _to_copy _unique2 _unsafe_index abs adaptive_max_pool2d adaptive_max_pool3d
    add alias amax amin aminmax argsort as_strided as_strided_scatter bernoulli bucketize cat
    cauchy ceil channel_shuffle clamp clamp_max clamp_min clone col2im complex constant_pad_nd
    copy copysign cummax cummin diag_embed diagonal_copy diagonal_scatter div embedding empty
    empty_like empty_strided exponential fill flip floor fmax fmin frac full full_like gather
    geometric glu hardshrink hardtanh heaviside im2col index index_copy index_fill index_put
    index_select isin kthvalue leaky_relu lift_fresh log_normal logical_not masked_fill
    masked_scatter masked_select max max_pool2d_with_indices max_pool3d_with_indices maximum
    median min minimum mode mul nan_to_num nanmedian native_channel_shuffle neg new_empty
    new_full new_ones new_zeros nextafter normal ones ones_like permute pixel_shuffle
    pixel_unshuffle poisson put rand rand_like randint randn randn_like random randperm
    reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu repeat replication_pad1d
    replication_pad2d replication_pad3d resize roll round rsub scalar_tensor scatter
    select_backward select_scatter set sgn sign slice_backward slice_scatter sort split squeeze
    stack sub take threshold topk tril triu trunc unfold uniform unique_consecutive unique_dim
    unsqueeze upsample_nearest1d upsample_nearest2d upsample_nearest3d where zero zeros
    zeros_like
    """.split()
)
"""Ops with a unique result: they move or select elements, draw random ones, or round once."""


_ROUNDING = frozenset({"alpha", "reduce", "rounding_mode"})
"""Arguments with which those ops round otherwise."""


def base_name(op: OpOverload) -> str:
    """Return an op's name without namespace, overload, `_foreach` prefix and in-place suffix."""
    name = op._schema.name.split("::")[1].removeprefix("_foreach_")
    return name if name.endswith("__") else name.removesuffix("_")


@contextmanager
def eagerly(mode: AbstractContextManager[Any]) -> Iterator[None]:
    """Run eager mode altered: eager `torch.cond` goes through Dynamo, which, when it meets a mode,
    skips the function for good and fails at what that calls once the mode is left."""
    with torch.compiler.set_stance("force_eager"), mode:
        yield


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs ops in another way, also those in functions that higher-order ops call."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op."""
        if isinstance(func, HigherOrderOperator):
            inner_args, inner_kwargs = tree_map(self._reaching_into, (args, kwargs or {}))
            return func(*inner_args, **inner_kwargs)
        return self.run(func, args, kwargs or {})

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an op that calls no function."""
        raise NotImplementedError

    def _reaching_into(self, value: Any) -> Any:
        if not callable(value):
            return value

        @wraps(value)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return inside


class Drawn(_Mode):
    """Records the results of random ops, or replays those of another run, so that both draw the
    same numbers."""

    def __init__(self, recorded: list[list[Tensor]] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = None if recorded is None else iter(recorded)
        self.kept: list[list[Tensor]] = []

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an op.

        Raises:
            ValueError: The recorded run drew something else at this point.
        """
        out = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return out
        drawn = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if self.given is None:
            self.kept.append([t.detach().clone() for t in drawn])
            return out
        for target, recorded in zip(drawn, next(self.given, ()), strict=True):
            if target.shape != recorded.shape:
                raise ValueError(f"{func} drew {tuple(target.shape)}, not {tuple(recorded.shape)}")
            target.copy_(recorded)
        return out


class Rounded(_Mode):
    """Moves what functions and folds return by two units in the last place: a function's result of
    itself, up or down as its value says, so that equal ones stay equal; a fold's of the largest.

    Functions of tensors of one shape are taken of longer ones, so that all elements go through
    vectors: ATen has other values of some in the scalar loop that ends a row.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)
        self.turns = 7919.3 + seed

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an op."""
        out = func(*args, **kwargs)
        returned = func._schema.returns
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in returned)
        if views or (base_name(func) in _EXACT and not _ROUNDING & kwargs.keys()):
            return out
        writes = any(r.alias_info is not None for r in returned) or not returned
        pointwise = torch.Tag.pointwise in func.tags or base_name(func) in _UNTAGGED
        pointwise = pointwise or "_foreach_" in str(func)
        move = self._moved if pointwise else self._spread
        if pointwise and not writes and isinstance(out, Tensor) and out.numel():
            _copy_of_vectors(out, func, args, kwargs)
        for t in tree_leaves(args[0] if writes and not returned else out):
            if isinstance(t, Tensor) and t.is_floating_point() and t.numel():
                t.copy_(move(t))
        return out

    def _moved(self, t: Tensor) -> Tensor:
        up = (t.double() * self.turns).fmod(2).abs() < 1
        return t * (1 + torch.where(up, 2, -2) * torch.finfo(t.dtype).eps)

    def _spread(self, t: Tensor) -> Tensor:
        with torch.device(self.generator.device):
            parts = torch.rand(t.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        largest = t.double().nan_to_num(0, 0, 0).abs().max()
        moved = t.double() + parts.to(t.device) * largest * 2 * torch.finfo(t.dtype).eps
        return moved.to(t.dtype)


class Cancelled(_Mode):  # type: ignore[no-untyped-call]
    """Takes results of norms for 0 that are no larger than what rounding their input changes: of a
    constant row, which is its own mean, a norm returns 0 or noise, by the order of its steps."""

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an op."""
        name = base_name(func)
        if not name.endswith(_NORMS) or not _is_inexact(args[0]):
            return func(*args, **kwargs)
        x = args[0]
        turns = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 2 * 2 - 1
        moved = []
        for by in (4, -4):
            own, own_kwargs = tree_map(_copied, (args[1:], kwargs))  # statistics are written
            moved.append(func(x * (1 + by * turns * torch.finfo(x.dtype).eps), *own, **own_kwargs))
        out = func(*args, **kwargs)
        result, *others = (tree_leaves(v)[0] for v in (out, *moved))
        noise = torch.maximum(*((result - other).abs() for other in others))
        result.masked_fill_(result.abs() <= noise, 0)
        return out


class Converted(_Mode):
    """Converts out-of-range floats to arbitrary integers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(13)

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an op."""
        kwargs = dict(kwargs)
        name, dtype = base_name(func), kwargs.get("dtype")
        if name == "copy" and isinstance(args[0], Tensor):
            dtype = args[0].dtype
        if name.startswith("fake_quantize_per_channel"):  # through int64, whatever the range
            fits = args[0].abs() < 2.0**53
            return func(torch.where(fits, args[0], 1e9), *args[1:], **kwargs)
        source = next((k for k, t in enumerate(args) if _is_inexact(t)), None)
        if source is None or dtype is None or not _is_integer(dtype):
            return func(*args, **kwargs)
        converted = self._made(args[source], dtype)
        return func(*args[:source], converted, *args[source + 1 :], **kwargs)

    def _made(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        whole = (t.real if t.is_complex() else t).double().trunc()
        info = torch.iinfo(dtype)
        fits = (whole >= float(info.min)) & (whole < float(info.max + 1))
        signed = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[info.bits]
        with torch.device(self.generator.device):
            ends = torch.iinfo(torch.int64)
            drawn = torch.randint(ends.min, ends.max, t.shape, generator=self.generator)
        any_bits = drawn.to(t.device).to(signed)
        return torch.where(fits, t.to(dtype).view(signed), any_bits).view(dtype)


class Stable(_Mode):  # type: ignore[no-untyped-call]
    """Makes sorts stable."""

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an op."""
        if func is aten.sort.default:
            return aten.sort.stable(
                args[0], stable=True, dim=args[1] if len(args) > 1 else -1,
                descending=len(args) > 2 and args[2],
            )  # fmt: skip
        return func(*args, **kwargs)


class Widened(_Mode):  # type: ignore[no-untyped-call]
    """Computes norms, and other functions of squares, in float64."""

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an op."""
        name = base_name(func)
        if not ("norm" in name or name in _SQUARES) or not func._schema.returns:
            return func(*args, **kwargs)
        wide_args = tree_map(_wide, (args, kwargs))
        out = func(*args, **kwargs)
        wide = func(*wide_args[0], **wide_args[1])
        for narrow, precise in zip(tree_leaves(out), tree_leaves(wide), strict=True):
            if isinstance(narrow, Tensor) and narrow.is_floating_point():
                narrow.copy_(precise)
        return out


class Laid(_Mode):
    """Gives results the layouts of torch's fake kernels, and those without elements their shapes.

    Args:
        single: change only the strides of size-1 dimensions.
        rows: draw random numbers in row-major order; otherwise in the order of memory.
    """

    def __init__(self, single: bool = False, rows: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.single = single
        self.rows = rows and not single
        self.fakes = FakeTensorMode()

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an op."""
        if self.rows and _draws_in_place(func) and not args[0].is_contiguous():
            return args[0].copy_(func(args[0].contiguous(), *args[1:], **kwargs))
        out = func(*args, **kwargs)
        returned = func._schema.returns
        if not returned or any(r.alias_info is not None for r in returned):
            return out
        try:
            with self.fakes:
                fake_args, fake_kwargs = tree_map(_without_values, (args, kwargs))
                fakes = func(*fake_args, **fake_kwargs)
        except Exception:  # sizes that values decide, or an op without a fake kernel
            return out
        return tree_map(self._laid, out, fakes)

    def _laid(self, t: Any, fake: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        if t.numel() == fake.numel() == 0 and t.shape != fake.shape and not self.single:
            return t.new_empty_strided(fake.shape, fake.stride())
        if t.shape != fake.shape or t.stride() == fake.stride():
            return t
        axes = zip(t.shape, t.stride(), fake.stride(), strict=True)
        moves = any(n > 1 and stride != expected for n, stride, expected in axes)
        if t.layout is not torch.strided or (self.single and moves):
            return t
        copy = torch.empty_strided(t.shape, fake.stride(), dtype=t.dtype, device=t.device)
        return copy.copy_(t)


class Owned(_Mode):  # type: ignore[no-untyped-call]
    """Gives each new result memory for its own elements alone."""

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an op."""
        out = func(*args, **kwargs)
        returned = func._schema.returns
        if not returned or any(r.alias_info is not None for r in returned):
            return out
        return tree_map(_owned, out)


def _owned(t: Any) -> Any:
    if not isinstance(t, Tensor) or t.layout is not torch.strided or not t.numel():
        return t
    spans = (stride * (n - 1) for n, stride in zip(t.shape, t.stride(), strict=True))
    if t.untyped_storage().nbytes() <= (sum(spans) + 1) * t.element_size():
        return t
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)


def formula_of_attention() -> Any:
    """Run attention by its formula, where a row that contains NaN is NaN: ATen's kernel for the
    host takes such a row for one that is masked as a whole, whose result is 0."""
    return sdpa_kernel(SDPBackend.MATH)


def _draws_in_place(func: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags and func._schema.is_mutable


def _without_values(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    empty = torch._conj(empty) if value.is_conj() else empty
    return torch._neg_view(empty) if value.is_neg() else empty


_UNTAGGED = frozenset({
    f"{name}_backward" for name in (
        "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logit",
        "mish", "sigmoid", "silu", "softplus", "softshrink", "tanh", "threshold",
    )
})  # fmt: skip
"""Elementwise functions without the tag `pointwise`."""
_SQUARES = frozenset({"var", "std", "var_mean", "std_mean", "_cdist_forward", "renorm"})
_NORMS = ("batch_norm", "batch_norm_legit", "batch_norm_with_update", "layer_norm", "group_norm")
Alteration = tuple[str, Callable[[], Any]]
"""A property, and what makes a context in which eager execution has another one."""
ALTERATIONS: Sequence[Alteration] = (
    ("conversion", Converted), ("ties", Stable), ("overflow", Widened), ("layout", Laid),
    ("layout", partial(Laid, rows=False)), ("attention", formula_of_attention),
    *(("unstable", partial(Rounded, seed)) for seed in range(4)), ("unstable", Cancelled),
)  # fmt: skip
"""The modes, by the property whose freedom they demonstrate."""
RESTRIDED: Sequence[Alteration] = (("layout", partial(Laid, single=True)),)
"""The same for strides, which leave less freedom."""


def _copy_of_vectors(out: Tensor, func: OpOverload, args: Any, kwargs: Any) -> None:
    """Return the values that a function has in the middle of a long row."""
    shapes = {t.shape for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
    if shapes != {out.shape}:
        return
    kwargs = {name: value for name, value in kwargs.items() if name != "memory_format"}

    def row(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.cat([value.flatten(), value.new_ones(_LONG)])

    long_args, long_kwargs = tree_map(row, (args, kwargs))
    out.copy_(func(*long_args, **long_kwargs)[: out.numel()].view(out.shape))


_LONG = 64
"""More elements than one loop iteration processes with the widest vectors."""


def _is_inexact(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _wide(value: Any) -> Any:
    wide = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(torch.float64, copy=True) if wide else value
