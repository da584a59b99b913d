"""The C libraries that run packages without Python: their sources, built here.

`libgyrator_runtime` needs no libtorch; `libgyrator_torch` calls operators by libtorch's C ABI.

- `include`: `gyrator.h`, the interface, and `gyrator.hpp`, the same for C++.
- `src`: `archive`, `json`: the file; `package`: what is in it, linked; `program`: plans, looked
  through word by word; `executor`: a call; `api`: the interface. `operators` is all that differs:
  in `src/torch`, and in `src/alone`, which has none.
- `library`: builds them; says which plans they run.

They run the words of plans by the same text as the runner for Python, `native/plan.h`.
"""

from gyrator_runtime.standalone.library import (
    LibraryError,
    SharedRuntime,
    install,
    shared_runtime,
    takes_python,
)

__all__ = ["LibraryError", "SharedRuntime", "install", "shared_runtime", "takes_python"]
