"""`gyrator::panel_mm`: a matrix product whose right factor is stored in panels of columns.

Generated kernels read a panel from beginning to end, as a library reads its packed weights.
"""

import functools
import threading
from typing import Any

import torch

from gyrator_lowering.torch_bridge.random_ops import LIBRARY

_LOCK = threading.Lock()


def register_panels() -> None:
    """Register the op with the dispatcher. Idempotent and thread-safe."""
    with _LOCK:
        _defined()


@functools.cache
def _defined() -> Any:
    """Register the op and return its library, which the cache keeps alive."""
    make: Any = torch.library.Library
    library = make(LIBRARY, "FRAGMENT")
    library.define("panel_mm(Tensor x, Tensor panels) -> Tensor")
    library.impl("panel_mm", panel_mm, "CompositeExplicitAutograd")
    register: Any = torch.library.register_fake
    register("gyrator::panel_mm", _fake_panel_mm, lib=library)
    return library


def _fake_panel_mm(x: torch.Tensor, panels: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], panels.shape[0] * panels.shape[2])


def panel_mm(x: torch.Tensor, panels: torch.Tensor) -> torch.Tensor:
    """Return a product of matrices.

    Args:
        x: of shape (rows, depth).
        panels: the right factor, of shape (panels, depth, columns of a panel).
    """
    return x @ panels.permute(1, 0, 2).flatten(1)
