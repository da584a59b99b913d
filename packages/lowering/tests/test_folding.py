"""Constants of known inputs, computed at once or with their packing apart."""

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_lowering.folding import FROZEN, PACKED, Folding, Step
from gyrator_lowering.freezing import freeze


def _frozen_graph(seed):
    """Return a graph of two known inputs and one that is not, with packed and other constants."""
    draw = random.Random(seed)

    def function(a, b, x):
        values = [a, b]
        for _ in range(draw.randint(1, 6)):
            left, right = draw.choice(values), draw.choice(values)
            values.append(draw.choice([torch.add, torch.mul, torch.sub])(left, right))
        packed = [v.clone() for v in draw.sample(values, min(len(values), 3))]
        return [x + v for v in (*draw.sample(values, 2), *packed)]

    mode = FakeTensorMode()
    with mode:
        fakes = [torch.empty(3, 4) for _ in range(3)]
    graph = make_fx(function)(*fakes)
    placeholders = graph.graph.find_nodes(op="placeholder")
    for node, known in zip(placeholders, (True, True, False), strict=True):
        node.meta[FROZEN] = known
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        node.meta[PACKED] = True
    return graph


def _run(step, constants, inputs):
    """Return what a packing step makes of constants and inputs."""
    (argument,) = step.args
    ((kind, number),) = argument.items()
    assert step.op == "aten.clone.default"
    return ({"step": constants, "input": inputs}[kind][number]).clone()


@pytest.mark.parametrize("seed", range(30))
def test_packing_apart_gives_the_same_constants(seed):
    graph = _frozen_graph(seed)
    folding, _ = freeze(graph)
    inputs = [torch.randn(3, 4), torch.randn(3, 4)]
    by_position = dict(enumerate(inputs))
    expected = folding.constants([by_position[k] for k in folding.sources])
    plain, packing = folding.split_packing()
    assert len(packing) == folding.packed > 0
    assert not any(step.op == "aten.clone.default" for step in plain.steps)
    constants = plain.constants([by_position[k] for k in plain.sources])
    first = len(expected) - folding.packed
    results = [*constants[:first], *(_run(step, constants, by_position) for step in packing)]
    for actual, value in zip(results, expected, strict=True):
        assert torch.equal(actual, value)


@pytest.mark.parametrize("seed", range(5))
def test_packed_constants_come_last_and_keep_their_mark(seed):
    folding, rest = freeze(_frozen_graph(seed))
    marks = [bool(n.meta.get(PACKED)) for n in rest.graph.find_nodes(op="placeholder")]
    assert marks == sorted(marks) and sum(marks) == folding.packed
    assert Folding.from_json(folding.as_json()) == folding


def test_inputs_of_a_step_are_renumbered_but_steps_are_not():
    step = Step("aten.add.Tensor", ({"input": 0}, [{"step": 0}, {"input": 3}]), {"alpha": 2})
    assert step.inputs() == [0, 3]
    moved = step.with_inputs({0: 7, 3: 1})
    assert moved == Step(
        "aten.add.Tensor", ({"input": 7}, [{"step": 0}, {"input": 1}]), step.kwargs
    )
