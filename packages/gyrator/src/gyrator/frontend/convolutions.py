"""Tracing convolutions without restricting the batch size."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
_CONVOLUTIONS = (
    aten.convolution.default,
    aten._convolution.default,
    aten.convolution_backward.default,
)


@contextmanager
def unguarded_convolutions(mode: FakeTensorMode) -> Iterator[None]:
    """Call the fake kernels of convolutions without recording guards for the duration of the block.

    They compare the batch size with bounds of ATen's libraries, to predict the memory format of the
    result. Programs check and correct the strides of results, so they are valid for all sizes.

    The mode itself is changed, because other dispatch modes are disabled while the branches of a
    `torch.cond` and the bodies of loops are traced.
    """
    environment, dispatch = mode.shape_env, mode.dispatch
    if environment is None:
        yield
        return

    def unguarded(func: Any, *args: Any) -> Any:
        with environment.suppress_guards() if func in _CONVOLUTIONS else nullcontext():
            return dispatch(func, *args)

    mode.dispatch = unguarded  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del mode.dispatch
