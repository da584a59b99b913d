"""The entry point of `torch.compile(model, backend="gyrator")`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gyrator.frontend.aot import Kept
from gyrator.session import default_session


def gyrator(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's in the default session."""
    found = default_session().backend(gm, example_inputs, mode=mode, options=options)
    if not isinstance(found, Kept):
        return found
    from gyrator.frontend.precompile import Precompiled  # with a part of Dynamo that few use

    return Precompiled.of(found)
