"""`gyrator::panel_mm`: a matrix product whose right factor is stored in panels of columns.

Generated kernels read a panel from beginning to end, as a library reads its packed weights.
"""

import torch

SCHEMA = "panel_mm(Tensor x, Tensor panels) -> Tensor"


def fake_panel_mm(x: torch.Tensor, panels: torch.Tensor) -> torch.Tensor:
    """Return a fake result of `panel_mm`."""
    return x.new_empty(x.shape[0], panels.shape[0] * panels.shape[2])


def in_panels(weight: torch.Tensor, width: int) -> torch.Tensor:
    """Return the panels, of `width` columns, of a weight of shape (columns, depth)."""
    columns, depth = weight.shape
    return weight.view(columns // width, width, depth).permute(0, 2, 1).contiguous()


def panel_mm(x: torch.Tensor, panels: torch.Tensor) -> torch.Tensor:
    """Return a product of matrices.

    Args:
        x: of shape (rows, depth).
        panels: the right factor, of shape (panels, depth, columns of a panel).
    """
    return x @ panels.permute(1, 0, 2).flatten(1)
