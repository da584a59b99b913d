"""The process that runs packages by C: it answers a request a line, and does not import torch.

Run as a file, for its own package imports the compiler.
"""

import ctypes
import json
import os
import sys
from collections.abc import Sequence

from gyrator_runtime.standalone.ffi import Array, Instance, Package


def write_arrays(path: str, arrays: Sequence[Array]) -> None:
    """Write tensors to a file: a line of JSON, and their bytes one after the other."""
    rows = [[a.dtype, a.sizes, a.strides, len(a.data)] for a in arrays]
    with open(path, "wb") as file:
        file.write(json.dumps(rows).encode() + b"\n")
        for a in arrays:
            file.write(a.data)


def read_arrays(path: str) -> list[Array]:
    """Return what `write_arrays` wrote."""
    with open(path, "rb") as file:
        rows = json.loads(file.readline())
        return [
            Array(dtype, tuple(sizes), file.read(size), tuple(strides))
            for dtype, sizes, strides, size in rows
        ]


def run(package: Package, instance: Instance, given: str, to: str) -> None:
    """Run a model on saved inputs; save its results, and then the buffers that it writes."""
    results = instance.run(read_arrays(given))
    written = [instance.read(w.name) for w in package.weights if w.written]
    if "torch" in sys.modules:
        raise ImportError("a package that C runs imports torch")
    write_arrays(to, [*results, *written])


def serve() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    package: Package | None = None
    instance: Instance | None = None
    for line in sys.stdin:
        request, error = json.loads(line), ""
        try:
            if "load" in request:
                if package is not None and instance is not None:
                    instance.close()
                    package.close()
                if request["first"]:  # found by its name from then on
                    ctypes.CDLL(request["first"])
                package = Package.open(request["load"], request["library"], verify=True)
                instance = package.instance()
            elif package is not None and instance is not None:
                run(package, instance, request["run"], request["to"])
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
