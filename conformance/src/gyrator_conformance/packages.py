"""Models as packages, run by a process without any compiler package."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from attrs import define, field
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.utils._pytree import tree_map_only

from gyrator import aot
from gyrator.session import default_session
from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_conformance.cells import Cell
from gyrator_conformance.models import Model
from gyrator_conformance.package_child import random_states
from gyrator_conformance.process import LineProcess
from gyrator_conformance.standalone_child import read_arrays, write_arrays
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_runtime.standalone import shared_runtime
from gyrator_runtime.standalone.ffi import Array
from gyrator_runtime.standalone.library import LIBTORCH
from gyrator_runtime.toolchain import find_toolchain

CHILD = Path(__file__).with_name("package_child.py")
"""The script of the process with torch."""
STANDALONE_CHILD = Path(__file__).with_name("standalone_child.py")
"""The script of the process that has only the C library, and libtorch if the library uses it."""
_LIBTORCH = Path(torch.__file__).parent / "lib"
_LIBTORCH_CUDA = "libtorch_cuda.so"
DRIVEN = NVIDIA_GPU.device
"""The device type, other than the CPU, for which the C library runs packages."""
_REFUSED = ("GY-AOT-005", "GY-LOWER-031")
"""Error codes of models that call operators without kernels."""
_LIMIT = 120.0
_ELSEWHERE = ("fallback_random", "freezing")
"""Options of models that do not apply to packages."""


class ExportError(Exception):
    """torch.export refuses a model."""


class NoKernelsError(Exception):
    """A model calls operators that the C library cannot call."""


@define(eq=False)
class Packager:
    """Builds packages, and owns the process that runs them."""

    _folder: "tempfile.TemporaryDirectory[str]" = field(factory=tempfile.TemporaryDirectory)
    _child: LineProcess = field(factory=lambda: LineProcess((sys.executable, str(CHILD)), _LIMIT))
    _standalone: LineProcess = field(
        factory=lambda: LineProcess((sys.executable, str(STANDALONE_CHILD)), _LIMIT)
    )

    def packaged(
        self, module: nn.Module, model: Model, cell: Cell, dtype: torch.dtype, device: str
    ) -> Callable[..., Any]:
        """Return a function that runs a module's package in the process that loaded it. Modified
        buffers are copied back.

        Raises:
            ExportError: the model cannot be exported.
            NoKernelsError: C cannot run it.
        """
        folder = Path(self._folder.name)
        package = folder / "model.gya"
        options = {k: v for k, v in model.options.items() if k not in _ELSEWHERE}
        file = str(folder / "model.pt2")
        torch.export.save(_exported(module, model, cell, dtype, device), file)
        exported = torch.export.load(file)
        if cell.package in ("standalone", "libtorch"):
            _compile_for_c(exported, package, options, cell.package)
            return self._call_by_c(module, package, cell.package, device)
        aot.compile(exported, package=package, options=options)
        self._ask(self._child, {"load": str(package)})

        def call(*inputs: Tensor) -> Any:
            source, target = folder / "inputs.pt", folder / "results.pt"
            torch.save({"inputs": inputs, "random": random_states(device)}, source)
            self._ask(self._child, {"run": str(source), "to": str(target)})
            answer = torch.load(target)
            for name, value in answer["written"].items():
                module.get_buffer(name).copy_(value)
            return tree_map_only(Tensor, Tensor.clone, answer["results"])

        return call

    def _call_by_c(
        self,
        module: nn.Module,
        package: Path,
        runtime: Literal["standalone", "libtorch"],
        device: str,
    ) -> Callable[..., Any]:
        cache, calls = default_session().cache, runtime == "libtorch"
        library = shared_runtime(cache, find_toolchain(os.environ, cache), torch=calls)
        driven = device == DRIVEN
        needed = (LIBTORCH, *((_LIBTORCH_CUDA,) if driven else ())) if calls else ()
        first = [str(_LIBTORCH / name) for name in needed]
        request = {"load": str(package), "library": str(library), "first": first, "driven": driven}
        self._ask(self._standalone, request)
        manifest = aot.inspect(package)
        kinds = [output.kind for output in manifest.entries[0].outputs]
        written = [w.name for w in manifest.weights if w.written]

        def call(*inputs: Tensor) -> list[Tensor]:
            source, target = package.with_name("inputs"), package.with_name("results")
            write_arrays(str(source), [_array(t) for t in inputs])
            self._ask(self._standalone, {"run": str(source), "to": str(target)})
            arrays = read_arrays(str(target))
            for name, value in zip(written, arrays[len(kinds) :], strict=True):
                module.get_buffer(name).copy_(_tensor(value))
            pairs = zip(kinds, arrays, strict=False)
            return [_tensor(a).to(device) for kind, a in pairs if kind != "value"]

        return call

    def _ask(self, child: LineProcess, request: Mapping[str, Any]) -> None:
        answer = json.loads(child.ask(json.dumps(request).encode()))
        if answer["error"]:
            raise RuntimeError(answer["error"])


def _compile_for_c(
    program: ExportedProgram,
    package: Path,
    options: Mapping[str, Any],
    runtime: Literal["standalone", "libtorch"],
) -> None:
    try:
        aot.compile(program, package=package, options=options, runtime=runtime)
    except UnsupportedError as error:
        if error.diagnostic.code not in _REFUSED:
            raise
        raise NoKernelsError(str(error)) from error


def _array(tensor: Tensor) -> Array:
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
    plain: Any = torch.empty(0, dtype=torch.uint8).set_(copy.untyped_storage())
    return Array(
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        bytearray(plain.numpy().tobytes()),
        tensor.stride(),
    )


def _tensor(array: Array) -> Tensor:
    dtype = getattr(torch, array.dtype)
    if not array.data:
        return torch.empty(array.sizes, dtype=dtype)
    assert array.strides is not None
    return torch.frombuffer(array.data, dtype=dtype).as_strided(array.sizes, array.strides)


def _exported(
    module: nn.Module, model: Model, cell: Cell, dtype: torch.dtype, device: str
) -> ExportedProgram:
    def inputs(n: int) -> tuple[Tensor, ...]:
        arguments = model.inputs(torch.Generator().manual_seed(1), n)
        return tuple(t.to(device, dtype if t.is_floating_point() else t.dtype) for t in arguments)

    arguments = inputs(model.size)
    shapes: Any = None
    if cell.shapes == "dynamic":
        pairs = zip(arguments, inputs(model.sizes[-1]), strict=True)
        shapes = tuple(
            {k: Dim.DYNAMIC for k in range(a.dim()) if a.shape[k] != b.shape[k]} for a, b in pairs
        )
        if _takes_any_number(module):
            shapes = (shapes,)
    try:
        with torch.no_grad():
            return export(deepcopy(module), arguments, dynamic_shapes=shapes)
    except Exception as error:  # torch has no class for it
        raise ExportError(f"{type(error).__name__}: {error}") from error


def _takes_any_number(module: nn.Module) -> bool:
    """Return whether a module takes `*args`."""
    code: Any = getattr(module.forward, "__code__", None)
    return code is not None and code.co_argcount == 1
