"""What is drawn verifies, and everything is drawn."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from gyrator_ir.body.nodes import Bind, Let, Load, Reduce, ReduceKind, Store, StoreMode
from gyrator_ir.body.ops import OPS
from gyrator_ir.expr import Sym
from gyrator_ir.loop.nodes import Extern, Reduction, Scan, Scatter, SizeInput, Sort
from gyrator_ir.loop.verify import verify
from gyrator_testing.feeds import feed, size_of
from gyrator_testing.interp.loop import run_loop
from gyrator_testing.strategies import ALL_OPS, KINDS, loop_programs

MANY = settings(
    max_examples=600,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


class Enough(Exception):
    """Ends the drawing: everything has come up."""


def test_programs_verify_and_run_and_are_varied():
    seen: Counter[str] = Counter()
    wanted = {
        "Pointwise", "Reduction", "Scan", "Sort", "Scatter", "Extern", "static", "dynamic",
        "masked load", "indirect load", "mutation", "atomic", "transposed input", "empty", "0-d",
        "wrap", "out", "bf16", "i64", "bool",
    }  # fmt: skip

    @MANY
    @given(loop_programs(ops=ALL_OPS))
    def draw(p):
        assert verify(p) is p
        run_loop(p, feed(p).inputs)
        seen.update(features(p))
        ops = sum(name.startswith("op ") for name in seen)
        if seen.total() > 2500 and wanted <= set(seen) and ops > 0.8 * len(OPS):
            raise Enough

    with pytest.raises(Enough):
        draw()


def features(p):
    inputs = {b.name for b in p.all_buffers} - {b.name for b in p.buffers}
    yield "dynamic" if any(isinstance(i, SizeInput) for i in p.inputs) else "static"
    for b in p.all_buffers:
        yield b.dtype.value
        if not b.shape:
            yield "0-d"
        if any(repr(n) == "0" for n in b.shape):
            yield "empty"
        if len(b.shape) > 1 and b.name in inputs and repr(b.strides[-1]) != "1":
            yield "transposed input"
    for op in p.operations:
        yield type(op).__name__
        if isinstance(op, Extern):
            yield "out" if op.out else "functional"
            continue
        for s in (*op.body, *getattr(op, "stores", ())):
            match s:
                case Load(mask=str()):
                    yield "masked load"
                case Load(index=index) if any(x.name.startswith("t") for x in index.free_symbols):
                    yield "indirect load"
                case Let(op=name):
                    yield f"op {name}"
                case Bind(wrap=True):
                    yield "wrap"
                case Store(mode=mode) if mode is not StoreMode.SET:
                    yield "atomic"
                case Store(buffer=b) if b in inputs:
                    yield "mutation"


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_can_be_chosen(kind):
    cls = {"reduction": Reduction, "scan": Scan, "sort": Sort, "scatter": Scatter}

    @settings(MANY, max_examples=20)
    @given(loop_programs(kinds=[kind], dynamic=False))
    def draw(p):
        verify(p)
        assert all(isinstance(op, cls.get(kind, object)) for op in p.operations)
        assert not any(isinstance(i, SizeInput) for i in p.inputs)

    draw()


def test_ops_can_be_chosen():
    @settings(MANY, max_examples=30)
    @given(loop_programs(ops=["add", "cast"], kinds=["pointwise"]))
    def draw(p):
        lets = [s for op in p.operations for s in op.body if isinstance(s, Let)]
        masks = {"lt"}  # of masked loads
        assert {s.op for s in lets} <= {"add", "cast"} | masks

    draw()


def test_sizes_obey_the_facts():
    from gyrator_ir.expr import ShapeFacts

    s = Sym("s0")
    assert size_of(s, ShapeFacts()) == 5
    assert size_of(s, ShapeFacts().with_hint(s, 9)) == 9
    assert size_of(s, ShapeFacts().with_range(s, 7, 12)) == 7
    assert size_of(s, ShapeFacts().with_range(s, 1, 3)) == 3
    assert size_of(s, ShapeFacts().with_divisible(s, 8)) == 8


def test_folds_are_drawn():
    kinds = set()

    @MANY
    @given(loop_programs(kinds=["reduction"]))
    def draw(p):
        kinds.update(op.reduce.kind for op in p.operations if isinstance(op.reduce, Reduce))
        if kinds == set(ReduceKind):
            raise Enough

    with pytest.raises(Enough):
        draw()
