"""Functions compiled by `torch.compile(f, fullgraph=True).aot_compile(...)`, saved by Dynamo.

Dynamo's part of the file contains its bytecode and guards; Gyrator's part is a `SavedGraph`.
"""

from typing import Any

from torch._dynamo.aot_compile_types import SerializableCallable

from gyrator.frontend.saved_graphs import SavedGraph
from gyrator.session import default_session


class Precompiled(SavedGraph, SerializableCallable):
    """A compiled graph that Dynamo saves, and loads through the default session's cache."""

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        """Return the bytes that `deserialize_compile_artifacts` takes."""
        data: bytes = fn.data()
        return data

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Any:
        """Return the function; see `SavedGraph.read`."""
        return cls.read(data, default_session().frontend)
