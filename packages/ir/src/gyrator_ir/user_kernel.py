"""Executing the source text of a user-written kernel, shared by all host languages."""

import ast
import linecache
from collections.abc import Mapping
from hashlib import sha256
from typing import Any


def defined_last(source: str, globals: Mapping[str, Any]) -> Any:
    """Execute the source of a `UserKernel` as a module and return the last function it defines.

    The lines are added to `linecache`, because Triton reads the source of functions by `inspect`.

    Args:
        source: text that defines at least one function.
        globals: names that the text may use without importing them.
    """
    digest = sha256(source.encode()).hexdigest()[:16]
    filename = f"<gyrator user kernel {digest}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    namespace: dict[str, Any] = {**globals, "__name__": f"gyrator_user_kernel_{digest}"}
    exec(compile(source, filename, "exec"), namespace)
    names = [s.name for s in ast.parse(source).body if isinstance(s, ast.FunctionDef)]
    return namespace[names[-1]]
