"""Subclasses of tensors as inputs and results of compiled functions."""

from typing import Any

import pytest
import torch
import torch_faults
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nested import nested_tensor_from_jagged
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map_only

from gyrator.config import Config
from gyrator.session import Session


class Parts(torch.Tensor):
    """A tensor that holds others, on each of which an op runs alone."""

    parts: tuple[torch.Tensor, ...]

    @staticmethod
    def __new__(cls, *parts: torch.Tensor) -> "Parts":
        x = parts[0]
        new: Any = torch.Tensor._make_wrapper_subclass
        made: Parts = new(cls, x.shape, dtype=x.dtype, device=x.device, strides=x.stride())
        made.parts = parts
        return made

    def __getattr__(self, name: str) -> torch.Tensor:
        if name.removeprefix("part").isdecimal():
            return self.parts[int(name.removeprefix("part"))]
        raise AttributeError(name)

    def __tensor_flatten__(self) -> tuple[list[str], int]:
        return [f"part{k}" for k in range(len(self.parts))], len(self.parts)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], count: int, *_: Any) -> "Parts":
        return Parts(*(inner[f"part{k}"] for k in range(count)))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found: list[Parts] = []
        tree_map_only(Parts, found.append, (args, kwargs))
        results = []
        for k in range(len(found[0].parts)):
            inner = tree_map_only(Parts, lambda t, k=k: t.parts[k], (args, kwargs or {}))
            results.append(func(*inner[0], **inner[1]))
        return cls(*results) if isinstance(results[0], torch.Tensor) else results[0]


@torch_faults.SUBCLASSES
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("again", [False, True])
def test_results_are_of_the_subclass(session: Session, count: int, again: bool) -> None:
    def from_tensor(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return Parts(*(x.sin() + k for k in range(count))) * 2, x + 1

    def from_parts(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    x = torch.randn(3)
    for _ in range(1 + again):
        torch._dynamo.reset()
        result, other = torch.compile(from_tensor, backend=session.backend)(x)
        assert type(other) is torch.Tensor
        assert isinstance(result, Parts) and len(result.parts) == count
        for k, part in enumerate(result.parts):
            torch.testing.assert_close(part, (x.sin() + k) * 2)
        parts = Parts(*(x + k for k in range(count)))
        result = torch.compile(from_parts, backend=session.backend)(parts)
        assert isinstance(result, Parts) and len(result.parts) == count
        for k, part in enumerate(result.parts):
            torch.testing.assert_close(part, (x + k) * 2 + 1)


def test_results_with_the_mesh_of_an_argument(session: Session) -> None:
    """The mesh is an input and a result of the graph, and no tensor; the session is strict."""

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu() * 2

    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (1,))
        x, w = torch.randn(4, 6), torch.randn(6, 5)
        found: list[list[torch.Tensor]] = []
        for call in (layer, torch.compile(layer, backend=session.backend, fullgraph=True)):
            rows = DTensor.from_local(x, mesh, [Shard(0)]).requires_grad_()
            weight = DTensor.from_local(w, mesh, [Replicate()]).requires_grad_()
            result: Any = call(rows, weight)
            assert result.device_mesh == mesh
            grads: Any = torch.autograd.grad(result.sum(), (rows, weight))
            found.append([result.to_local(), *(g.to_local() for g in grads)])
        torch.testing.assert_close(*found)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("wrapper", ["python", "cpp"])
def test_jagged_tensors_of_the_same_lengths(config: Config, wrapper: str) -> None:
    """Each passes the graph its jagged dimension, which no integer stands for."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sin(), y.cos()

    torch._dynamo.reset()
    options = {"strict": True, "progress": False, "wrapper": wrapper}
    with Session(options=options, config=config) as session:
        compiled = torch.compile(function, backend=session.backend, fullgraph=True)
        for lengths in ([3, 5, 2], [1, 2, 3, 4]):
            ends = torch.tensor([0, *lengths]).cumsum(0)
            values = [torch.randn(int(ends[-1]), 4) for _ in range(2)]
            jagged = [nested_tensor_from_jagged(v, ends) for v in values]
            found = [[r.values() for r in call(*jagged)] for call in (function, compiled)]
            torch.testing.assert_close(*found)
