"""Recurrent networks of torch, which Dynamo gives as graphs if `allow_rnn` is set, and exported."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_faults
from torch import nn
from torch._decomp import decompositions
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from gyrator.reports.records import GraphRecord
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")
CASES: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "projected": (nn.LSTM, {"proj_size": 3, "batch_first": True}),
    "gru": (nn.GRU, {"bidirectional": True, "batch_first": True}),
    "without bias": (nn.GRU, {"num_layers": 2, "bias": False}),
    "rnn": (nn.RNN, {"bidirectional": True}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}


@pytest.fixture(autouse=True)
def _graphs_of_networks() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


def same(got: Any, want: Any) -> None:
    """Compare results, with their strides."""
    for actual, expected in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert actual.stride() == expected.stride()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_networks(session: Session, records: list[GraphRecord], name: str, training: bool) -> None:
    """With states of the caller's; gradients of weights, states and input."""
    kind, options = CASES[name]
    model = kind(4, 6, **options)
    turns = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    states = [torch.randn(turns, 2, options.get("proj_size", 0) or 6)]
    states += [torch.randn(turns, 2, 6)] * (kind is nn.LSTM)
    x = torch.randn((2, 3, 4) if options.get("batch_first") else (3, 2, 4))
    compiled = torch.compile(model, backend=session.backend, fullgraph=True)

    def run(call: Any) -> tuple[Any, list[torch.Tensor]]:
        inputs = [t.clone().requires_grad_(training) for t in (x, *states)]
        state = tuple(inputs[1:]) if kind is nn.LSTM else inputs[1]
        with torch.set_grad_enabled(training):
            out = call(inputs[0], state)
        if not training:
            return out, []
        loss = sum((t * t).sum() for t in tree_leaves(out))
        return out, list(torch.autograd.grad(loss, [*inputs, *model.parameters()]))

    (got, actual), (want, expected) = run(compiled), run(model)
    same(got, want)
    for g, w in zip(actual, expected, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-4)
    assert len(records) == 1 + training and not any(r.fallback for r in records)


@torch_faults.PACKED
def test_sequences_of_several_lengths(session: Session) -> None:
    """Unbatched ones too; what is packed by length breaks the graph."""
    model = nn.GRU(4, 6)

    def packed(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        rows = nn.utils.rnn.pack_padded_sequence(x * 2, lengths, enforce_sorted=False)
        y, h = model(rows)
        return nn.utils.rnn.pad_packed_sequence(y)[0] + 1, h

    compiled = torch.compile(packed, backend=session.backend)
    x = torch.randn(5, 3, 4)
    for lengths in ((5, 2, 3), (1, 5, 4)):
        same(compiled(x, torch.tensor(lengths)), packed(x, torch.tensor(lengths)))
    call = torch.compile(model, backend=session.backend, fullgraph=True)
    for shape in ((5, 4), (3, 4), (1, 2, 4)):
        x = torch.randn(shape)
        same(call(x), model(x))


@torch_faults.EXPORTED_LSTMS
def test_an_exported_network(session: Session) -> None:
    model = nn.LSTM(4, 6)
    x = torch.randn(5, 3, 4)
    exported = torch.export.export(model, (x,)).run_decompositions().module()
    compiled = torch.compile(exported, backend=session.backend, fullgraph=True)
    with torch.no_grad():
        same(compiled(x), model(x))


@pytest.mark.parametrize(
    ("name", "frozen"),
    [
        pytest.param(name, frozen, marks=pytest.mark.long if (k + len(frozen)) % 2 else ())
        for k, name in enumerate(("lstm", "projected", "gru"))
        for frozen in ((), ("weight_ih_l0",))
    ],
)
def test_an_input_without_gradients(session: Session, name: str, frozen: tuple[str, ...]) -> None:
    kind, options = CASES[name]
    # Two layers or two directions: only the first layer's input needs no gradient.
    model = kind(4, 6, **(options | {"bidirectional": name == "gru"}))
    for weight in frozen:
        getattr(model, weight).requires_grad_(False)
    weights = [p for p in model.parameters() if p.requires_grad]
    compiled = torch.compile(model, backend=session.backend, fullgraph=True)

    def run(call: Any, x: torch.Tensor) -> Any:
        out = call(x)
        return out, torch.autograd.grad(sum((t * t).sum() for t in tree_leaves(out)), weights)

    for steps in (1, 3):
        x = torch.randn((2, steps, 4) if options.get("batch_first") else (steps, 2, 4))
        same(run(compiled, x), run(model, x))
    with torch.no_grad():
        same(compiled(x), model(x))


LAYERS: dict[str, dict[str, Any]] = {
    "both ways": {"bidirectional": True},
    "batch first": {"num_layers": 2, "batch_first": True, "bias": False},
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("whole", [False, True], ids=["dynamic", "static"])
def test_lstms_train_by_a_call_a_layer(
    session: Session, records: list[GraphRecord], name: str, whole: bool
) -> None:
    """As in eager mode, and with symbolic sizes too."""
    options = LAYERS[name]
    model = nn.LSTM(7, 13, **options)
    head = nn.Linear(13 * (1 + options.get("bidirectional", False)), 3)
    weights = [*model.parameters(), *head.parameters()]

    def run(x: torch.Tensor) -> Any:
        y, (_, c) = model(x)
        return head(y[:, -1]).square().sum() + c.sum()

    compiled = torch.compile(run, backend=session.backend, dynamic=not whole)
    for first, second in ((33, 36), (35, 32)):
        x = torch.randn(first, second, 7, requires_grad=True)
        got, want = (torch.autograd.grad(f(x), [x, *weights]) for f in (compiled, run))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)
    names = {"forward": "lstm_layer", "backward": "mkldnn_rnn_layer_backward"}
    for record in records:
        layers = [e.target.split(".")[1] for e in record.externs]
        assert [e for e in layers if e in names.values()] == [names[record.phase]] * 2
    assert {r.phase for r in records} == set(names)
    assert decompositions.select_one_layer_lstm_function.__module__ == decompositions.__name__


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 here"
)
@pytest.mark.parametrize(("steps", "whole"), [(5, True), (33, False)], ids=["few steps", "dynamic"])
def test_an_lstm_trains_under_autocast(session: Session, steps: int, whole: bool) -> None:
    """By a call of oneDNN, as in eager mode: the results have autocast's dtype."""
    model, x = nn.LSTM(4, 6, num_layers=2), torch.randn(steps, 3, 4)
    compiled = torch.compile(model, backend=session.backend, fullgraph=True, dynamic=not whole)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = tree_leaves(compiled(x)), tree_leaves(model(x))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=0)
    pairs = [
        torch.autograd.grad(sum(y.float().square().sum() for y in out), model.parameters())
        for out in (got, want)
    ]
    for g, w in zip(*pairs, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-2, atol=1e-2)


def test_an_lstm_outside_of_autocast_within_it(session: Session) -> None:
    model, x = nn.LSTM(4, 6), torch.randn(33, 3, 4)

    def run(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            return model(x)

    compiled = torch.compile(run, backend=session.backend, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        same(compiled(x), run(x))


@pytest.mark.parametrize(
    ("kind", "grads"),
    [(nn.LSTM, True), (nn.GRU, False), (nn.RNN, False)],
    ids=["LSTM, training", "GRU", "RNN"],
)
def test_dropout_between_layers(session: Session, kind: type[nn.RNNBase], grads: bool) -> None:
    """Of which torch's decompositions know nothing; both directions read the same elements."""
    model = kind(4, 6, num_layers=2, bidirectional=True, dropout=0.5)
    options = {"fallback_random": True}
    compiled = torch.compile(model, backend=session.backend, fullgraph=True, options=options)
    x = torch.randn(1, 16, 4)

    def run(call: Any) -> Any:
        torch.manual_seed(5)
        with torch.set_grad_enabled(grads):
            out = call(x)
        if not grads:
            return out
        loss = sum((t * t).sum() for t in tree_leaves(out))
        return out, torch.autograd.grad(loss, list(model.parameters()))

    same(run(compiled), run(model))


def test_a_checkpointed_network_for_an_input_without_gradient(session: Session) -> None:
    model, x = nn.LSTM(4, 5), torch.randn(3, 2, 4)

    def run(x: torch.Tensor) -> Any:
        return checkpoint(lambda x: model(x)[0], x, use_reentrant=False)

    want = torch.autograd.grad(run(x).square().sum(), model.parameters())
    compiled = torch.compile(run, backend=session.backend, fullgraph=True)
    same(torch.autograd.grad(compiled(x).square().sum(), model.parameters()), want)
