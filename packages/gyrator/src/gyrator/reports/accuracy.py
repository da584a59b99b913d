"""How far from the exact result a compiled one may be: one rule for all that judges.

The exact result is computed in float64. Eager execution's own distance from it is the yardstick:
a compiled program may round in another order, not worse.
"""

from collections.abc import Sequence
from math import isinf, log, sqrt
from statistics import fmean, stdev

import torch
from torch import Tensor


def worst_error(got: Sequence[Tensor], exact: Sequence[Tensor], single: int = 2) -> float:
    """Return the largest relative error: of each of the first `single` results, and of the rest.

    Each is the L2 norm of the difference over the norm of the exact value, in float64. The rest,
    gradients, are taken together since some are exactly 0, as that of a bias before a softmax over
    keys. Infinite where the exact norm is 0 and the result is not, or where the result is not
    finite.

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
    """Tell whether a whole model's errors are within twice eager's in float32, eager's otherwise.

    Element k of both is the error on draw k of weights and inputs. Where both sides round alike,
    one draw of a narrow type is a toss of a coin: the geometric mean of the ratios is judged, and
    it may exceed the bound by two standard errors of that mean. A single draw gets no allowance.
    """
    factor = 2.0 if dtype is torch.float32 else 1.0
    if len(ours) == 1 or any(error == 0.0 or isinf(error) for error in (*ours, *eager)):
        return all(a <= factor * b for a, b in zip(ours, eager, strict=True))
    ratios = [log(a / b) for a, b in zip(ours, eager, strict=True)]
    return fmean(ratios) - 2.0 * stdev(ratios) / sqrt(len(ratios)) <= log(factor)


def allowed_block_error(eager_error: float, dtype: torch.dtype) -> float:
    """Return the bound for small blocks, whose few roundings leave more to chance.

    Twice eager's error, and never less than one unit in the last place: the distance from 1 to the
    next value of `dtype`. Eager's error of a single number may happen to be 0.
    """
    return max(2.0 * eager_error, torch.finfo(dtype).eps)


def _ratio(difference: Tensor, norm: Tensor) -> float:
    if not bool(torch.isfinite(difference)):
        return float("inf")
    if float(norm) == 0.0:
        return 0.0 if float(difference) == 0.0 else float("inf")
    return float(difference / norm)
