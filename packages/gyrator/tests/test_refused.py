"""What eager mode refuses is refused: never a crash, never a result."""

import warnings

import pytest
import refused
import torch
import torch_faults
from torch._dynamo.exc import TorchRuntimeError

from gyrator.config import Config
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")


def outcome(function: refused.Program, inputs: tuple[torch.Tensor, ...]) -> object:
    """Return the results of a call on copies, or the exception."""
    arguments = [x if 0 in x.stride() else x.clone() for x in inputs]
    try:
        return function(*arguments)
    except Exception as error:
        return error


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(f, marks=torch_faults.ACCEPTS if f in ("types", "places", "library") else ())
        for f in refused.FAMILIES
    ],
)
def test_programs_that_eager_refuses(config: Config, family: str, dynamic: bool) -> None:
    wrong: list[str] = []
    with Session(options={"progress": False}, config=config) as session:
        for name, (function, *inputs) in refused.FAMILIES[family].items():
            arguments = tuple(inputs)
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=session.backend, dynamic=dynamic)
            with warnings.catch_warnings(record=True):
                want, got = outcome(function, arguments), outcome(compiled, arguments)
            assert isinstance(want, Exception), name
            # Dynamo has an error of its own for what fake tensors refuse, with eager's words in it.
            if not isinstance(got, (type(want), TorchRuntimeError)):
                wrong.append(f"{name}: {want!r} in eager mode, {got!r} compiled")
    assert not wrong, "\n".join(wrong)
