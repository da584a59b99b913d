"""`extern_kernels="none"`, and products that are measured against the library."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch_faults
from attrs import evolve
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from gyrator.autotune import kernels as autotune
from gyrator.autotune import matmuls as products
from gyrator.autotune.regions import regions
from gyrator.config import Config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator.targets import discover
from gyrator_ir.types import DType

pytestmark = pytest.mark.usefixtures("lightly_optimised")
Programs = dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]
Inputs = list[list[torch.Tensor]]

FUNCTIONS: Programs = {
    "layers": (lambda x, w, b, v: F.linear(F.gelu(F.linear(x, w, b)), v),
               ((9, 30), (40, 30), (40,), (20, 40))),
    "row": (lambda x, y: x @ y, ((1, 100), (100, 100))),
    "nothing_folded": (lambda x, y: x @ y + 1, ((5, 0), (0, 3))),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                  ((2, 2, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8))),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, 2, 1).relu(),
                    ((2, 3, 9, 8), (6, 3, 3, 3), (6,))),
}  # fmt: skip


def assert_as_exact(
    got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor, name: str = ""
) -> None:
    """Assert that a result has eager's form, and at most twice its distance from the exact one."""
    assert got.dtype is want.dtype and got.stride() == want.stride(), name
    assert got.shape == want.shape, name
    if exact.numel():
        off, bound = ((r.double() - exact).abs().max() for r in (got, want))
        assert off <= 2 * bound + 1e-6 * exact.abs().max(), name


def together(programs: Programs) -> Callable[[Inputs], list[torch.Tensor]]:
    """Return one program of all, which takes the inputs of each: one compile for many kernels."""
    functions = [fn for fn, _ in programs.values()]
    return lambda inputs: [fn(*given) for fn, given in zip(functions, inputs, strict=True)]


def assert_all_as_exact(programs: Programs, got: list[torch.Tensor], inputs: Inputs) -> None:
    """Assert what `assert_as_exact` does of the results of `together`."""
    run = together(programs)
    wide = [[g.double() for g in given] for given in inputs]
    for name, *values in zip(programs, got, run(inputs), run(wide), strict=True):
        assert_as_exact(*values, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_library_is_called(
    session: Session, records: list[GraphRecord], name: str, dtype: torch.dtype
) -> None:
    fn, shapes = FUNCTIONS[name]
    inputs = [torch.randn(s).to(dtype) for s in shapes]
    training = dtype is torch.float32 and name in ("layers", "convolution")

    def run(call: Callable[..., torch.Tensor], kind: torch.dtype) -> list[torch.Tensor]:
        args = [g.to(kind).requires_grad_(training) for g in inputs]
        y = call(*args)
        if not training:
            return [y]
        return [y, *torch.autograd.grad(y.sum(), args)]

    compiled = torch.compile(fn, backend=session.backend, options={"extern_kernels": "none"})
    results, eager = run(compiled, dtype), run(fn, dtype)
    for values in zip(results, eager, run(fn, torch.float64), strict=True):
        assert_as_exact(*values)
    assert records and not [c for r in records for c in r.externs]


TILES: Programs = {
    "scaled": (lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2.0),
               ((45,), (37, 70), (70, 45))),
    "batches": (lambda b, x, y: torch.baddbmm(b, x, y).relu(),
                ((3, 20, 1), (3, 20, 33), (3, 33, 24))),
    "broadcast": (torch.matmul, ((5, 1, 13, 21), (1, 3, 21, 19))),
    "turned": (lambda x, y: x.t() @ y.t(), ((40, 30), (50, 40))),
    "strided": (lambda x, y: x[:, ::2] @ y[1::2, 3:], ((30, 80), (80, 40))),
    "residual": (lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r,
                 ((2, 17, 48), (64, 48), (64,), (2, 17, 64))),
    "deep": (lambda x, w: F.linear(x, w), ((5, 1700), (20, 1700))),
    "threads": (lambda x, w: F.linear(x, w).tanh(), ((150, 130), (70, 130))),
}  # fmt: skip


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(torch.float64, marks=pytest.mark.long),
        torch.bfloat16,
        pytest.param(torch.float16, marks=pytest.mark.long),
    ],
)
def test_tiles_of_registers_are_as_exact_as_eager(
    session: Session, records: list[GraphRecord], dtype: torch.dtype
) -> None:
    inputs = [[torch.randn(s).to(dtype) for s in shapes] for _, shapes in TILES.values()]
    options = {"extern_kernels": "none"}
    compiled = torch.compile(together(TILES), backend=session.backend, options=options)
    assert_all_as_exact(TILES, compiled(inputs), inputs)
    (record,) = records
    assert not record.externs and len(record.kernels) >= len(TILES)


SMALL: Programs = {
    "pairs": (lambda x: torch.bmm(x, x.mT).flatten(1)[:, [1, 18, 74]], ((7, 9, 32),)),
    "columns": (torch.bmm, ((5, 16, 16), (5, 16, 16))),
    "turned": (lambda x, y: torch.bmm(x.mT, y.mT), ((5, 12, 7), (5, 9, 12))),
    "strided": (lambda x, y: torch.bmm(x[..., 1:], y[..., ::2]), ((6, 3, 9), (6, 8, 9))),
    "added": (lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2),
              ((4, 1, 9), (4, 5, 7), (4, 7, 9))),
    "rows": (lambda x, y: torch.bmm(x, y).relu(), ((40, 1, 16), (40, 16, 16))),
    "nothing_summed": (torch.bmm, ((3, 4, 0), (3, 0, 5))),
}  # fmt: skip
NO_BATCH: Programs = {"no_batch": (torch.bmm, ((0, 4, 6), (0, 6, 5)))}


@pytest.mark.parametrize("programs", [SMALL, NO_BATCH], ids=["small", "no_batch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_batches_of_small_products_are_as_exact_as_eager(
    session: Session, records: list[GraphRecord], programs: Programs, dtype: torch.dtype
) -> None:
    for batches in ((None,), (None, 2, 33)):  # the same program with other numbers of products
        torch._dynamo.reset()
        records.clear()
        compiled = torch.compile(together(programs), backend=session.backend)
        for batch in batches:
            inputs = [
                [torch.randn(batch or s[0], *s[1:]).to(dtype) for s in shapes]
                for _, shapes in programs.values()
            ]
            if len(batches) > 1 and batch is None:
                for g in itertools.chain(*inputs):
                    torch._dynamo.mark_dynamic(g, 0)
            assert_all_as_exact(programs, compiled(inputs), inputs)
        assert records and not [c for r in records for c in r.externs]
        assert len(records) == 1 or programs is NO_BATCH


WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "planes": ((2, 16, 9, 11), {"padding": 2}),
    "bias": ((3, 19, 7, 6), {"padding": (2, 1), "bias": True}),
    "channels_last": ((2, 20, 12, 9), {"padding": 2, "last": True, "bias": True}),
    "steps": ((1, 17, 14, 15), {"stride": (2, 3), "padding": 1, "dilation": (2, 1), "last": True}),
    "series": ((2, 16, 21), {"padding": 5, "window": (11,)}),
    "one_pixel": ((4, 16, 1, 1), {"padding": 2}),
    "every_other_channel": ((2, 16, 8, 8), {"padding": 2, "every": 2}),
}


def depthwise(
    shape: tuple[int, ...], batch: int | None, options: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the image, the weight and perhaps the bias of a depthwise convolution."""
    every, channels = options.get("every", 1), shape[1]
    x = torch.randn(shape[0] if batch is None else batch, channels * every, *shape[2:])
    if options.get("last"):
        x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(channels, 1, *options.get("window", (5, 5)))
    bias = [torch.randn(channels)] if options.get("bias") else []
    return [x[:, ::every], weight, *bias]


def convolved(inputs: Inputs) -> list[torch.Tensor]:
    """Return the convolutions of `WINDOWS`."""
    results = []
    for (shape, options), (x, weight, *bias) in zip(WINDOWS.values(), inputs, strict=True):
        numbers = {n: options[n] for n in ("stride", "padding", "dilation") if n in options}
        call = F.conv1d if len(shape) == 3 else F.conv2d
        results.append(call(x, weight, *bias, groups=shape[1], **numbers))
    return results


def convolution_gradients(
    inputs: Inputs,
    factors: list[torch.Tensor],
    changes: bool,
    run: Callable[[Inputs], list[torch.Tensor]],
    dtype: torch.dtype,
    kind: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients, computed as `kind`, of a sum of products with `factors`, of which all
    are rounded to `dtype`; `changes` says that the number of images does."""
    given = [[t.to(dtype).to(kind).requires_grad_() for t in each] for each in inputs]
    for x, *_ in given if changes else ():
        torch._dynamo.maybe_mark_dynamic(x, 0)
    leaves = [t for each in given for t in each]
    return torch.autograd.grad(run(given), leaves, [f.to(dtype).to(kind) for f in factors])


@pytest.mark.parametrize(
    ("dtype", "batches"),
    [
        (torch.float32, (None,)),
        (torch.float64, (None,)),
        (torch.bfloat16, (None,)),
        (torch.float16, (None,)),
        (torch.float32, (2, 3, 0)),
    ],
)
def test_gradients_of_depthwise_weights_are_as_exact_as_eager(
    session: Session,
    records: list[GraphRecord],
    dtype: torch.dtype,
    batches: tuple[int | None, ...],
) -> None:
    compiled = torch.compile(convolved, backend=session.backend)
    for batch in batches:
        inputs = [depthwise(shape, batch, options) for shape, options in WINDOWS.values()]
        factors = [torch.randn_like(r) for r in convolved(inputs)]
        gradients = partial(convolution_gradients, inputs, factors, batch is not None)
        got, eager = gradients(compiled, dtype, dtype), gradients(convolved, dtype, dtype)
        exact = gradients(convolved, dtype, torch.float64)
        for values in zip(got, eager, exact, strict=True):
            assert values[0].shape == values[1].shape
            # Fake kernels give the one channel of a filter another stride than some libraries do.
            assert_as_exact(*(v.flatten() for v in values))
    nodes = [n for r in records for k in r.kernels for n in k.nodes]
    assert sum("convolution_backward" in str(n) for n in nodes) >= len(WINDOWS)


def test_bytes_are_summed_exactly(session: Session) -> None:
    x, y = torch.randint(-128, 128, (33, 72)).char(), torch.randint(-128, 128, (72, 40)).char()
    compiled = torch.compile(
        torch._int_mm, backend=session.backend, options={"extern_kernels": "none"}
    )
    assert torch.equal(compiled(x, y), x.int() @ y.int())


INTEGERS: Programs = {
    "matrices": (lambda x, y: x @ y, ((9, 20), (20, 11))),
    "tiles": (lambda x, y: x @ y, ((40, 70), (70, 50))),
    "turned": (lambda x, y: x.t() @ y.t(), ((20, 9), (11, 20))),
    "steps": (lambda x, y: x[::2, 1:] @ y[:, ::3], ((18, 21), (20, 33))),
    "batches": (lambda x, y: torch.baddbmm(y[:, :5], x, y, alpha=3), ((3, 5, 9), (3, 9, 12))),
    "added": (lambda x, y: torch.addmm(y[0], x, y, beta=2), ((9, 20), (20, 11))),
    "vector": (lambda x, y: x @ y, ((9, 20), (20,))),
    "vectors": (lambda x, y: x @ y, ((20,), (20,))),
    "nothing_summed": (lambda x, y: x @ y, ((5, 0), (0, 3))),
    "no_rows": (lambda x, y: x @ y, ((0, 7), (7, 3))),
}
ONE: Programs = {"one": (lambda x, y: x @ y, ((1, 1), (1, 1)))}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("programs", [INTEGERS, ONE], ids=["sums", "one"])
def test_products_of_integers_are_eagers(
    session: Session,
    records: list[GraphRecord],
    programs: Programs,
    dtype: torch.dtype,
    dynamic: bool,
) -> None:
    limits = torch.iinfo(dtype)
    inputs = [
        [torch.randint(limits.min, limits.max, s, dtype=dtype) for s in shapes]
        for _, shapes in programs.values()
    ]
    run = together(programs)
    compiled = torch.compile(run, backend=session.backend, dynamic=dynamic)
    for name, got, want in zip(programs, compiled(inputs), run(inputs), strict=True):
        assert torch.equal(got, want) and got.stride() == want.stride(), name
    if dtype is torch.int64 and programs is INTEGERS:  # of one number a library makes no sum
        assert records and not [c for r in records for c in r.externs]


def test_products_of_two_types_raise_in_compiled_code_too(session: Session) -> None:
    x, y = torch.ones(9, 9, dtype=torch.int64), torch.ones(9, 9, dtype=torch.int32)
    for call in (torch.mm, torch.compile(torch.mm, backend=session.backend)):
        with pytest.raises(RuntimeError, match="dtype"):
            call(x, y)


@pytest.mark.parametrize("dynamic", [False, True])
def test_products_of_bytes_are_eagers(session: Session, dynamic: bool) -> None:
    compiled = torch.compile(torch._int_mm, backend=session.backend, dynamic=dynamic)
    for left, right in (((33, 72), (72, 40)), ((17, 8), (8, 8)), ((20, 0), (0, 8))):
        x, y = (torch.randint(-128, 128, s).char() for s in (left, right))
        assert torch.equal(compiled(x, y), torch._int_mm(x, y))
        assert torch.equal(compiled(x, y.t().clone().t()), torch._int_mm(x, y))


SCALES = {
    "one": ((), (1,), F.ScalingType.TensorWise),
    "rows": ((17, 1), (1, 16), F.ScalingType.RowWise),
}


@torch_faults.SCALED
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("name", SCALES)
def test_products_of_scaled_bytes(
    session: Session, records: list[GraphRecord], name: str, kind: torch.dtype
) -> None:
    *shapes, recipe = SCALES[name]
    p, q = (torch.rand(s) for s in shapes)
    x, y = torch.randn(17, 32).to(kind), torch.randn(16, 32).to(kind).t()
    bias = torch.randn(16).bfloat16()

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        out = torch.bfloat16
        first = torch._scaled_mm(x, y, p, q, bias=bias, out_dtype=out)
        return first, F.scaled_mm(x, y, p, recipe, q, recipe, output_dtype=out)

    exact = (x.double() @ y.double()) * p * q
    compiled = torch.compile(fn, backend=session.backend, options={"extern_kernels": "none"})
    for got, want in zip(compiled(x, y), (exact + bias, exact), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-7)
    assert records and not [c for r in records for c in r.externs]


def test_dynamic_sizes(session: Session, records: list[GraphRecord]) -> None:
    compiled = torch.compile(
        lambda x, y, b: torch.addmm(b, x, y),
        backend=session.backend, options={"extern_kernels": "none"}, dynamic=True,
    )  # fmt: skip
    for m, n, k in ((5, 6, 7), (13, 4, 9), (300, 410, 770), (2, 33, 500)):
        x, y, b = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        exact = torch.addmm(b.double(), x.double(), y.double())
        results = compiled(x, y, b), torch.addmm(b, x, y)
        off, bound = ((r.double() - exact).abs().max() for r in results)
        assert off <= 2 * bound + 1e-6 * exact.abs().max()
    assert len(records) == 1 and not records[0].externs


def _tuned(config: Config, observer: Callable[[GraphRecord], Any]) -> Session:
    """Return a session that measures, on a CPU that is said to have matrix units."""
    targets = {}
    for device, (definition, target) in discover(config).items():
        able = evolve(target.capabilities, matrix_units=frozenset({DType.F32}))
        one = evolve(definition, variants=lambda target: (target,))
        targets[device] = one, evolve(target, capabilities=able)
    options = {"strict": True, "progress": False, "max_autotune": True}
    return Session(options=options, config=config, targets=targets, observer=observer)


@pytest.mark.parametrize("best", ["library", "none"])
def test_the_quicker_is_taken_and_remembered(
    config: Config, monkeypatch: pytest.MonkeyPatch, best: str
) -> None:
    measured: list[str] = []

    def quickest(runs: dict[str, products.CompiledRegion], *_: object) -> str:
        measured.extend(str(n.target) for n in runs["none"].region.nodes)
        return best

    monkeypatch.setattr(products, "quickest", quickest)
    side = 12 if best == "none" else 13
    x, y = torch.randn(4, side), torch.randn(side, side)
    for extra in (1.0, 2.0):  # two graphs with one product, and what follows it
        records: list[GraphRecord] = []
        torch._dynamo.reset()
        with _tuned(config, records.append) as session:
            fn = torch.compile(lambda a, b, e=extra: (a * e) @ b + 3, backend=session.backend)
            torch.testing.assert_close(fn(x, y), (x * extra) @ y + 3)
        assert bool(records[0].externs) == (best == "library")
    assert measured == ["aten.mm.default", "aten.add.Tensor"]


def test_products_are_run_to_be_measured(config: Config) -> None:
    actual: list[GraphRecord] = []
    x, y = torch.randn(3, 11), torch.randn(11, 11)
    torch._dynamo.reset()
    with _tuned(config, actual.append) as session:
        fn = torch.compile(lambda a, b: torch.addmm(b[0], a, b), backend=session.backend)
        torch.testing.assert_close(fn(x, y), torch.addmm(y[0], x, y))
    assert len(actual) == 1


def test_operands_that_repeat_elements_are_measured(config: Config) -> None:
    actual: list[GraphRecord] = []
    x, y, rows = torch.randn(3, 11), torch.randn(11, 11), torch.randn(3, 1).expand(3, 11)
    torch._dynamo.reset()
    with _tuned(config, actual.append) as session:
        fn = torch.compile(lambda a, b, r: (a @ b) * r, backend=session.backend)
        torch.testing.assert_close(fn(x, y, rows), (x @ y) * rows)
    assert len(actual) == 1


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float8_e4m3fn, torch.complex64, torch.int64, torch.bool]
)
def test_what_is_measured_has_the_layout_of_the_arguments(dtype: torch.dtype) -> None:
    whole = torch.empty(40, dtype=dtype)
    for x in (whole[:4].expand(3, 4), whole.as_strided((5, 4), (2, 3), 1), whole[:0], whole[3]):
        like = products.tensor_like(x)
        assert (like.shape, like.stride(), like.dtype) == (x.shape, x.stride(), dtype)
        assert like.to(torch.complex128).abs().le(1).all()


def _is_mm(node: torch.fx.Node) -> bool:
    return str(node.target) == "aten.mm.default"


def test_products_are_measured_with_all_that_may_be_fused_to_them() -> None:
    def block(x: Any, gate: Any, up: Any, down: Any) -> tuple[Any, Any]:
        y = F.silu(x @ gate) * (x @ up)
        z = x + y @ down
        values, indices = z.max(-1)
        return z, values + indices

    with FakeTensorMode():
        sizes = ((4, 6), (6, 8), (6, 8), (8, 6))
        graph = make_fx(block)(*(torch.empty(s) for s in sizes)).graph

    first, last = regions(graph, _is_mm, _is_mm)
    assert [len(r.products) for r in (first, last)] == [2, 1]
    assert [str(n.target) for n in first.results] == ["aten.mul.Tensor"]
    assert sum(map(_is_mm, last.nodes)) == 1 and len(last.results) == 2
    assert {str(n.target) for n in last.nodes} >= {"aten.add.Tensor", "aten.max.dim"}
    assert first.signature() != last.signature()

    x, gate, up = torch.randn(4, 6), torch.randn(6, 8), torch.randn(6, 8)
    assert [n.name for n in first.inputs] == ["x_1", "gate_1", "up_1"]
    torch.testing.assert_close(first.graph_module()(x, gate, up), (F.silu(x @ gate) * (x @ up),))


def test_sizes_that_change_and_draws_are_not_measured() -> None:
    def drawn(x: Any, y: Any) -> Any:
        return (x @ y).bernoulli(0.5).relu()

    for mode, function in (("symbolic", lambda x, y: (x @ y).relu()), ("real", drawn)):
        graph = make_fx(function, tracing_mode=mode)(torch.empty(3, 4), torch.empty(4, 5)).graph
        (actual,) = regions(graph, _is_mm, _is_mm)
        assert [str(n.target) for n in actual.nodes] == ["aten.mm.default"]


def test_a_budget_ends_before_what_would_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(autotune.time, "monotonic", lambda: now[0])
    budget = autotune.Budget(10)
    now[0] += 100.0  # no part of what is measured
    done = []
    for item, takes in budget.each(enumerate((3.0, 4.0, 1.0, 1.0))):
        now[0] += takes
        done.append(item)
    assert done == [0, 1] and budget.left == 3.0  # the next could take 4
    assert not list(budget.each([1], expected=3.5))
    assert len(list(autotune.Budget(0).each(range(5), expected=9.0))) == 5


class _Slow:
    """Builds nothing in time."""

    identity = b"slow"

    def __init__(self, now: list[float]) -> None:
        self.now = now
        self.waited: list[float] = []

    def submit(self, units: object) -> "_Slow":
        return self

    def within(self, seconds: float) -> dict[str, int]:
        self.waited.append(seconds)
        self.now[0] += seconds
        return {}

    def only(self, symbols: object) -> object:
        raise AssertionError("nothing of it was chosen")

    libraries = addresses = only


def test_a_build_that_takes_too_long_is_not_waited_for(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(autotune.time, "monotonic", lambda: now[0])
    slow = _Slow(now)
    (definition, target) = discover(config)["cpu"]
    other = evolve(target, heuristics=evolve(target.heuristics, unit_statements=16))
    one = evolve(
        definition,
        variants=lambda target: (target, other),
        loader=lambda t, context: slow if t == other else definition.loader(t, context),
    )
    options = {"strict": True, "progress": False, "max_autotune": True, "autotune_seconds": 10}
    x = torch.randn(100)
    for _ in range(2):  # the second time from the cache
        torch._dynamo.reset()
        with Session(options=options, config=config, targets={"cpu": (one, target)}) as session:
            call = torch.compile(lambda x: x.sin() + 1, backend=session.backend)
            torch.testing.assert_close(call(x), x.sin() + 1)
    assert slow.waited == [5.0]


def test_tf32_is_for_those_who_allow_it(config: Config) -> None:
    (definition, target) = discover(config)["cpu"]
    able = evolve(target, capabilities=evolve(target.capabilities, tf32=True))
    with Session(config=config, targets={"cpu": (definition, able)}) as session:
        context = session.engine(session.options).context
        exact = context.identity
        assert not context.by_device["cpu"].capabilities.tf32
        torch.set_float32_matmul_precision("high")
        try:
            assert context.by_device["cpu"].capabilities.tf32 and context.identity != exact
        finally:
            torch.set_float32_matmul_precision("highest")
