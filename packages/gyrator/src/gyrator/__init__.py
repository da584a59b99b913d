"""Gyrator: `torch.compile(model, backend="gyrator")`.

>>> import torch
>>> fast = torch.compile(torch.nn.Softmax(-1), backend="gyrator")
>>> fast(torch.zeros(1, 2))
tensor([[0.5000, 0.5000]])
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gyrator.store.torch_import import register_with_torch

if TYPE_CHECKING:
    from gyrator.frontend.saved_graphs import CompiledArtifact
    from gyrator.graphs.parts import PartCompiler
    from gyrator.options import OptionError, Options, list_modes, list_options
    from gyrator.reports.explain import Explanation, explain
    from gyrator.reports.measurements import Span, Timeline
    from gyrator.reports.records import (
        Cost,
        ExternRecord,
        GraphRecord,
        KernelRecord,
        MemoryStep,
        PartitionRecord,
        StorageRecord,
    )
    from gyrator.session import Session, default_session
    from gyrator_ir.passes import PassEdits

__all__ = [
    "CompiledArtifact", "Cost", "Explanation", "ExternRecord", "GraphRecord", "KernelRecord",
    "MemoryStep", "OptionError", "Options", "PartCompiler", "PartitionRecord", "PassEdits",
    "Session", "Span", "StorageRecord", "Timeline", "default_session", "explain", "list_modes",
    "list_options",
]  # fmt: skip

_MODULES = {
    name: module
    for module, names in {
        "gyrator.frontend.saved_graphs": "CompiledArtifact",
        "gyrator.graphs.parts": "PartCompiler",
        "gyrator.options": "OptionError Options list_modes list_options",
        "gyrator.reports.explain": "Explanation explain",
        "gyrator.reports.measurements": "Span Timeline",
        "gyrator.reports.records": "Cost ExternRecord GraphRecord KernelRecord MemoryStep "
        "PartitionRecord StorageRecord",
        "gyrator.session": "Session default_session",
        "gyrator_ir.passes": "PassEdits",
    }.items()
    for name in names.split()
}
"""The module of each public name. Names are imported on first access: a process that only runs
packages (`gyrator.aot.load`) needs no compiler, and the command line's help does not need torch.
No garbage collection runs meanwhile: one of the compiler's own objects takes 0.04 s and frees
20,000 small ones, and one of what PyTorch has loaded takes 0.16 s."""

register_with_torch()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = sys.modules.get(_MODULES[name])
    if hasattr(module, name):  # later accesses leave the collector alone, and so its counts
        return getattr(module, name)
    from gyrator_runtime.collector import only_new_objects

    with only_new_objects(collect=False):
        return getattr(import_module(_MODULES[name]), name)
