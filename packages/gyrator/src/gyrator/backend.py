"""The entry point of `torch.compile(model, backend="gyrator")`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gyrator import default_session  # which imports the compiler without full collections
from gyrator.frontend.aot import SavableGraph
from gyrator.frontend.dynamo.callbacks import RUNNERS

RUNNERS.expect(default_session)  # `torch.compile` imports this module for the name of the backend


def gyrator(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph in the default session."""
    compiled = default_session().backend(gm, example_inputs, mode=mode, options=options)
    if not isinstance(compiled, SavableGraph):
        return compiled
    from gyrator.frontend.precompile import Precompiled  # imports a rarely used part of Dynamo

    return Precompiled.of(compiled)
