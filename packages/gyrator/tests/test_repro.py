"""Repros, minifying and bisecting, on compilers with planted faults."""

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import forked
import pytest
import torch
from attrs import evolve, frozen

from gyrator import Session
from gyrator.cli.main import main
from gyrator.engine import pipeline, wrapping
from gyrator.repro.bisect import bisect
from gyrator.repro.example import Example
from gyrator.repro.failure import Failure, find_failure
from gyrator.repro.minify import calls, minify
from gyrator.repro.worker import Worker
from gyrator_codegen_cpp import ops as cpp_ops
from gyrator_ir.body.nodes import Load
from gyrator_ir.expr import ZERO, Const, subs
from gyrator_ir.host.nodes import HostProgram, Launch, Return
from gyrator_ir.kernel.nodes import Kernel, Schedule
from gyrator_ir.loop.nodes import LoopProgram, Pointwise, Reduction
from gyrator_ir.passes import PassEdits
from gyrator_lowering.table import LoweringTable
from gyrator_scheduler.fusion import match
from gyrator_scheduler.host import plan

GRAPH = """\
fx.graph 1 @main
  in x: f32[16, 24] on cpu
  in w: f32[24, 24] on cpu
  in b: f32[24] on cpu
  in i: i64[5] on cpu
  a = aten.mm.default (x, w)
  c = aten.add.Tensor (a, b)
  d = aten.gelu.default (c)
  e = aten.exp.default (x)
  f = aten.sum.dim_IntList (e, [1], true)
  g = aten.div.Tensor (e, f)
  h = aten.index.Tensor (d, [i])
  k = aten.amax.default (h, [0])
  l = aten.mul.Tensor (g, k)
  m = aten.tanh.default (l)
  n = aten.neg.default (d)
  return m, n, h
"""


def test_a_graph_that_is_compiled_well() -> None:
    assert find_failure(GRAPH, {}) == Failure()
    actual = bisect(GRAPH)
    assert not actual.stage and actual.checked > 4, actual


# Planted faults -----------------------------------------------------------------------------------


@frozen
class Shifting:
    """A pass of Loop IR that reads the first element of `b` everywhere."""

    name: ClassVar[str] = "shifting"

    def run(self, program: LoopProgram) -> LoopProgram:
        result = tuple(map(self._changed, program.operations))
        return program if result == program.operations else evolve(program, operations=result)

    def _changed(self, op: Any) -> Any:
        if not isinstance(op, Pointwise):
            return op
        loads = [s for s in op.body if isinstance(s, Load) and s.buffer == "b"]
        body = [evolve(s, index=ZERO) if s in loads else s for s in op.body]
        return evolve(op, body=tuple(body)) if loads else op


@frozen
class Crashing:
    """A pass of kernels that does not take a reduction."""

    name: ClassVar[str] = "crashing"

    def run(self, program: Schedule) -> Schedule:
        if any(isinstance(n, Kernel) and n.inner for n in program.nodes):
            raise ZeroDivisionError("what it divides by is zero")
        return program


@frozen
class Rewriting:
    """A pass of graphs that takes each negation for an absolute value."""

    name: ClassVar[str] = "rewriting"

    def run(self, gm: torch.fx.GraphModule) -> bool:
        actual = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default)
        for node in actual:
            node.target = torch.ops.aten.abs.default
        return bool(actual)


def edited(level: str, one: Any) -> dict[str, Any]:
    return {"passes": PassEdits().first(level, one)}


def wrong_rule(patch: pytest.MonkeyPatch) -> None:
    """Plant a lowering rule of `tanh` that computes the sine."""
    table = pipeline.default_table()
    rules = {**table.rules, "aten.tanh": table.find("aten.sin.default")}
    patch.setattr(pipeline, "default_table", lambda: LoweringTable(rules))


def wrong_text(patch: pytest.MonkeyPatch) -> None:
    """Plant C++ that computes the sine where a tangent is asked for."""
    right = cpp_ops.function
    patch.setattr(
        cpp_ops, "function", lambda op, dtype: right("sin" if op == "tanh" else op, dtype)
    )


def wrong_host(patch: pytest.MonkeyPatch) -> None:
    """Plant a host program that returns its first result twice."""
    right = pipeline.plan_host

    def planned(*inputs: Any) -> HostProgram:
        host = right(*inputs)
        *result, end = host.instructions
        assert isinstance(end, Return)
        twice = (end.values[0], *end.values[:1], *end.values[2:])[: len(end.values)]
        return evolve(host, instructions=(*result, Return(twice)))

    patch.setattr(pipeline, "plan_host", planned)


def crashing_host(patch: pytest.MonkeyPatch) -> None:
    """Plant a planner of host programs that does not know results of three dimensions."""

    def planned(*_: Any) -> HostProgram:
        raise NotImplementedError("a host program")

    patch.setattr(pipeline, "plan_host", planned)


def wrong_fusion(patch: pytest.MonkeyPatch) -> None:
    """Plant a scheduler that fuses work whose accesses to common memory do not fit."""
    patch.setattr(match, "_conflict", lambda *_: None)


def bad_reuse(patch: pytest.MonkeyPatch) -> None:
    """Plant a planner of memory that lets what lives at the same time overlap."""
    right = plan.place_in_pools

    def placed(*inputs: Any) -> Any:
        actual = right(*inputs)
        return evolve(actual, offsets={n: (pool, ZERO) for n, (pool, _) in actual.offsets.items()})

    patch.setattr(plan, "place_in_pools", placed)


def bad_launch(patch: pytest.MonkeyPatch) -> None:
    """Plant plans whose launches pass the first two tensors of a kernel in each other's place."""
    right = wrapping.lower_host

    def swapped(one: Any) -> Any:
        if not isinstance(one, Launch) or len(one.tensors) <= 2:
            return one
        first, second, *rest = one.tensors
        return evolve(one, tensors=(second, first, *rest))

    def lowered(host: HostProgram) -> Any:
        return right(evolve(host, instructions=tuple(map(swapped, host.instructions))))

    patch.setattr(wrapping, "lower_host", lowered)


def wrong_gradient(patch: pytest.MonkeyPatch) -> None:
    """Plant a rule of the gradient of `tanh` that gives that of the sigmoid."""
    table = pipeline.default_table()
    rules = {
        **table.rules,
        "aten.tanh_backward.default": table.find("aten.sigmoid_backward.default"),
    }
    patch.setattr(pipeline, "default_table", lambda: LoweringTable(rules))


@frozen
class Fixing:
    """A pass of Loop IR that takes the sizes of the first call for all sizes."""

    name: ClassVar[str] = "fixing"

    def run(self, program: LoopProgram) -> LoopProgram:
        hints = {symbol: Const(value) for symbol, value in program.facts.hints}
        result = tuple(self._fixed(op, hints) for op in program.operations)
        return program if result == program.operations else evolve(program, operations=result)

    def _fixed(self, op: Any, hints: Any) -> Any:
        if not isinstance(op, Reduction):
            return op
        inner = tuple(evolve(a, extent=subs(a.extent, hints)) for a in op.inner)
        return evolve(op, inner=inner)


ROWS = """\
fx.graph 1 @main
  in x: f32[24, 24] on cpu
  in y: f32[24, 24] on cpu
  a = aten.exp.default (x)
  b = aten.amax.default (a, [0])
  c = aten.mm.default (x, y)
  d = aten.flip.default (c, [0])
  e = aten.add.Tensor (d, b)
  f = aten.sum.dim_IntList (e, [0])
  g = aten.amax.default (y, [0])
  h = aten.flip.default (f, [0])
  k = aten.flip.default (g, [0])
  l = aten.sub.Tensor (h, k)
  m = aten.tanh.default (l)
  return m, e
"""
FUSED = """\
fx.graph 1 @main
  in x: f32[64, 64] on cpu
  in y: f32[64, 64] on cpu
  a = aten.exp.default (x)
  b = aten.amax.default (a, [0])
  c = aten.amax.default (a, [1])
  d = aten.sum.dim_IntList (y, [0])
  e = aten.mul.Tensor (b, d)
  f = aten.mm.default (x, y)
  g = aten.flip.default (f, [0])
  h = aten.add.Tensor (g, e)
  k = aten.sum.dim_IntList (h, [1])
  l = aten.mul.Tensor (k, c)
  m = aten.tanh.default (l)
  n = aten.cumsum.default (m, 0)
  return n, h
"""
SIZES = """\
fx.graph 1 @main
  fact s0 in [2, 64]
  fact s0 ~ 6
  in n: size s0
  in x: f32[s0, 4] strides [4, 1] on cpu
  in y: f32[4] on cpu
  a = aten.add.Tensor (x, y)
  b = aten.exp.default (a)
  c = aten.sum.dim_IntList (b, [0])
  d = aten.div.Tensor (b, c)
  e = aten.tanh.default (d)
  return e, a
"""


def gradients(folder: Path) -> str:
    """Return the graph of the backward pass of a training step."""

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).tanh().exp() * x).softmax(-1).square().sum()

    options = {"trace_dir": str(folder), "progress": False}
    inputs = (torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True))
    with Session(options=options) as session:
        torch._dynamo.reset()
        torch.compile(step, backend=session.backend)(*inputs).backward()
    (path,) = folder.glob("*_backward/fx.gy")
    return path.read_text()


Plant = Callable[[pytest.MonkeyPatch], Any]
FAULTS: dict[str, tuple[Plant, str, str, str]] = {
    "a pass of graphs": (lambda _: edited("fx", Rewriting()), "wrong", "fx", "rewriting"),
    "a lowering rule": (wrong_rule, "wrong", "loop", ""),
    "an index": (lambda _: edited("loop", Shifting()), "wrong", "loop", "shifting"),
    "a pass of kernels": (lambda _: edited("kernel", Crashing()), "error", "kernel", "crashing"),
    "the text of a kernel": (wrong_text, "wrong", "kernels", "k"),
    "a host program": (wrong_host, "wrong", "host", ""),
    "a planner": (crashing_host, "error", "host", ""),
    "fusion": (wrong_fusion, "wrong", "kernel", ""),
    "memory": (bad_reuse, "wrong", "host", ""),
    "a launch": (bad_launch, "wrong", "run", ""),
    "a gradient": (wrong_gradient, "wrong", "loop", ""),
    "sizes": (lambda _: edited("loop", Fixing()), "wrong", "loop", "fixing"),
}
GRAPHS = {"fusion": FUSED, "memory": ROWS, "a launch": ROWS, "sizes": SIZES}


SAMPLE = ("the text of a kernel", "a planner", "a launch")
"""Faults of an inner stage, of one that crashes and of the last one; the others are among the long
tests. Those of passes of graphs and of rules are found by other tests here, too."""


@pytest.fixture(
    params=[pytest.param(f, marks=() if f in SAMPLE else pytest.mark.long) for f in FAULTS]
)
def planted(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[str, dict[str, Any], str, str, str]:
    plant, kind, stage, name = FAULTS[request.param]
    fault = request.param
    text = gradients(tmp_path) if fault == "a gradient" else GRAPHS.get(fault, GRAPH)
    assert find_failure(text, {}) == Failure()
    return text, plant(monkeypatch) or {}, kind, stage, name


def test_a_planted_fault_is_found_and_made_small(planted: Any) -> None:
    whole, inputs, kind, stage, name = planted
    first = find_failure(whole, {}, **inputs)
    assert first.kind == kind, first
    small = minify(whole, lambda text: find_failure(text, {}, **inputs).alike(first))
    assert calls(small) <= 5, small
    assert find_failure(small, {}, **inputs).kind == kind
    for text in (whole, small):
        actual = bisect(text, **inputs)
        assert actual.stage == stage, actual
        assert actual.name.startswith(name) and bool(actual.name) == bool(name), actual
        assert actual.detail and actual.before


def test_what_a_pass_did_is_kept_as_text() -> None:
    actual = bisect(GRAPH, passes=PassEdits().first("fx", Rewriting()))
    assert "neg" in actual.before and "neg" not in actual.after
    assert str(actual).startswith("stage fx, pass rewriting: result 1: ")


# Parts --------------------------------------------------------------------------------------------

FORMS = """\
fx.graph 1 @main
  fact s0 in [2, 64]
  fact s0 ~ 6
  in n: size s0
  in x: f32[s0, 4] strides [1, s0] on cpu
  in y: f32[3, 4] strides [0, 1] on cpu offset 2
  in m: bool[s0] on cpu
  in i: i64[2] on cpu
  in h: bf16[2, 3] on cpu
  constant c: f32[4] on cpu key held
  a = aten.add.Tensor (x, c)
  b = aten.sum.dim_IntList (y, [0])
  d = aten.exp.default (h)
  e = aten.bitwise_not.default (m)
  f = aten.index.Tensor (a, [i])
  return a, b, d, e, f
"""


def test_arguments_are_as_the_graph_says() -> None:
    example = Example.read(FORMS)
    n, x, y, m, i, h = example.inputs
    assert n == 6 and x.shape == (6, 4) and x.stride() == (1, 6)
    assert y.stride() == (0, 1) and torch.equal(y[0], y[2]) and not torch.equal(y[0], y[0].flip(0))
    assert (m.dtype, i.dtype, h.dtype) == (torch.bool, torch.int64, torch.bfloat16)
    again = Example.read(FORMS).eager()
    pairs = zip(example.eager(), again, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs if isinstance(a, torch.Tensor))
    exact = example.exact()
    assert exact is not None and exact[2].dtype == torch.float64
    assert find_failure(FORMS, {}) == Failure() and not bisect(FORMS).stage


def test_integers_are_zero_where_others_are_no_indices() -> None:
    text = GRAPH.replace("f32[16, 24]", "f32[1, 24]")
    assert not Example.read(text).inputs[3].any()


def test_a_dynamic_graph_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_rule(monkeypatch)
    text = FORMS.replace(
        "return a,", "t = aten.tanh.default (a)\n  u = aten.sin.default (t)\n  return u,"
    )
    first = find_failure(text, {})
    small = minify(text, lambda shorter: find_failure(shorter, {}).alike(first))
    assert first.kind == "wrong" and calls(small) == 1 and "aten.tanh.default" in small


def test_random_numbers_are_compared_by_their_form() -> None:
    text = GRAPH.replace("aten.neg.default (d)", "aten.rand_like.default (d)")
    assert Example.read(text).random
    assert find_failure(text, {}) == Failure() and not bisect(text).stage


def test_a_process_may_die_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    with Worker({}, seconds=120.0) as attempt:
        threading.Timer(0.5, lambda: attempt._process.kill()).start()  # while it imports torch
        assert attempt(GRAPH) == Failure("death", "SIGKILL", "the process ended with SIGKILL")
        monkeypatch.setattr(multiprocessing, "get_context", lambda kind: forked.CONTEXT)
        assert attempt(GRAPH) == Failure()
        attempt._process.kill()
        attempt._process.join()
        assert attempt(GRAPH) == Failure()
        attempt.seconds = 0.0
        assert attempt(GRAPH).kind == "hang"
        assert attempt.tries == 4


SCRIPT = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"


# As people use it --------------------------------------------------------------------------------


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.gy"
    file.write_text(GRAPH)
    assert main(["repro", str(file)]) == 0 and main(["bisect", str(file)]) == 0
    assert "all stages and passes are correct" in capsys.readouterr().out
    assert main(["minify", str(file), "--for", "wrong"]) == 2
    assert "GY-OPT-004" in capsys.readouterr().err

    wrong_rule(monkeypatch)
    assert main(["repro", str(file)]) == 1 and main(["bisect", str(file), "-o", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "wrong: result 0" in output and "stage loop: result 0" in output
    assert (tmp_path / "before.gy").read_text().startswith("fx.graph")
    assert (tmp_path / "after.gy").read_text().startswith("loop.program")


def test_a_graph_is_made_small_in_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.gy"
    file.write_text(GRAPH)
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("GYRATOR_TARGETS", "cpu")  # where LLVM would build kernels
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path / "cache"))
    option = ["--option", "numerics=fast"]
    assert main(["minify", str(file), *option, "-o", str(tmp_path / "small")]) == 0
    small = (tmp_path / "small" / "fx.gy").read_text()
    output = capsys.readouterr()
    assert output.out == small and calls(small) == 1 and "error: GY-" in output.err
    assert "'numerics': 'fast'" in (tmp_path / "small" / "repro.py").read_text()


def test_a_trace_runs_by_itself(tmp_path: Path) -> None:
    options = {"trace_dir": str(tmp_path), "progress": False, "numerics": "fast"}
    with Session(options=options) as session:
        torch._dynamo.reset()
        torch.compile(lambda x: x.softmax(-1), backend=session.backend)(torch.randn(3, 5))
    (path,) = tmp_path.glob("*/repro.py")
    assert "'numerics': 'fast'" in path.read_text()
    done = forked.run_forked(SCRIPT, [str(path)])
    assert (done.returncode, done.stdout) == (0, "matches eager mode\n"), done.stderr


def test_a_failing_compiler_leaves_a_repro(monkeypatch: pytest.MonkeyPatch) -> None:
    crashing_host(monkeypatch)
    with Session(options={"cache": False, "progress": False}) as session:
        torch._dynamo.reset()
        compiled = torch.compile(torch.sin, backend=session.backend)
        with pytest.warns(
            UserWarning, match="repro.py` to reproduce it without the model"
        ) as caught:
            compiled(torch.randn(3))
    (path,) = {w for one in caught for w in str(one.message).split("`") if w.startswith("python ")}
    script = Path(path.removeprefix("python "))
    assert calls((script.parent / "fx.gy").read_text()) == 1


@pytest.mark.parametrize("level", [2, 4])
def test_torchs_own_switch_asks_for_repros(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if level == 2:
        monkeypatch.setenv("CXX", "false")
        monkeypatch.setenv("GYRATOR_TARGETS", "cpu")  # where LLVM would build kernels
    else:
        wrong_rule(monkeypatch)
    torch._dynamo.reset()
    options = {"cache": False, "progress": False, "strict": True}
    switched = torch._dynamo.config.patch(repro_after="aot", repro_level=level)
    with Session(options=options) as session, switched:
        compiled = torch.compile(lambda x: x.exp().tanh(), backend=session.backend)
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
            compiled(torch.randn(3, 4))
    inner = raised.value.inner_exception
    assert "GY-BUILD-001" in str(inner) if level == 2 else "result 0" in str(inner)
    message = " ".join(getattr(inner, "__notes__", ()))
    (path,) = (w.removeprefix("python ") for w in message.split("`") if w.startswith("python "))
    text = (Path(path).parent / "fx.gy").read_text()
    assert "aten.tanh.default" in text and calls(text) == 2
    minifier = Path(path).with_name("minify.py")
    assert f"Minifier script written to {minifier}" in str(raised.value)
    if level == 2:
        done = forked.run_forked(SCRIPT, [str(minifier)])
        assert done.returncode == 0 and calls(done.stdout) == 1, done.stderr
