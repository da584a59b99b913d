"""Graphs that are compiled one by one: called, saved, and loaded where nothing is compiled."""

from pathlib import Path
from typing import Any

import pytest
import torch
from runner_cache import with_runner
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import gyrator
from gyrator import CompiledArtifact, Session
from gyrator.config import read_config
from gyrator_ir.diagnostics import GyratorError, LayoutError, UnsupportedError
from gyrator_runtime.cache import CacheError


class Piece(nn.Module):
    """Takes a size, as pieces of graphs do, and returns one tensor or several."""

    def __init__(self, several: bool) -> None:
        super().__init__()
        self.several = several

    def forward(self, n: int, x: torch.Tensor, w: torch.Tensor) -> Any:
        left, right = (x @ w).view(n, 4, 4).split(2, 1)
        y = nn.functional.gelu(left + right * n)
        return (y, y.sum(0)) if self.several else y


def _inputs(n: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    return n, torch.randn(n, 8), torch.randn(8, 16)


def _session(folder: Path) -> tuple[Session, list[gyrator.GraphRecord]]:
    records: list[gyrator.GraphRecord] = []
    config = read_config({"GYRATOR_CACHE_DIR": str(with_runner(folder))})
    return Session(config=config, options={"strict": True}, observer=records.append), records


def _elsewhere(value: CompiledArtifact, folder: Path) -> CompiledArtifact:
    """Return what another machine loads, on which nothing is compiled."""
    value.save(folder / "piece.gyr")
    session, records = _session(folder / "elsewhere")
    loaded = session.load(folder / "piece.gyr")
    assert records and all(record.cached for record in records)
    return loaded


@pytest.mark.parametrize("several", [False, True])
def test_a_graph_of_fixed_sizes(tmp_path: Path, several: bool) -> None:
    module, inputs = Piece(several), _inputs(5)
    graph = torch.fx.symbolic_trace(module)
    before = str(graph.graph)
    result = _session(tmp_path / "here")[0].compile(graph, inputs)
    for run in (result, _elsewhere(result, tmp_path)):
        for n, x, w in (inputs, _inputs(5)):
            torch.testing.assert_close(run(n, x, w), module(n, x, w))
        n, x, w = _inputs(6)
        with pytest.raises(LayoutError, match="GY-RUNTIME-090"):
            run(n, x, w)
        with pytest.raises(LayoutError, match="GY-RUNTIME-090"):
            run(5, x, w)
    assert str(graph.graph) == before


def _symbolic(function: Any, *inputs: torch.Tensor) -> tuple[torch.fx.GraphModule, list[Any]]:
    graph = make_fx(function, tracing_mode="symbolic")(*inputs)
    return graph, [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]


def test_conditions_between_sizes(tmp_path: Path) -> None:
    def gathered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.gather(1, index)

    def fours(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 4).sum(1)

    index = torch.randint(6, (4, 3))
    graph, inputs = _symbolic(gathered, torch.randn(5, 6), index)
    first = _session(tmp_path / "here")[0].compile(graph, inputs)
    for run in (first, _elsewhere(first, tmp_path)):
        x = torch.randn(9, 6)
        torch.testing.assert_close(run(x, index), gathered(x, index))
        with pytest.raises(LayoutError, match=r"GY-RUNTIME-090.*<= .* = 4"):
            run(torch.randn(3, 6), index)
        with pytest.raises(LayoutError, match="GY-RUNTIME-090"):
            run(torch.randn(3), index)
    graph, inputs = _symbolic(fours, torch.randn(8))
    second = _session(tmp_path / "here")[0].compile(graph, inputs)
    for run in (second, _elsewhere(second, tmp_path)):
        torch.testing.assert_close(run(x := torch.randn(20)), fours(x))
        with pytest.raises(LayoutError, match="GY-RUNTIME-090"):
            run(torch.randn(10))


def test_the_batch_of_a_convolution(tmp_path: Path) -> None:
    """ATen's libraries for convolutions differ from 16 images on."""

    def convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.conv2d(x, weight))

    dynamic, weight = FakeTensorMode(shape_env=ShapeEnv()), torch.randn(5, 3, 3, 3)
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] + 3 * [DimDynamic.STATIC])
    image = dynamic.from_tensor(torch.randn(4, 3, 9, 8), symbolic_context=context)
    graph = torch.fx.symbolic_trace(convolved)
    run = _session(tmp_path)[0].compile(graph, (image, dynamic.from_tensor(weight)))
    for count in (2, 15, 16, 40):
        x = torch.randn(count, 3, 9, 8)
        torch.testing.assert_close(run(x, weight), convolved(x, weight))


def test_the_batch_of_the_gradient_of_a_convolution(tmp_path: Path) -> None:
    dynamic = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] + 3 * [DimDynamic.STATIC])
    image = dynamic.from_tensor(torch.randn(4, 3, 9, 8), symbolic_context=context)
    slope = dynamic.from_tensor(torch.randn(4, 5, 7, 6), symbolic_context=context)

    def gradient(slope: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        arguments = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
        found = torch.ops.aten.convolution_backward(slope, x, weight, [5], *arguments)
        return found[0], found[1]

    weight = torch.randn(5, 3, 3, 3)
    graph = torch.fx.symbolic_trace(gradient)
    run = _session(tmp_path)[0].compile(graph, (slope, image, dynamic.from_tensor(weight)))
    for count in (2, 16, 40):
        arguments = torch.randn(count, 5, 7, 6), torch.randn(count, 3, 9, 8), weight
        torch.testing.assert_close(run(*arguments), gradient(*arguments), rtol=1e-4, atol=1e-4)


def test_a_graph_with_weights_of_its_own_is_refused(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with pytest.raises(UnsupportedError, match=r"GY-AOT-006.* 2 weights of its own, '0.weight'"):
        _session(tmp_path)[0].compile(graph, (torch.randn(2, 4),))


@pytest.mark.parametrize("sizes", [None, (2, 8)])
def test_a_graph_of_all_sizes(tmp_path: Path, sizes: tuple[int, int] | None) -> None:
    result: list[CompiledArtifact] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        fakes = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        result.append(_session(tmp_path / "here")[0].compile(gm, fakes, sizes=sizes))
        return _elsewhere(result[-1], tmp_path)

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        return Piece(True)(x.shape[0], x, w)

    run = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for n in (5, 3, 8):
            _, x, w = _inputs(n)
            torch.testing.assert_close(run(x, w), function(x, w))
        _, x, w = _inputs(9)
        if sizes is None:
            torch.testing.assert_close(run(x, w), function(x, w))
        else:
            with pytest.raises(LayoutError, match=r"GY-RUNTIME-090.*compiled for 2 to 8"):
                run(x, w)
    assert len(result) == 1


def test_weights_of_a_module_are_not_saved(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(nn.Linear(4, 2))
    with pytest.raises(GyratorError, match="GY-AOT-006"):
        _session(tmp_path)[0].compile(graph, (torch.randn(3, 4),)).save(tmp_path / "piece.gyr")


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    session, _ = _session(tmp_path / "here")
    file = tmp_path / "piece.gyr"
    session.compile(torch.fx.symbolic_trace(nn.GELU()), (torch.randn(3),)).save(file)
    whole = file.read_bytes()
    for data in (b"", b"no piece", b'{"format": 9}\n', b'{"single": true}\n' + whole):
        file.write_bytes(data)
        with pytest.raises(UnsupportedError, match="GY-AOT-007"):
            session.load(file)
    file.write_bytes(whole[:-9])
    with pytest.raises(CacheError, match="GY-CACHE-012"):
        session.load(file)


def test_keys_of_folders(tmp_path: Path) -> None:
    session, _ = _session(tmp_path)
    assert session.key() == session.key()
    assert session.key() != session.key(options={"numerics": "fast"})
