"""The C library that runs packages without Python and without libtorch: its sources, built here.

- `include`: `gyrator.h`, the interface, and `gyrator.hpp`, the same for C++.
- `src`: `archive`, `json`: the file; `package`: what is in it, linked; `program`: plans, looked
  through word by word; `executor`: a call; `api`: the interface.
- `library`: builds it; says which plans it runs.

It runs the words of plans by the same text as the runner for Python, `native/plan.h`.
"""

from gyrator_runtime.standalone.library import (
    LibraryError,
    SharedRuntime,
    install,
    shared_runtime,
    takes_python,
)

__all__ = ["LibraryError", "SharedRuntime", "install", "shared_runtime", "takes_python"]
