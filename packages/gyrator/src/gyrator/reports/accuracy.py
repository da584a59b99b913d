"""The accuracy criterion for compiled results, shared by all checks.

The exact result is computed in float64. A compiled program may round differently from eager
execution, but its error must not be larger.
"""

from collections.abc import Iterable, Sequence
from math import isinf, log, sqrt
from statistics import fmean, geometric_mean, stdev
from typing import Any

import torch
from torch import Tensor

_TOLERANCE = {
    torch.float32: 2e-5,
    torch.float64: 1e-9,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
    torch.complex32: 5e-3,
    torch.complex64: 4e-5,
    torch.complex128: 1e-9,
}
_SLACK = 4.0
"""The maximum error of a value relative to eager's largest error, both against float64."""
DRAWS = 5
"""The number of random inputs on which a small block is judged if the first exceed its bound."""


def worst_error(got: Sequence[Tensor], exact: Sequence[Tensor], single: int = 2) -> float:
    """Return the largest relative error of each of the first `single` results, and of the rest.

    Each is the L2 norm of the difference over the norm of the exact value, in float64. The rest,
    gradients, are combined, since some are exactly 0, such as that of a bias before a softmax over
    keys. Infinite if the exact norm is 0 and the result is not, or if the result is not finite.

    Raises:
        ValueError: The numbers of results differ.
    """
    if len(got) != len(exact):
        raise ValueError(f"{len(got)} results against {len(exact)}")
    pairs = [((g.double() - e).norm(), e.norm()) for g, e in zip(got, exact, strict=True)]
    errors = [_ratio(difference, norm) for difference, norm in pairs[:single]]
    if rest := pairs[single:]:
        errors.append(_ratio(*(torch.stack(part).norm() for part in zip(*rest, strict=True))))
    return max(errors, default=0.0)


def within_bound(ours: Sequence[float], eager: Sequence[float], dtype: torch.dtype) -> bool:
    """Return whether a model's errors are within twice eager's in float32, or within eager's in
    other dtypes.

    Element k of both is the error for sample k of weights and inputs. If both sides round alike,
    either may be better for a single sample of a narrow dtype, so the geometric mean of the ratios
    is compared, which may exceed the bound by two standard errors of that mean. A single sample
    gets no allowance.
    """
    factor = 2.0 if dtype is torch.float32 else 1.0
    if len(ours) == 1 or any(error == 0.0 or isinf(error) for error in (*ours, *eager)):
        return all(a <= factor * b for a, b in zip(ours, eager, strict=True))
    ratios = [log(a / b) for a, b in zip(ours, eager, strict=True)]
    return fmean(ratios) - 2.0 * stdev(ratios) / sqrt(len(ratios)) <= log(factor)


def allowed_block_error(eager_error: float, dtype: torch.dtype) -> float:
    """Return the error bound for small blocks, whose errors vary more because they round less
    often.

    Twice eager's error, and never less than one unit in the last place: the distance from 1 to the
    next value of `dtype`. Eager's error of a single value may happen to be 0.
    """
    return max(2.0 * eager_error, torch.finfo(dtype).eps)


def block_errors(
    draws: Iterable[tuple[float, float]], dtype: torch.dtype, most: float = 2.0
) -> tuple[float, float, float]:
    """Return the error of a small block, eager's, and the bound, of several draws of inputs, each
    with both errors.

    They are the geometric means, since cancellation loses digits by chance; or the errors of the
    first draw that exceeds its bound more than `most` times, after which no other is taken.
    """
    errors: list[tuple[float, float]] = []
    for ours, eager in draws:
        bound = allowed_block_error(eager, dtype)
        if ours > most * bound:
            return ours, eager, bound
        errors.append((ours, eager))
    tiny = torch.finfo(torch.float64).tiny
    ours, eager = (geometric_mean(max(e, tiny) for e in side) for side in zip(*errors, strict=True))
    return ours, eager, allowed_block_error(eager, dtype)


def plain(t: Tensor) -> Tensor:
    """Return the values as a CPU tensor without lazy bits; complex values as their parts."""
    t = t.detach().resolve_conj().resolve_neg().cpu()
    return torch.view_as_real(t) if t.is_complex() else t


def is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether values are within the tolerance of their dtype; integers must be equal."""
    return not bool(differs(a, b).any())


def differs(a: Tensor, b: Tensor) -> Tensor:
    """Return a mask of the values that are not within the tolerance of their dtype, or not equal.

    Its shape is that of the operands, followed by 2 if they are complex.
    """
    tolerance = _TOLERANCE.get(b.dtype)
    if tolerance is None:
        return a.cpu() != b.cpu()
    x, y = plain(a).double(), plain(b).double()
    return ~torch.isclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)


def is_as_near(a: Tensor, b: Tensor, true: Any) -> bool:
    """Return whether a value is about as close to the float64 value as eager's.

    It must be finite wherever eager's or the float64 value is.
    """
    if not isinstance(true, Tensor) or true.shape != b.shape or b.dtype not in _TOLERANCE:
        return False
    if true.is_complex() != b.is_complex():
        return False
    x, y, z = (plain(t).double() for t in (a, b, true))
    finite, exact = x.isfinite(), z.isfinite()
    if not bool(((finite == y.isfinite()) | (finite == exact)).all()):
        return False
    ours = torch.where(finite & exact, (x - z).abs(), 0)
    eager = torch.where(y.isfinite() & exact, (y - z).abs(), 0)
    largest = torch.where(exact, z, 0).abs()
    scale = torch.finfo(b.dtype).eps * largest.max() if z.numel() else 0.0
    return bool((ours <= _SLACK * eager.max() + _SLACK * scale).all())


def describe_difference(a: Tensor, b: Tensor) -> str:
    """Describe how many values differ, and the first of them."""
    x, y = plain(a).double().reshape(-1), plain(b).double().reshape(-1)
    wrong = ~torch.isclose(x, y, rtol=_TOLERANCE.get(b.dtype, 0.0), atol=0.0, equal_nan=True)
    (indices,) = torch.nonzero(wrong, as_tuple=True)
    if not len(indices):
        return "equal but for tiny values"
    k = int(indices[0])
    return f"{len(indices)} of {x.numel()} differ, first [{k}] {x[k]:.9g}, eager {y[k]:.9g}"


def _ratio(difference: Tensor, norm: Tensor) -> float:
    if not bool(torch.isfinite(difference)):
        return float("inf")
    if float(norm) == 0.0:
        return 0.0 if float(difference) == 0.0 else float("inf")
    return float(difference / norm)
