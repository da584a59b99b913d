"""A user's passes at every level: run, replaced, dropped, keyed, timed and shown."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from attrs import evolve, field, frozen
from torch import Tensor

import gyrator
from gyrator import GraphRecord, PassEdits, Session
from gyrator.config import Config
from gyrator.engine.passes import pipelines
from gyrator.store.content_hash import passes_hash
from gyrator_codegen.passes.rewriting import each_kernel
from gyrator_ir.body.nodes import Const
from gyrator_ir.kernel.nodes import Kernel, Schedule
from gyrator_ir.loop.nodes import LoopProgram, Pointwise
from gyrator_ir.passes import PassError
from gyrator_ir.tile.nodes import TiledKernel, TileProgram
from gyrator_lowering.fx_passes import Cse
from gyrator_scheduler.passes.inline_pointwise import InlinePointwise

NONE = PassEdits()


@frozen
class SwapOps:
    """Takes one op for another: what it does can be seen in results."""

    name: ClassVar[str] = "swap-ops"
    old: str = "sin"
    new: str = "cos"

    def run(self, gm: torch.fx.GraphModule) -> bool:
        old, new = (getattr(torch.ops.aten, name).default for name in (self.old, self.new))
        actual = [n for n in gm.graph.nodes if n.target is old]
        for node in actual:
            node.target = new
        return bool(actual)


@frozen
class SetConstants:
    name: ClassVar[str] = "set-constants"
    to: float = 3.0

    def run(self, program: LoopProgram) -> LoopProgram:
        def changed(op: Any) -> Any:
            if not isinstance(op, Pointwise):
                return op
            body = (evolve(s, value=self.to) if isinstance(s, Const) else s for s in op.body)
            return evolve(op, body=tuple(body))

        return evolve(program, operations=tuple(map(changed, program.operations)))


@frozen
class CountKernels:
    name: ClassVar[str] = "count-kernels"
    seen: ClassVar[list[int]] = []

    def run(self, schedule: Schedule) -> Schedule:
        self.seen.append(len(schedule.kernels))
        return schedule


@frozen
class TileConstants:
    name: ClassVar[str] = "tile-constants"

    def run(self, program: TileProgram) -> TileProgram:
        return each_kernel(
            program, lambda tiled, facts: evolve(tiled, kernel=self._with_five(tiled))
        )

    def _with_five(self, tiled: TiledKernel) -> Kernel:
        def five(s: Any) -> Any:
            return evolve(s, value=5.0) if isinstance(s, Const) else s

        stages = (evolve(g, body=tuple(map(five, g.body))) for g in tiled.kernel.stages)
        return evolve(tiled.kernel, stages=tuple(stages))


@frozen
class SwapAndFail(SwapOps):
    name: ClassVar[str] = "swap-and-fail"

    def run(self, gm: torch.fx.GraphModule) -> bool:
        super().run(gm)
        gm.graph.call_function(torch.ops.aten.cos.default, (None,))
        raise RuntimeError("in the middle of a rewrite")


Compile = Callable[..., Any]


@pytest.fixture
def compiled(config: Config, records: list[GraphRecord]) -> Iterator[Compile]:
    """Return what compiles a function in a session with edited passes."""
    sessions: list[Session] = []

    def make(function: Callable[..., Any], passes: PassEdits = NONE, **options: Any) -> Any:
        torch._dynamo.reset()
        options = {"strict": True, "progress": False, **options}
        sessions.append(
            Session(options=options, config=config, passes=passes, observer=records.append)
        )
        return torch.compile(function, backend=sessions[-1].backend)

    yield make
    for session in sessions:
        session.close()


def work(x: Tensor) -> Tensor:
    return x.sin() + 2.0


X = torch.linspace(-2, 2, 40)


@pytest.mark.parametrize(
    ("edits", "want"),
    [
        (NONE, X.sin() + 2),
        (NONE.last("joint", SwapOps()), X.cos() + 2),
        (NONE.before("cse", SwapOps()), X.cos() + 2),
        (NONE.replaced("expand-foreach", SwapOps("sin", "exp")), X.exp() + 2),
        (NONE.first("fx", SwapOps()).without("swap-ops"), X.sin() + 2),
        (NONE.after("inline-pointwise", SetConstants()), X.sin() + 3),
        (NONE.last("loop", SetConstants()).configured("set-constants", to=4.0), X.sin() + 4),
        (NONE.last("kernel", CountKernels()), X.sin() + 2),
        (NONE.last("tile", TileConstants()), X.sin() + 5),
    ],
)
def test_passes_of_each_level_are_run(
    compiled: Compile, records: list[GraphRecord], edits: PassEdits, want: Tensor
) -> None:
    for again in (False, True):
        torch.testing.assert_close(compiled(work, edits)(X), want)
        assert records[-1].cached is again  # each of these edits has a key of its own
    assert len(CountKernels.seen) <= 1


def test_the_backward_graph_is_passed_over_too(compiled: Compile) -> None:
    x = X.clone().requires_grad_()
    compiled(work, NONE.first("fx", SwapOps("cos", "exp")))(x).sum().backward()
    torch.testing.assert_close(x.grad, X.exp())


def test_dropping_a_pass_leaves_it_out(compiled: Compile, records: list[GraphRecord]) -> None:
    def twice(x: Tensor) -> Tensor:
        return x.sin().sum(0) * x.sin()

    x = torch.randn(16, 16)
    want = twice(x)
    for edits in (NONE, NONE.without("cse", "inline-pointwise", "remove-noop")):
        torch.testing.assert_close(compiled(twice, edits, cache=False)(x), want)
    first, second = ({(s.level, s.name) for s in r.passes} for r in records)
    dropped = {("fx", "cse"), ("loop", "inline-pointwise"), ("joint", "remove-noop")}
    assert first - second == {*dropped, ("fx", "remove-noop")} and second < first


def test_unknown_names_are_refused_at_once() -> None:
    for edits, code, message in (
        (NONE.without("inline-pointwis"), "GY-PASS-001", "did you mean 'inline-pointwise'"),
        (NONE.before("xyz", Cse()), "GY-PASS-001", "joint: replay-views, .*; fx: .*; loop: "),
        (NONE.last("loops", Cse()), "GY-PASS-009", "did you mean 'loop'"),
        (NONE.configured("merge-axes", x=1), "GY-PASS-002", "there are none"),
    ):
        with pytest.raises(PassError, match=f"{code}(.|\\n)*{message}"):
            Session(passes=edits)


def test_each_pass_has_one_line_that_says_what_it_does() -> None:
    for pipeline in pipelines():
        for one in pipeline.table.values():
            assert (type(one).__doc__ or "").strip()


@pytest.fixture
def _other_modules() -> Iterator[None]:
    yield
    sys.modules.pop("mine", None)


def module_with(text: str, file: Path | None) -> type:
    """Return the class `P` of a module with this text, which lies in a file, or in none."""
    module = ModuleType("mine")
    sys.modules["mine"] = module
    exec(compile(text, "<mine>", "exec"), vars(module))
    if file is not None:
        file.write_text(text)
        module.__file__ = str(file)
    actual: type = vars(module)["P"]
    return actual


CODE = """
from attrs import frozen
def helper(program):
    return {}
@frozen
class P:
    name = "p"
    field: object = 0
    def run(self, program):
        return helper(program)
"""


@pytest.mark.usefixtures("_other_modules")
@pytest.mark.parametrize("file", [True, False])
def test_the_code_of_a_pass_is_part_of_the_key(tmp_path: Path, file: bool) -> None:
    path = tmp_path / "mine.py" if file else None
    hashes = []
    for value in ("program", "program", "None"):
        hashes.append(passes_hash(NONE.last("loop", module_with(CODE.format(value), path)())))
    assert hashes[0] == hashes[1] != hashes[2]
    cls = module_with(CODE.format("program"), path)
    others = (
        NONE.first("loop", cls()), NONE.last("fx", cls()), NONE.last("loop", cls(1)),
        NONE.last("loop", cls(), cls()), NONE.after("cse", cls()), NONE.without("cse"),
        NONE.after("cse", cls()).after("cse", cls()), NONE.after("cse", cls(), cls()).after("cse"),
        NONE.configured("inline-pointwise", cost=1), NONE.configured("inline-pointwise", cost=2),
        NONE.last("loop", InlinePointwise()), NONE,
    )  # fmt: skip
    assert len({hashes[0], *map(passes_hash, others)}) == 1 + len(others)


@frozen
class Hashed:
    """A pass with an option that has no text of its own."""

    name: ClassVar[str] = "hashed"
    chosen: Callable[[], bool] = field()
    content_hash: str | None = None

    def run(self, program: LoopProgram) -> LoopProgram:
        return program


def test_options_that_have_no_text_need_a_hash() -> None:
    for edits in (
        NONE.last("loop", Hashed(lambda: True)),
        NONE.configured("linear-calls", quicker=lambda product: True),
    ):
        with pytest.raises(PassError, match=r"GY-PASS-012(.|\n)*content_hash"):
            Session(passes=edits)
    one, same, other = (NONE.last("loop", Hashed(lambda: True, h)) for h in ("a", "a", "b"))
    assert passes_hash(one) == passes_hash(same) != passes_hash(other)


def test_explain_shows_times_and_texts() -> None:
    options = {"cache": False, "progress": False}
    explanation = gyrator.explain(work, X, options={**options, "pass_texts": True})
    (sin,) = [s for s in explanation.passes if s.name == "inline-pointwise"]
    assert sin.level == "loop" and sin.changed and sin.seconds > 0
    assert "pointwise op0" in sin.before and sin.diff().startswith("--- loop\n+++ loop after inl")
    assert [s.level for s in explanation.passes] == sorted(
        (s.level for s in explanation.passes), key=["joint", "fx", "loop", "kernel", "tile"].index
    )
    assert "inline-pointwise" in str(explanation)
    plain = gyrator.explain(work, X, options=options)
    assert len(plain.passes) == len(explanation.passes)
    assert not any(s.before or s.after for s in plain.passes)


def test_a_trace_has_what_each_pass_made(tmp_path: Path) -> None:
    x = X.clone().requires_grad_()
    options = {"cache": False, "progress": False, "trace_dir": str(tmp_path)}
    with Session(options=options, passes=NONE.last("fx", SwapOps("neg", "exp"))) as session:
        torch._dynamo.reset()
        negated = torch.compile(lambda x: x.sin().neg(), backend=session.backend)
        negated(x).sum().backward()
    forward = sorted(p.name for p in (tmp_path / "000_forward/passes").iterdir())
    assert forward[:3] == ["000-fx.gy", "001-fx-swap-ops.gy", "002-loop.gy"]
    assert any(name.endswith("loop-inline-pointwise.gy") for name in forward)
    before, after = ((tmp_path / "000_forward/passes" / n).read_text() for n in forward[:2])
    assert "aten.neg" in before and "aten.exp" in after
    assert (tmp_path / "000_backward/passes").is_dir()


@pytest.mark.filterwarnings("ignore:.*in the middle of a rewrite")
def test_a_graph_that_a_pass_left_half_rewritten_runs_as_it_was(
    compiled: Compile, records: list[GraphRecord]
) -> None:
    run = compiled(lambda x: x.sin() + 1, NONE.first("fx", SwapAndFail()), strict=False)
    x = torch.randn(5, requires_grad=True)
    result = run(x)
    assert torch.equal(result, x.sin() + 1)
    result.sum().backward()
    assert torch.equal(x.grad, x.detach().cos())
    assert all("in the middle of a rewrite" in r.fallback for r in records) and len(records) == 2
