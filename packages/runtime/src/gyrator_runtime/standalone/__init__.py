"""The C libraries that run packages without Python: their sources, and how to build them.

`libgyrator_runtime` does not need libtorch; `libgyrator_torch` calls operators through libtorch's C
ABI.

- `include`: the interface `gyrator.h`, and its C++ form `gyrator.hpp`.
- `src`: `archive`, `json`: the file format; `package`: loading and linking; `program`: verification
  of plans; `executor`: a call; `api`: the interface. The libraries differ only in `operators`: in
  `src/torch`, and in `src/alone`, which has none.
- `library`: builds them, and determines which plans they can run.

They interpret plans with the same source as the Python runner, `native/plan.h`.
"""

from gyrator_runtime.standalone.library import (
    LibraryError,
    SharedRuntime,
    install,
    shared_runtime,
    unsupported_features,
)

__all__ = ["LibraryError", "SharedRuntime", "install", "shared_runtime", "unsupported_features"]
