"""The process that runs packages with the C library: it answers one request per line and does not
import torch.

It runs as a file because its own package imports the compiler.
"""

import ctypes
import json
import os
import sys
from collections.abc import Sequence

from gyrator_runtime.standalone.ffi import CUDA, Array, Instance, Package, RawTensor, raw_tensor

_DRIVER = "libcuda.so.1"


class DriverMemory:
    """Memory of the first NVIDIA device, through the driver; tensors live until `free`."""

    def __init__(self) -> None:
        self._driver, context = ctypes.CDLL(_DRIVER), ctypes.c_void_p()
        self._held: list[ctypes.c_uint64] = []
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)

    def tensor(self, array: Array) -> RawTensor:
        """Return a tensor with the elements of an array."""
        raw, address = raw_tensor(array), ctypes.c_uint64()
        size = ctypes.c_size_t(max(len(array.data), 1))
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        self._held.append(address)
        self._call("cuMemcpyHtoD_v2", address, bytes(array.data), ctypes.c_size_t(len(array.data)))
        raw.data, raw.device_type = address.value, CUDA
        return raw

    def read(self, address: int, length: int) -> bytes:
        """Synchronise, and return the bytes of a result."""
        buffer = ctypes.create_string_buffer(length)
        self._call("cuCtxSynchronize")
        source = ctypes.c_uint64(address)
        self._call("cuMemcpyDtoH_v2", buffer, source, ctypes.c_size_t(length))
        return buffer.raw

    def free(self) -> None:
        """Free all tensors."""
        self._call("cuCtxSynchronize")
        while self._held:
            self._call("cuMemFree_v2", self._held.pop())

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} of the driver: error {status}")


def write_arrays(path: str, arrays: Sequence[Array]) -> None:
    """Write tensors to a file: a line of JSON, followed by their bytes."""
    rows = [[a.dtype, a.sizes, a.strides, len(a.data)] for a in arrays]
    with open(path, "wb") as file:
        file.write(json.dumps(rows).encode() + b"\n")
        for a in arrays:
            file.write(a.data)


def read_arrays(path: str) -> list[Array]:
    """Read tensors from a file of `write_arrays`."""
    with open(path, "rb") as file:
        rows = json.loads(file.readline())
        return [
            Array(dtype, tuple(sizes), file.read(size), tuple(strides))
            for dtype, sizes, strides, size in rows
        ]


def run(package: Package, instance: Instance, source: str, to: str) -> None:
    """Run a model on saved inputs; save its results, followed by modified buffers."""
    results = instance.run(read_arrays(source))
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
    memory: DriverMemory | None = None
    for line in sys.stdin:
        request, error = json.loads(line), ""
        try:
            if "load" in request:
                if package is not None and instance is not None:
                    instance.close()
                    package.close()
                for library in request["first"]:  # found by their names from then on
                    ctypes.CDLL(library)
                package = Package.open(request["load"], request["library"], verify=True)
                if request["driven"] and memory is None:
                    memory = DriverMemory()
                instance = package.instance(memory)
            elif package is not None and instance is not None:
                run(package, instance, request["run"], request["to"])
                if memory is not None:
                    memory.free()
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
