"""Tracing convolutions without restricting the batch size."""

from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class UnguardedConvolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls the fake kernels of convolutions without recording guards.

    They compare the batch size with bounds of ATen's libraries, to predict the memory format of the
    result. Programs check and correct the strides of results, so they are valid for all sizes.

    Convolutions in branches and loops are called as without this mode.

    Args:
        environment: the `ShapeEnv` in which guards are recorded.
    """

    supports_higher_order_operators = True

    def __init__(self, environment: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.environment = environment

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call `func`."""
        convolves = func in (aten.convolution.default, aten._convolution.default)
        with self.environment.suppress_guards() if convolves else nullcontext():
            return func(*args, **(kwargs or {}))
