"""Tile IR passes, each of which makes one kind of decision, and pipelines for three kinds of
machines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gyrator_codegen.passes.blocks.pipeline import block_pipeline
    from gyrator_codegen.passes.cores.pipeline import vector_pipeline
    from gyrator_codegen.passes.threads.pipeline import thread_pipeline

__all__ = ["block_pipeline", "thread_pipeline", "vector_pipeline"]

_FOLDERS = {"block_pipeline": "blocks", "thread_pipeline": "threads", "vector_pipeline": "cores"}
"""The folder of each pipeline. Pipelines are imported lazily, since a language needs only one."""


def __getattr__(name: str) -> Any:
    if name not in _FOLDERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FOLDERS[name]}.pipeline"), name)
