"""Models as packages, run by a process that has nothing of ours that compiles."""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.utils._pytree import tree_map_only

from gyrator import aot
from gyrator_conformance.cells import Cell
from gyrator_conformance.models import Model
from gyrator_conformance.process import LineProcess

CHILD = Path(__file__).with_name("package_child.py")
"""What the process runs."""
_LIMIT = 120.0
_ELSEWHERE = ("fallback_random", "freezing")
"""Options of models that packages have, or do not have, anyhow."""


class ExportError(Exception):
    """torch.export refuses a model."""


@define(eq=False)
class Packager:
    """Makes packages, and owns the process that runs them."""

    _folder: "tempfile.TemporaryDirectory[str]" = field(factory=tempfile.TemporaryDirectory)
    _child: LineProcess = field(factory=lambda: LineProcess((sys.executable, str(CHILD)), _LIMIT))

    def packaged(
        self, module: nn.Module, model: Model, cell: Cell, dtype: torch.dtype
    ) -> Callable[..., Any]:
        """Return a module as a function that asks the process which has loaded its package. Buffers
        that the program writes are copied back.

        Raises:
            ExportError: the model cannot be exported.
        """
        folder = Path(self._folder.name)
        package = folder / "model.gya"
        options = {k: v for k, v in model.options.items() if k not in _ELSEWHERE}
        aot.compile(_exported(module, model, cell, dtype), package=package, options=options)
        self._ask({"load": str(package)})

        def call(*inputs: Tensor) -> Any:
            given, found = folder / "inputs.pt", folder / "results.pt"
            torch.save({"inputs": inputs, "random": torch.get_rng_state()}, given)
            self._ask({"run": str(given), "to": str(found)})
            answer = torch.load(found)
            for name, value in answer["written"].items():
                module.get_buffer(name).copy_(value)
            return tree_map_only(Tensor, Tensor.clone, answer["results"])

        return call

    def _ask(self, request: Mapping[str, str]) -> None:
        answer = json.loads(self._child.ask(json.dumps(request).encode()))
        if answer["error"]:
            raise RuntimeError(answer["error"])


def _exported(module: nn.Module, model: Model, cell: Cell, dtype: torch.dtype) -> ExportedProgram:
    def inputs(n: int) -> tuple[Tensor, ...]:
        given = model.inputs(torch.Generator().manual_seed(1), n)
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in given)

    given = inputs(model.size)
    shapes: Any = None
    if cell.shapes == "dynamic":
        pairs = zip(given, inputs(model.sizes[-1]), strict=True)
        shapes = tuple(
            {k: Dim.DYNAMIC for k in range(a.dim()) if a.shape[k] != b.shape[k]} for a, b in pairs
        )
        if _takes_any_number(module):
            shapes = (shapes,)
    try:
        with torch.no_grad():
            return export(deepcopy(module), given, dynamic_shapes=shapes)
    except Exception as error:  # torch has no class for it
        raise ExportError(f"{type(error).__name__}: {error}") from error


def _takes_any_number(module: nn.Module) -> bool:
    """Whether a module's arguments are one `*args`."""
    code: Any = getattr(module.forward, "__code__", None)
    return code is not None and code.co_argcount == 1
