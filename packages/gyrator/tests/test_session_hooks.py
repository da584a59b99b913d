"""What a session takes of its user: decompositions, part compilers, compilers of FX graphs."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator import GraphRecord, PartCompiler, Session
from gyrator.config import Config
from gyrator.engine.idle_options import idle
from gyrator.options import Options, make_options
from gyrator.targets.cpu import CppLoader
from gyrator_ir.diagnostics import GyratorError, InputError
from gyrator_lowering.default import default_table
from gyrator_lowering.table import LoweringTable
from gyrator_runtime.warn import GyratorWarning

aten = torch.ops.aten
Open = Callable[..., Session]


@pytest.fixture
def opened(config: Config, records: list[GraphRecord]) -> Open:
    def make(options: Mapping[str, Any] | None = None, **more: Any) -> Session:
        torch._dynamo.reset()
        chosen = {"strict": True, "progress": False, **(options or {})}
        return Session(options=chosen, config=config, observer=records.append, **more)

    return make


def test_copies_of_a_compiled_module_share_its_session(opened: Open) -> None:
    with opened() as session:
        run = torch.compile(torch.nn.Linear(3, 2), backend=session.backend)
        x = torch.randn(4, 3)
        expected = run(x)
        copied = deepcopy(run)
        torch.testing.assert_close(copied(x), expected)
        with torch.no_grad():
            copied.bias.add_(1)
        torch.testing.assert_close(copied(x), expected + 1)
        torch.testing.assert_close(run(x), expected)


# Decompositions


def doubled(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return x * 2


def tripled(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return x * 3


@pytest.mark.parametrize("key", [aten.softplus.default, aten.softplus])
def test_a_decomposition_takes_the_place_of_ours(opened: Open, key: Any) -> None:
    x = torch.randn(5)
    for function, factor in ((doubled, 2), (tripled, 3)):  # one cache, two programs
        for _ in range(2):
            with opened(decompositions={key: function}) as session:
                f = torch.compile(torch.nn.functional.softplus, backend=session.backend)
                torch.testing.assert_close(f(x), x * factor)


def test_a_decomposition_is_used_for_gradients(opened: Open) -> None:
    with opened(decompositions={aten.softplus.default: doubled}) as session:
        x = torch.randn(5, requires_grad=True)
        y = torch.compile(lambda x: torch.nn.functional.softplus(x * 3), backend=session.backend)(x)
        torch.testing.assert_close(y, x * 6)


def test_an_op_is_kept_whole(opened: Open, records: list[GraphRecord]) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.pixel_shuffle(x, 2)

    x = torch.randn(1, 4, 3, 3)
    called = {}
    for name, table in (("ours", {}), ("whole", {aten.pixel_shuffle.default: None})):
        with opened(decompositions=table) as session:
            torch.testing.assert_close(torch.compile(f, backend=session.backend)(x), f(x))
        called[name] = {e.target for r in records for e in r.externs}
        records.clear()
    assert called == {"ours": set(), "whole": {"aten.pixel_shuffle.default"}}


def test_bad_tables_are_refused_when_the_session_opens(opened: Open) -> None:
    with pytest.raises(GyratorError, match="GY-LOWER-040"):
        opened(decompositions={"softplus": doubled})
    retained = object()

    def bad(x: Tensor) -> Tensor:
        return x if retained is None else x * 2

    with pytest.raises(GyratorError, match="GY-OPTION-005"):
        opened(decompositions={aten.softplus.default: bad})


@pytest.mark.parametrize("rules", [{}, {"aten.sin.default": doubled}, default_table().rules, 3])
def test_rules_are_a_table(opened: Open, rules: Any) -> None:
    kind = type(rules).__name__
    message = rf"GY-STAGE-001: Session\(rules=...\) takes a LoweringTable, not an? {kind}"
    with pytest.raises(InputError, match=rf"{message}\n.*default_table\(\)\.rules"):
        opened(rules=rules)


def rule(b: Any, x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("op", "help"),
    [
        ("aten.sinn.default", "did you mean 'aten.sin.default'?"),
        ("aten.sin.defualt", "did you mean 'aten.sin.default'?"),
        ("aten::sin", "did you mean 'aten.sin'?"),
        ("aten.nothing_of_the_kind", "define the op before the session"),
        ("aten.sin.default", ""),
        ("aten.sin", ""),
        ("library_that_is_not_imported.op", ""),
    ],
)
def test_rules_of_misspelt_ops_are_told_of(opened: Open, op: str, help: str) -> None:
    tables = (
        LoweringTable({**default_table().rules, op: rule}),
        LoweringTable(default_table().rules, {op: rule}),
    )
    for table in tables:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", GyratorWarning)
            opened(rules=table)
        message = f"GY-LOWER-044: there is no op {op!r}, for which the session has a lowering rule"
        expected = [f"{message}\n  help: {help}"] if help else []
        assert [str(w.message) for w in seen] == expected
        assert all(w.filename == __file__ for w in seen)


# Parts of graphs for another compiler


Parts = list[set[str]]


def taker(parts: Parts, *not_taken: Any) -> PartCompiler:
    def compile_part(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        assert all(i is not None for i in inputs)
        assert len(inputs) == len(gm.graph.find_nodes(op="placeholder"))
        parts.append({str(n.target) for n in gm.graph.nodes if n.op == "call_function"})
        return gm.forward

    return PartCompiler(lambda node: node.target not in not_taken, compile_part)


def chain(x: Tensor, w: Tensor) -> Tensor:
    return ((x.sin() @ w).cumsum(0).t().cos() + 1).softmax(-1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_parts_go_where_they_are_supported(
    opened: Open, records: list[GraphRecord], dynamic: bool, train: bool
) -> None:
    parts: Parts = []
    with opened(parts=taker(parts, aten.cumsum.default, aten.t.default)) as session:
        run = torch.compile(chain, backend=session.backend, dynamic=dynamic, fullgraph=True)
        for n in (4, 6):
            x, w = torch.randn(n, 3, requires_grad=train), torch.randn(3, 5)
            want = chain(x, w)
            torch.testing.assert_close(run(x, w), want)
            if train:
                (got,) = torch.autograd.grad(run(x, w).square().sum(), x)
                (right,) = torch.autograd.grad(want.square().sum(), x)
                torch.testing.assert_close(got, right)
    consumed = set().union(*parts)
    assert "aten.mm.default" in consumed
    assert not {"aten.cumsum.default", "aten.t.default"} & consumed
    assert sum(len(r.kernels) for r in records)


def test_a_compiler_that_takes_nothing_and_one_that_takes_all(
    opened: Open, records: list[GraphRecord]
) -> None:
    x, w = torch.randn(4, 3), torch.randn(3, 5)
    with opened(parts=PartCompiler(lambda node: False, pytest.fail)) as session:
        torch.testing.assert_close(torch.compile(chain, backend=session.backend)(x, w), chain(x, w))
    assert records
    records.clear()
    parts: Parts = []
    with opened(parts=taker(parts)) as session:
        torch.testing.assert_close(torch.compile(chain, backend=session.backend)(x, w), chain(x, w))
    assert len(parts) == 1 and not records


def test_results_of_parts_are_laid_out_as_the_graph_says(opened: Open) -> None:
    def other_layout(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return lambda *arguments: [r.t().contiguous().t() for r in gm(*arguments)]

    only = PartCompiler(lambda node: node.target is aten.sin.default, other_layout)
    with opened(parts=only) as session:
        x = torch.randn(4, 3)
        got = torch.compile(lambda x: x.sin().view(-1) + 1, backend=session.backend)(x)
        torch.testing.assert_close(got, x.sin().view(-1) + 1)


def test_a_compiler_that_fails_is_named(opened: Open) -> None:
    def acme_compile(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        raise KeyError("acme has no bolts")

    parts = PartCompiler(lambda node: True, acme_compile)
    x = torch.randn(3)
    with opened({"strict": False}, parts=parts) as session:
        with pytest.warns(
            GyratorWarning, match=r"GY-PARTS-001: the compiler .*acme_compile failed"
        ):
            got = torch.compile(torch.sin, backend=session.backend)(x)
        torch.testing.assert_close(got, x.sin())
    with opened(parts=parts) as session, pytest.raises(Exception, match="GY-PARTS-001"):
        torch.compile(torch.sin, backend=session.backend)(x)


# The option `fx_compiler`


def test_a_function_compiles_fx_host_programs(opened: Open) -> None:
    seen: list[torch.fx.GraphModule] = []

    def compile_graph(gm: torch.fx.GraphModule) -> Callable[..., Any]:
        seen.append(gm)
        return gm

    x = torch.randn(3)
    with opened({"wrapper": "fx", "fx_compiler": compile_graph}) as session:
        torch.testing.assert_close(torch.compile(torch.sin, backend=session.backend)(x), x.sin())
    assert len(seen) == 1


def test_a_graph_compiler_that_fails_leaves_the_cache_alone(opened: Open) -> None:
    def broken(gm: torch.fx.GraphModule) -> None: ...

    x = torch.randn(3)
    for compiler, code in ((lambda gm: gm, ""), (broken, "GY-FX-005"), ("nobody", "GY-FX-004")):
        torch._dynamo.reset()
        with (
            opened({"wrapper": "fx", "fx_compiler": compiler, "strict": False}) as session,
            warnings.catch_warnings(record=True) as seen,
        ):
            warnings.simplefilter("always", GyratorWarning)
            result = torch.compile(torch.sin, backend=session.backend)(x)
        torch.testing.assert_close(result, x.sin())
        codes = [str(w.message)[:9] for w in seen if w.category is GyratorWarning]
        assert codes == [code] * bool(code)


def test_a_graph_compiler_is_not_looked_up_without_its_wrapper(opened: Open) -> None:
    x = torch.randn(3)
    with opened({"fx_compiler": "nobody"}) as session, pytest.warns(match="GY-OPTION-006"):
        result = torch.compile(torch.sin, backend=session.backend, fullgraph=True)(x)
    torch.testing.assert_close(result, x.sin())
    with opened({"fx_compiler": "nobody", "strict": True}) as session:
        torch.compile(torch.cos, backend=session.backend)(x)


# Options that do nothing


@pytest.mark.parametrize(
    ("chosen", "phase", "name"),
    [
        ({"fx_compiler": "metered"}, "inference", "fx_compiler"),
        ({"debug_python": True, "wrapper": "cpp"}, "inference", "debug_python"),
        ({"memory_asserts": True, "wrapper": "fx"}, "inference", "memory_asserts"),
        ({"autotune_seconds": 3}, "inference", "autotune_seconds"),
        ({"device_graphs": True}, "inference", "device_graphs"),
        ({"freezing": True}, "forward", "freezing"),
        ({"numerics": "bitwise", "extern_kernels": "none"}, "inference", "extern_kernels"),
    ],
)
def test_an_option_that_does_nothing_says_so(
    opened: Open, chosen: dict[str, Any], phase: Any, name: str
) -> None:
    with opened() as session:
        actual = list(
            idle(make_options(options=chosen, base=Options()), session.targets, ["cpu"], phase)
        )
    assert [name in message for message, _ in actual] == [True]


def test_the_warning_is_one_and_names_the_device(opened: Open) -> None:
    with opened() as session:
        for _ in range(2):  # compiled, and loaded from the cache
            f = torch.compile(torch.sin, backend=session.backend, options={"device_graphs": True})
            with pytest.warns(GyratorWarning, match=r"GY-OPTION-006.*'device_graphs'.*cpu") as seen:
                f(torch.randn(3))
            assert len(seen) == 1
            torch._dynamo.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error", GyratorWarning)
            options = {"max_autotune": True, "freezing": True}
            with torch.no_grad():
                torch.compile(torch.cos, backend=session.backend, options=options)(torch.randn(3))


def test_measuring_products_warns_of_no_option(opened: Open) -> None:
    """Trials change options that others of the session's options need."""
    options = {
        "max_autotune": True, "autotune_seconds": 60, "wrapper": "fx", "fx_compiler": lambda g: g,
    }  # fmt: skip
    x, y = torch.randn(8, 32), torch.randn(32, 16)
    with opened(options) as session, warnings.catch_warnings():
        warnings.simplefilter("error", GyratorWarning)
        torch.testing.assert_close(torch.compile(torch.mm, backend=session.backend)(x, y), x @ y)


# The session itself


def test_a_session_shows_what_it_takes_and_nothing_else() -> None:
    output = list(inspect.signature(Session).parameters)
    assert output == [
        "options", "config", "rules", "passes", "targets", "decompositions", "parts", "wrappers",
        "observer", "cache",
    ]  # fmt: skip


def test_closing_a_session_closes_its_loaders_and_leaves_functions_usable(monkeypatch):
    closed, close = [], CppLoader.close

    def noted(loader):
        closed.append(loader)
        close(loader)

    monkeypatch.setattr(CppLoader, "close", noted)
    x = torch.randn(9, 5)
    with Session(options={"cache": False, "progress": False}) as session:
        double = torch.compile(lambda x: torch.sin(x) * 2, backend=session.backend)
        double(x)
        assert not closed
    assert len(closed) == 1
    torch.testing.assert_close(double(x), torch.sin(x) * 2)
