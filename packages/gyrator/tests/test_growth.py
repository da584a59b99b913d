"""The work of the stages grows with a graph, and hardly faster."""

import math
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gyrator.autotune.kernels import Budget
from gyrator.config import Config
from gyrator.engine.pipeline import Stages
from gyrator.engine.wrapping import plan_of
from gyrator.graphs.graph_key import graph_bytes
from gyrator.options import Options
from gyrator.reports.tracing import Trace
from gyrator.session import Session

pytestmark = pytest.mark.long

Inputs = list[torch.Tensor]
Program = Callable[..., Any]


def chain(x: torch.Tensor, *_: torch.Tensor, n: int) -> Any:
    for _k in range(n // 2):
        x = torch.tanh(x - x.mean(-1, keepdim=True)) * 0.5
    return x


def fan(x: torch.Tensor, *_: torch.Tensor, n: int) -> Any:
    return [torch.sin(x + 0.001 * k) for k in range(n)]


def tree(x: torch.Tensor, *_: torch.Tensor, n: int) -> Any:
    return sum(torch.sin(x + 0.001 * k) for k in range(n))


def cells(x: torch.Tensor, *_: torch.Tensor, n: int) -> Any:
    state, states = x[0], []
    for k in range(n):
        state = torch.tanh(torch.addmm(x[k % 4], x[(k + 1) % 4], state))
        states.append(state)
    return torch.stack(states)


def joined(*xs: torch.Tensor, n: int) -> Any:
    return torch.cat(xs) + 1, torch.stack([x[0] * 2 for x in xs])


def optimiser(*xs: torch.Tensor, n: int) -> Any:
    third = len(xs) // 3
    steps = zip(xs[:third], xs[third:], xs[2 * third :], strict=False)
    return [(p - 0.1 * (m * 0.9 + g), m * 0.9 + g) for p, g, m in steps]


def written(x: torch.Tensor, *_: torch.Tensor, n: int) -> Any:
    out = torch.zeros(n, 8, 8)
    for k in range(n):
        out[k] = x[k % 4] * 2
    return out


def sums(*xs: torch.Tensor, n: int) -> Any:
    return sum((x * 2).sum(0) for x in xs), torch.cat(xs).exp()


def square(n: int, mode: FakeTensorMode) -> Inputs:
    with mode:
        return [torch.empty(4, 8, 8)]


def many(n: int, mode: FakeTensorMode) -> Inputs:
    with mode:
        return [torch.empty(5, 8) for _ in range(n)]


def symbolic(n: int, mode: FakeTensorMode) -> Inputs:
    """Return tensors each of which has as many rows as its own symbol says."""
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    return [
        mode.from_tensor(
            torch.empty(3 + k, 4), source=ConstantSource(f"x{k}"), symbolic_context=context
        )
        for k in range(n)
    ]


CASES: dict[str, tuple[Program, Callable[[int, FakeTensorMode], Inputs], int]] = {
    "chain": (chain, square, 60),
    "fan": (fan, square, 60),
    "tree": (tree, square, 60),
    "cells": (cells, square, 40),
    "joined": (joined, many, 60),
    "optimiser": (optimiser, many, 60),
    "written": (written, square, 40),
    "symbols": (sums, symbolic, 30),
}


@pytest.fixture
def stages(config: Config) -> Iterator[Stages]:
    with Session(config=config) as session:
        yield Stages(session.engine(Options(cache=False, progress=False)).context)


def traced(name: str, n: int) -> GraphModule:
    """Return the ATen graph of a case; sizes that are symbols are inputs, as in AOTAutograd's."""
    fn, inputs, _ = CASES[name]
    mode = FakeTensorMode(shape_env=ShapeEnv())
    arguments = inputs(n, mode)
    sizes = [x.shape[0] for x in arguments if not isinstance(x.shape[0], int)]

    def run(sizes: list[Any], *xs: torch.Tensor) -> Any:
        return fn(*xs, n=n)

    with mode:
        pure = torch.func.functionalize(run, remove="mutations")
        return make_fx(pure, tracing_mode="symbolic" if sizes else "real")(sizes, *arguments)


def calls(run: Callable[[], Any]) -> int:
    """Return how many functions a function calls."""
    count = 0

    def seen(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event.endswith("call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", CASES)
def test_calls_grow_nearly_linearly(stages: Stages, name: str) -> None:
    def counted(n: int) -> int:
        graph = traced(name, n)
        watch = stages.context.stopwatch()

        def run() -> None:
            graph_bytes(graph)
            _, host, units = stages._programs(graph, Budget(0), watch, Trace())
            plan_of(stages.context.wrapper.emit(host), host)
            assert units

        return calls(run)

    counted(CASES[name][2])  # fills what is computed once a process
    small, large = (counted(CASES[name][2] * factor) for factor in (1, 6))
    grown = math.log(large / small) / math.log(6)
    assert grown <= 1.05, f"{small} calls became {large}"
