"""FX host programs: from the stored Wrapper IR to a callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyrator_ir.host.parse import parse
from gyrator_ir.host.walk import launches
from gyrator_runtime.plan.launcher import launcher
from gyrator_runtime.plan.link import Linker, Run
from gyrator_wrapper_fx.load import load


def load_graph(
    text: str, linker: Linker, compiler: Callable[[Any], Callable[..., Any]] | None
) -> Run:
    """Return a callable for a host program: the code of its graph, or the compiled graph."""
    program = parse(text)
    launched = {i.kernel: i for i in launches(program)}
    kernels = {
        name: launcher(linker, name, len(i.tensors), len(i.sizes)) for name, i in launched.items()
    }
    return load(program, kernels, linker.constants, compiler).plan
