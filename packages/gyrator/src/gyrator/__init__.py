"""Gyrator: `torch.compile(model, backend="gyrator")`.

>>> import torch
>>> fast = torch.compile(torch.nn.Softmax(-1), backend="gyrator")
>>> fast(torch.zeros(1, 2))
tensor([[0.5000, 0.5000]])
"""

from gyrator.options import OptionError, Options, list_modes, list_options
from gyrator.reports.explain import Explanation, explain
from gyrator.reports.records import ExternRecord, GraphRecord, KernelRecord
from gyrator.session import Session, default_session
from gyrator_ir.passes import PassEdits

__all__ = [
    "Explanation",
    "ExternRecord",
    "GraphRecord",
    "KernelRecord",
    "OptionError",
    "Options",
    "PassEdits",
    "Session",
    "default_session",
    "explain",
    "list_modes",
    "list_options",
]
