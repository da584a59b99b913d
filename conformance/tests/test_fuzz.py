"""Random programs: drawn alike from a seed, judged, shrunk; and those that once failed."""

import json
from pathlib import Path

import pytest
import torch
from attrs import evolve

from gyrator.config import Config
from gyrator_conformance.fuzz.altered import RESTRIDED
from gyrator_conformance.fuzz.campaign import Finding, Jury, run_campaign
from gyrator_conformance.fuzz.generate import generate, smaller
from gyrator_conformance.fuzz.judge import Judge, Verdict, form
from gyrator_conformance.fuzz.parts import CALLS, mark_of, marked, with_plainer_parts
from gyrator_conformance.fuzz.program import DTYPES, LAYOUTS, Input, Program, make_input
from gyrator_conformance.profiles import find_target

CORPUS = json.loads(Path(__file__).with_name("fuzz_corpus.json").read_text())


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    return Judge(Config(tmp_path_factory.mktemp("cache"), 1 << 30, ""))


def program(*statements, result="v", **fields):
    inputs = fields.pop("inputs", (Input("x", (3, 4), "f32"),))
    return Program(inputs, statements, (result,), **fields)


def test_a_seed_gives_the_same_program_and_its_json_reads_back():
    for seed in range(20):
        drawn = generate(seed, ("python", "cpp"))
        assert drawn == generate(seed, ("python", "cpp"))
        assert Program.from_json(drawn.as_json()) == drawn
        assert "def fn(" in drawn.text


def test_inputs_have_the_layout_they_name():
    shape = (2, 3, 4, 5)
    for layout in LAYOUTS:
        for dtype in DTYPES:
            made = make_input(Input("x", shape, dtype, layout, 3, special=True), shape, "cpu")
            again = make_input(Input("x", shape, dtype, layout, 3, special=True), shape, "cpu")
            assert made.shape == shape and made.dtype == DTYPES[dtype]
            assert made.stride() == again.stride()
            assert torch.equal(made.nan_to_num(), again.nan_to_num())
    steps = {t: make_input(Input("x", shape, "f32", t), shape, "cpu").stride() for t in LAYOUTS}
    assert steps["T"] == (60, 20, 1, 4) and steps["perm"] == (1, 2, 6, 24)
    assert steps["exp"][0] == 0 and steps["cl"][1] == 1


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda x: x.sin() + 1e-3, "value"),
        (lambda x: x.sin().double(), "dtype"),
        (lambda x: x.sin()[:1], "shape"),
        (lambda x: x.sin().t().contiguous().t(), "stride"),
        (lambda x: x, "value"),
        (lambda x: torch.ones(2) @ x, "exception"),
    ],
)
def test_a_wrong_compiler_is_noticed(judge, wrong, kind):
    right = program("v = x.sin()")
    assert judge.judge(right) == Verdict(graphs=1)
    found = judge._compare(right, right.function(), lambda x: (wrong(x),))
    assert found.kind == kind, found


def test_what_eager_raises_must_raise_and_gradients_and_inputs_are_compared(judge):
    bad = program("v = x @ x")
    assert judge._compare(bad, bad.function(), lambda x: (x,)).kind == "silent"
    given = (Input("x", (3,), "f32", grad=True),)
    trained = program("v = x * 2", gradients="first", inputs=given)
    assert judge.judge(trained).kind == ""
    assert judge._compare(trained, trained.function(), lambda x: ((x * 2).detach() + 0 * x,)).kind
    written = program("x.add_(1)", "v = x * 2")
    assert judge._compare(written, written.function(), lambda x: ((x + 1) * 2,)).kind == "value"
    shared = program("v = x.view(-1)")
    assert (
        judge._compare(shared, shared.function(), lambda x: (x.flatten().clone(),)).kind == "alias"
    )


def raising(kind, said):
    def wrong(x):
        raise kind(said)

    return wrong


def test_errors_that_the_manual_names_are_explained_and_no_others(judge):
    spread = program("v = x[torch.tensor([0, 1]), torch.tensor([0, 1, 2])]")
    read = program("i = torch.tensor(9)", "v = x[i.item()]")
    outside = program("v = x.select(0, 9)")
    for p, kind, reason in [
        (spread, RuntimeError, "manual"), (spread, ValueError, ""), (read, RuntimeError, "manual"),
        (outside, RuntimeError, ""),
    ]:  # fmt: skip
        found = judge._compare(p, p.function(), raising(kind, "no"))
        assert (found.kind, found.explained) == ("exception", reason), found
    drawn = program("v = torch.bernoulli(x * 0 + 2)")
    assert judge._compare(drawn, drawn.function(), lambda x: (x,)).explained == "manual"
    lost = program("v = torch.cholesky_solve(x, x)")
    assert judge._compare(lost, lost.function(), lambda x: (x,)).explained == ""


def test_hosts_in_cpp_alone_may_lose_the_type_of_an_exception(judge):
    said = "index 9 is out of bounds for dimension 0 with size 3"
    for wrapper, kind, text, reason in [
        ("cpp", RuntimeError, said, "untyped"), ("cpp", RuntimeError, "index 9", ""),
        ("cpp", ValueError, said, ""), ("python", RuntimeError, said, ""),
    ]:  # fmt: skip
        p = program("v = x[torch.tensor([9])]", wrapper=wrapper)
        found = judge._compare(p, p.function(), raising(kind, text))
        assert (found.kind, found.explained) == ("exception", reason), found


def test_hosts_in_cpp_may_lose_what_an_op_says_where_libtorch_does(judge, monkeypatch):
    p = program("v = x[torch.tensor([9])]", wrapper="cpp")
    for says, text, reason in [
        (False, "aten::index failed", "untyped"), (True, "aten::index failed", ""),
        (False, "the program failed", ""),
    ]:  # fmt: skip
        monkeypatch.setattr("gyrator_conformance.fuzz.judge._says_errors", lambda says=says: says)
        found = judge._compare(p, p.function(), raising(RuntimeError, text))
        assert (found.kind, found.explained) == ("exception", reason), found


def test_torch_explains_what_it_gets_wrong_alike_and_nothing_else(judge, monkeypatch):
    given = (Input("x", ("d0", 4), "f32"),)
    p = Program(given, ("v = x.sin()", "w = x.cos()"), ("v", "w"), {"d0": (3, 5)})
    eager = p.function()

    def off(by_v, by_w=0.0, calls=(3, 5)):
        return lambda x: tuple(
            r + by * (len(x) in calls) for r, by in zip(eager(x), (by_v, by_w), strict=True)
        )

    def either(small, large):
        return lambda x: (small if len(x) == 3 else large)(x)

    fails, fails_otherwise = raising(ValueError, "no"), raising(KeyError, "no")
    for ours, front, reason in [
        (off(1), off(1), "torch"), (off(1), off(2), ""), (off(1, 1), off(1), ""),
        (off(1), off(1, 1), ""), (off(1), fails, ""), (off(1), off(1, calls=(3,)), ""),
        (fails, fails, "torch"), (fails, fails_otherwise, ""), (fails, off(1), ""),
        (either(off(1), fails), either(off(1), off(0)), ""),
    ]:  # fmt: skip
        made = lambda program, function, backend, ours=ours, front=front: (  # noqa: E731
            front if backend == "aot_eager" else ours
        )
        monkeypatch.setattr(Judge, "_compiled", staticmethod(made))
        found = judge.judge(p)
        assert found.kind and found.explained == reason, (found, reason)


def test_torch_explains_the_device_of_random_numbers(judge, monkeypatch):
    p = program("v = torch.rand_like(x)")
    drawn = lambda device, n=4: lambda x: (torch.rand(3, n, device=device),)  # noqa: E731
    for ours, front, reason in [
        (drawn("meta"), drawn("meta"), "torch"), (drawn("meta"), drawn(None), ""),
        (drawn("meta", 2), drawn("meta"), ""),
    ]:  # fmt: skip
        made = lambda program, function, backend, ours=ours, front=front: (  # noqa: E731
            front if backend == "aot_eager" else ours
        )
        monkeypatch.setattr(Judge, "_compiled", staticmethod(made))
        assert judge._explained(p, p.function(), Verdict("device")) == reason


def test_a_difference_that_is_explained_hides_none_of_a_later_call(judge):
    p = program("v = x @ x", inputs=(Input("x", ("d0", 3), "f32"),), dims={"d0": (2, 3)})
    lost = raising(NotImplementedError, "no kernel")
    eager = lambda x: lost(x) if len(x) == 2 else (x @ x,)  # noqa: E731
    for by, kind, reason in [(0, "silent", "wider"), (1, "value", "")]:
        ours = lambda x, by=by: (x,) if len(x) == 2 else (x @ x + by,)  # noqa: E731
        found = judge._compare(p, eager, ours)
        assert (found.kind, found.explained) == (kind, reason), found


@pytest.fixture(scope="module")
def interpreted():
    pytest.importorskip("triton")
    return Judge(find_target("cpu-triton").config)


@pytest.mark.parametrize("statement", ["v = x.gather(0, i[None])", "v = x[i]", "v = x[i.clamp(1)]"])
def test_interpreted_kernels_raise_what_eager_mode_raises(interpreted, statement):
    given = (Input("x", (3, 4), "f32"), Input("y", (4,), "i64"))
    p = program("i = y * 0 - 4", statement, inputs=given)
    assert interpreted.judge(p) == Verdict(graphs=1)


def test_interpreted_kernels_need_no_sizes_that_they_do_not_use(interpreted):
    given = (Input("x", ("d0", 2), "u8"),)
    p = program(
        "y = x.flatten()", "v = torch.cartesian_prod(y[:4], y[:3])",
        inputs=given, dims={"d0": (4, 6)}, dynamic=True,
    )  # fmt: skip
    assert interpreted.judge(p) == Verdict(graphs=1)


def test_numerics_that_a_language_of_kernels_cannot_have_are_refused(interpreted):
    found = interpreted.judge(program("v = x.sum()", options={"numerics": "batch_invariant"}))
    assert (found.kind, found.explained) == ("eager", "refused"), found


def test_unstable_results_are_explained_each_for_itself(judge):
    steep = Program(program("v = x").inputs, ("v = torch.sin(x * 1e8)", "w = x * 2"), ("v", "w"))
    function = steep.function()
    for wrong, reason in [
        (lambda v, w: (v + 99, w), "unstable"), (lambda v, w: (v, w + 1), ""),
        (lambda v, w: (v + 99, w + 1), ""),
    ]:  # fmt: skip
        other = lambda x, wrong=wrong: wrong(*function(x))  # noqa: E731
        assert judge._unpromised(steep, function, other, 0) == reason
    plain = program("v = x.sin()")
    assert judge._explained(plain, plain.function(), Verdict("value")) == ""


def test_each_result_may_have_an_explanation_of_its_own(judge):
    given = (Input("x", (40,), "f32", seed=1), Input("y", (40,), "f32", seed=1, special=True))
    p = Program(given, ("v = x.sort()[1]", "w = (y + 0.125).to(i32)"), ("v", "w"))
    function = p.function()

    def other(x, y):
        return x.sort(stable=True)[1], torch.where(y.abs() < 1e9, function(x, y)[1], 3)

    def wrong(x, y):
        return other(x, y)[0], function(x, y)[1] + 1

    assert judge._unpromised(p, function, other, 0) == "ties"
    assert judge._unpromised(p, function, wrong, 0) == ""


@pytest.mark.parametrize(
    ("reason", "statement", "given", "wrong"),
    [
        (
            "conversion", "v = x.to(i32)", Input("x", (40,), "f32", special=True),
            lambda x: torch.where(x.abs() < 1e9, x.to(torch.int32), 3),
        ),
        (
            "ties", "v = x.sort()[1]", Input("x", (40,), "f32", seed=1),
            lambda x: x.sort(stable=True)[1],
        ),
        (
            "overflow", "v = F.layer_norm(x, (4,))", Input("x", (30, 4), "f32", special=True),
            lambda x: torch.where(
                (x.abs().amax(-1).clamp_max(1e38) == 1e30)[:, None], 7,
                torch.nn.functional.layer_norm(x, (4,)),
            ),
        ),
        (
            "layout", "v = torch.as_strided(torch.poisson(x.abs()), (5,), (2,))",
            Input("x", (3, 4), "f32", "T"),
            lambda x: torch.as_strided(torch.poisson(x.abs()).t().contiguous(), (5,), (2,)),
        ),
        (
            "layout", "v = x.clone().bernoulli_(0.5)", Input("x", (30, 40), "f32", "T"),
            lambda x: torch.empty(30, 40).bernoulli_(0.5).t().contiguous().t(),
        ),
        (
            "layout", "v = F.batch_norm(x, None, None, training=True).clone().geometric_(0.4)",
            Input("x", (2, 2, 4, 3), "f32", "over"),
            lambda x: torch.empty_strided(x.shape, (2, 1, 12, 4)).geometric_(0.4),
        ),
        (
            "attention", "v = F.scaled_dot_product_attention(x, x, x)",
            Input("x", (2, 3, 3, 2), "f64", special=True, seed=2),
            lambda x: torch.softmax(x @ x.mT / 2**0.5, -1) @ x,
        ),
        (
            "unstable", "v = torch.cosh(x).view(i32)", Input("x", (40,), "f32"),
            lambda x: torch.cosh(x).view(torch.int32) + 1,
        ),
    ],
)  # fmt: skip
def test_what_nothing_promises_is_explained_and_nothing_else(
    judge, reason, statement, given, wrong
):
    p = program(statement, inputs=(given,))
    known = judge._unpromised(p, p.function(), lambda x: (wrong(x),), 0)
    assert known == reason
    found = judge._unpromised(p, p.function(), lambda x: (wrong(x) * 0 + 77,), 0)
    assert (found == reason) is (reason == "unstable")


def test_norms_of_constant_rows_are_noise_and_those_of_others_are_not(judge):
    for layout, reason in (("exp", "unstable"), ("c", "")):
        given = (Input("x", (6, 4, 2), "f32", layout, seed=2),)
        p = program("v = F.instance_norm(x.permute(2, 1, 0)).all(-1)", inputs=given)
        eager = p.function()
        assert eager(*p.arguments(0, "cpu")[0])[0].all()
        assert judge._unpromised(p, eager, lambda _: (torch.zeros(2, 4).bool(),), 0) == reason


def test_what_rounding_decides_in_eager_mode_may_be_as_float64_says(judge):
    """The mean of equal numbers rounds in eager mode; the residue is true, and 0 is false."""
    given = (Input("x0", (7, 30), "f32", "exp"),)
    p = Program(given, ("v0 = (x0 - x0.mean(0)).all(0)", "v1 = x0 > 0"), ("v0", "v1"))
    eager = p.function()
    assert eager(*p.arguments(0, "cpu")[0])[0].any()

    def found(v0, v1):
        return judge._compare(p, eager, lambda x: (v0(eager(x)[0]), v1(eager(x)[1])))

    same, zero = (lambda v: v), torch.zeros_like
    assert found(zero, same) == Verdict("value", found(zero, same).detail, "unstable")
    for wrong in (found(zero, torch.logical_not), found(same, zero), found(torch.ones_like, same)):
        assert (wrong.kind, wrong.explained) == ("value", "")
    assert judge._unpromised(p, eager, lambda x: (zero(eager(x)[0]), x <= 0), 0) == ""


@pytest.mark.parametrize("way", CALLS)
def test_what_nothing_promises_is_explained_inside_of_parts(judge, way):
    given = Input("x0", (40, 2), "f32", seed=1, grad=True)
    values = marked("v0 = x0.sort(0)[0] * torch.arange(80).view(40, 2)", (way,), 1)
    order = marked("v1 = x0.sort(0)[1].float()", (way,), 1)
    p = Program((given,), (values, order), ("v0", "v1"), gradients="first")
    right, stable = p.function(), evolve(p, statements=tuple(
        s.replace("sort(0)", "sort(dim=0, stable=True)") for s in p.statements
    )).function()  # fmt: skip
    assert judge._unpromised(p, right, stable, 0) == "ties"
    assert judge._unpromised(p, right, lambda x: (stable(x)[0], right(x)[1] * 2), 0) == ""
    assert judge._exactly(p, 0).error is None
    assert judge._run(p, right, 0).error is None


def test_the_shape_of_nothing_and_memory_beyond_a_result_are_not_promised(judge):
    p = program("v = F.pixel_unshuffle(x, 2)", inputs=(Input("x", (3, 2, 0, 4), "f32"),))
    for shape, reason in [((3, 8, 0, 2), "layout"), ((3, 2, 2, 0), "")]:
        wrong = lambda x, shape=shape: (x.new_empty(shape),)  # noqa: E731
        assert judge._unpromised(p, p.function(), wrong, 0) == reason
    p = program("v = torch.as_strided(F.soft_margin_loss(x, x), (2,), (1,))")
    assert judge._reads_beyond(p, p.function(), raising(RuntimeError, "out of bounds"), 0)
    assert not judge._reads_beyond(p, p.function(), raising(IndexError, "out of bounds"), 0)
    p = program("v = torch.as_strided(x.sin(), (2,), (1,))")
    assert not judge._reads_beyond(p, p.function(), raising(RuntimeError, "out of bounds"), 0)


def test_a_memory_format_does_not_stop_the_judge(judge):
    given = Input("x", (2, 3, 4, 5), "f32")
    p = program("v = x.clone(memory_format=torch.channels_last)", inputs=(given,))
    assert judge._unpromised(p, p.function(), lambda x: (x + 1,), 0) == ""


def test_strides_are_explained_by_axes_of_one_element_alone(judge):
    def laid(x, order):
        got = torch.cat([x.sqrt(), x.sqrt()], 1)
        return (torch.empty(got.shape, dtype=got.dtype).to(memory_format=order).copy_(got),)

    given = Input("x", (7, 2, 4, 1), "bf16", "over", 5)
    p = program("u = x.sqrt()", "v = torch.cat([u, u], 1)", inputs=(given,))
    rows, last = torch.contiguous_format, torch.channels_last
    assert not judge._compare(p, p.function(), lambda x: laid(x, rows)).kind
    assert judge._compare(p, p.function(), lambda x: laid(x, last)).kind == "stride"
    for wrong, reason in [
        (lambda x: laid(x, last), "layout"),
        (lambda x: (laid(x, last)[0] + 1,), ""),
        (lambda x: (laid(x, rows)[0].transpose(0, 2).contiguous().transpose(0, 2),), ""),
    ]:
        assert judge._unpromised(p, p.function(), wrong, 0, RESTRIDED) == reason
    moved = program("v = torch.poisson(x.abs())", inputs=(Input("x", (3, 4), "f32", "T"),))
    assert not judge._unpromised(
        moved, moved.function(), lambda x: (torch.poisson(x.abs()).t().contiguous().t(),), 0,
        RESTRIDED,
    )  # fmt: skip


def test_the_exact_result_is_in_double_precision_whatever_a_program_names(judge):
    p = program(
        "u = x.to(f32) / 3", "w = u.half() + torch.rand_like(u)", "v = w.to(bf16)",
        inputs=(Input("x", (5,), "i64"),),
    )  # fmt: skip
    torch.manual_seed(7)
    x = p.arguments(0, "cpu")[0][0]
    want = x.double() / 3 + torch.rand(5)
    (exact,) = judge._exactly(p, 0).results
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact, want, rtol=1e-15, atol=1e-15)
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("dtype", ["f16", "c64", "b8", "i16"])
def test_the_exact_result_is_that_of_the_same_inputs(judge, dtype):
    given = Input("x", (40,), dtype, seed=2, special=True)
    p = program("v = x.clone()", inputs=(given,))
    want, (exact,) = judge._run(p, p.function(), 0).results[0], judge._exactly(p, 0).results
    torch.testing.assert_close(exact, want.to(exact.dtype), rtol=0, atol=0, equal_nan=True)


def test_failures_are_shrunk(monkeypatch):
    """A program fails as long as it takes a sine of a tensor that is not contiguous."""

    def judged(self, p):
        bad = any("sin" in s for s in p.statements) and p.inputs[0].layout == "T"
        return Verdict("value", "wrong") if bad else Verdict()

    monkeypatch.setattr(Jury, "judge", judged)
    monkeypatch.setattr(Jury, "draw", lambda self, seed, wrappers: large)
    inputs = (Input("x0", ("d0", 5), "f32", "T", 4, True, True), Input("x1", (7,), "f32"))
    large = Program(
        inputs, ("v0 = x0 + 1", "v1 = x1.cos()", "v2 = v0.sin()", "v3 = v2 * v1[0]"),
        ("v3", "v1"), {"d0": (4, 6)}, {}, True, "second", "cpp", {"fusion": False},
    )  # fmt: skip
    seen: list[Finding] = []
    run_campaign([1], ("python",), [Jury("cpu")], seen.append)
    (found,) = seen
    assert [s for s in found.program.statements if "sin" in s]
    assert len(found.program.statements) <= 2 and len(found.program.inputs) == 1
    left = found.program
    assert (left.dynamic, left.gradients, left.wrapper, left.calls) == (False, "none", "python", 1)
    assert left.inputs[0] == Input("x0", ("d0", 2), "f32", "T", 4)
    assert not any(judged(None, p).kind for p in smaller(evolve(left, dims={"d0": (2,)})))


@pytest.mark.parametrize("ways", [(w,) for w in CALLS] + [("checkpoint", "vmap"), ("vjp", "vmap")])
def test_parts_are_functions_of_what_they_read(judge, ways):
    given = (Input("x0", (3, 4), "f32", "T", grad=True), Input("x1", (4,), "f32", grad=True))
    body = ("v0 = x0.sin()", "v1 = v0 * x1", "v2 = v1.exp()")
    marks = tuple(marked(s, ways, 1) for s in body)
    p = Program(given, (*marks, "v3 = v1 + 1"), ("v3", "v2"), gradients="first")
    assert "    def part1(x0, x1):" in p.text and "v1, v2, = " in p.text
    assert judge.judge(p).kind == ""
    plain = evolve(p, statements=(*body, "v3 = v1 + 1"))
    same = not judge._compare(p, p.function(), plain.function()).kind
    assert same is (ways in (("checkpoint",), ("cond",)))


def test_parts_are_shrunk_to_plain_statements():
    marks = tuple(marked(f"v{k} = x.sin()", ("vmap", "cond"), 0) for k in range(2))
    parts = ["".join(map(mark_of, s)) for s in with_plainer_parts((*marks, "v2 = v1 + 1"))]
    assert parts == ["", "  # vmap 0" * 2, "  # cond 0" * 2]
    p = program(*marks, "v2 = v1 + 1", result="v2")
    assert any(not any(map(mark_of, q.statements)) and q != p for q in smaller(p))


def test_some_programs_have_parts_that_eager_runs():
    drawn = [generate(seed) for seed in range(40)]
    assert {w for p in drawn for w in CALLS if f"{w}(" in p.text} >= {"checkpoint"}


@pytest.mark.long
def test_a_worker_outlives_its_programs():
    dying = program("v = x + 1", "import os", "os._exit(3)")
    jury = Jury("cpu", 60.0)
    try:
        assert jury.judge(dying).kind == "crash"
        assert jury.judge(dying).explained == "torch"  # eager mode dies, too
        assert jury.judge(program("v = x + 1")) == Verdict(graphs=1)
        assert jury.draw(3, ("python",)) == generate(3, ("python",))
    finally:
        jury.close()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.long if k % 4 else ()) for k, n in enumerate(CORPUS)],
)
def test_a_program_that_once_failed(judge, name):
    found = judge.judge(Program.from_json(json.dumps(CORPUS[name])))
    assert not found.kind, found


def test_a_result_on_another_device_differs():
    ours = torch.empty(2, device="meta")
    verdict = form(ours, torch.empty(2), result=True)
    assert verdict is not None and verdict.kind == "device"
