"""The text of a user's kernel, run: what every host language needs to launch it."""

import ast
import linecache
from collections.abc import Mapping
from hashlib import sha256
from typing import Any


def defined_last(source: str, given: Mapping[str, Any]) -> Any:
    """Run the text of a `UserKernel` as a module, and return the function that it defines last.

    The lines are put where `inspect` finds them, since Triton reads the text of its functions.

    Args:
        source: text that defines at least one function.
        given: names that the text may use without importing them.
    """
    digest = sha256(source.encode()).hexdigest()[:16]
    filename = f"<gyrator user kernel {digest}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    namespace: dict[str, Any] = {**given, "__name__": f"gyrator_user_kernel_{digest}"}
    exec(compile(source, filename, "exec"), namespace)
    names = [s.name for s in ast.parse(source).body if isinstance(s, ast.FunctionDef)]
    return namespace[names[-1]]
