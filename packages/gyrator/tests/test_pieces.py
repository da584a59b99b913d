"""One op that cannot be compiled costs that op: PyTorch runs it, what surrounds it is compiled."""

import copy
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention
import torch_faults
from attrs import evolve, field, frozen
from torch._higher_order_ops import map as map_op
from torch._higher_order_ops import scan, while_loop
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from gyrator.config import Config
from gyrator.graphs.pieces import by_pytorch, cut, glue
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_lowering.default import default_table
from gyrator_lowering.table import LoweringTable
from gyrator_runtime.warn import GyratorWarning

pytestmark = pytest.mark.usefixtures("lightly_optimised")
STEPS = 65  # more than are written out step by step


@frozen(eq=False)
class Compiled:
    """Compiles functions in a session that may leave ops to PyTorch."""

    session: Session
    records: list[GraphRecord] = field(factory=list)

    def check(
        self,
        fn: Callable[..., Any],
        *calls: Sequence[Any],
        left: Sequence[str] = (),
        dynamic: bool = False,
        kernels: int = 1,
    ) -> None:
        """Compare a function with eager on several lists of arguments: results, gradients, what is
        written in place; `left` names the ops that PyTorch runs, in no order."""
        torch._dynamo.reset()
        self.records.clear()
        compiled = torch.compile(fn, backend=self.session.backend, dynamic=dynamic)
        for args in calls:
            with warnings.catch_warnings():
                warnings.simplefilter("error", GyratorWarning)
                actual = _run(compiled, args)
            torch.testing.assert_close(actual, _run(fn, args), equal_nan=True)
        assert not any(r.fallback for r in self.records)
        externs = {e.target for r in self.records for e in r.externs if e.reason.startswith("GY-")}
        assert externs == set(left)
        assert sum(len(r.kernels) for r in self.records) >= kernels


def _run(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    args = copy.deepcopy(args)
    torch.manual_seed(5)
    results = fn(*args)
    several = results if isinstance(results, tuple) else (results,)
    expected = [r for r in several if isinstance(r, torch.Tensor) and r.requires_grad]
    if expected:
        sum(r.double().square().sum() for r in expected).backward()  # type: ignore[union-attr]
    return results, args, [a.grad for a in args if isinstance(a, torch.Tensor)]


@pytest.fixture
def wrapper() -> str:
    """The form of the host programs; tests may choose others."""
    return "python"


@pytest.fixture
def compiled(wrapper: str, config: Config) -> Iterator[Compiled]:
    """What compiles in a session that is not strict, without a cache."""
    records: list[GraphRecord] = []
    options = {"progress": False, "wrapper": wrapper, "cache": False}
    with Session(options=options, config=config, observer=records.append) as session:
        yield Compiled(session, records)


def scanned(x: torch.Tensor) -> torch.Tensor:
    last, seen = scan(lambda c, y: (c * 0.9 + y, c.sin()), x.new_zeros(x.shape[1]), x.cos() * 2)
    return (seen + last).sin()


def mapped(x: torch.Tensor) -> torch.Tensor:
    return map_op(lambda y, w: y.sin() * w, x * 2, x[0]).sin() + 1


def looped(x: torch.Tensor) -> torch.Tensor:
    def more(i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return i < 3

    i, y = while_loop(more, lambda i, y: (i + 1, y.sin() + 1), (torch.tensor(0), x * 2))
    return y * i


def branched(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x * 2,)) + 1


@pytest.mark.parametrize(
    ("fn", "dynamic"),
    [(scanned, True), (mapped, False), (mapped, True), (looped, True), (branched, True)],
)
def test_higher_order_ops(compiled: Compiled, fn: Callable[..., Any], dynamic: bool) -> None:
    calls = [
        (torch.randn(n, 4, dtype=torch.float64),)
        for n in ((STEPS, STEPS + 3) if dynamic else (STEPS,))
    ]
    compiled.check(fn, *calls, dynamic=dynamic)


@torch_faults.SCANS
@pytest.mark.parametrize("wrapper", ["cpp", "fx"])
def test_loops_in_each_host_language(compiled: Compiled) -> None:
    calls = [
        (torch.randn(n, 4, dtype=torch.float64, requires_grad=True),) for n in (STEPS, STEPS + 3)
    ]
    compiled.check(scanned, *calls, dynamic=True)


@pytest.mark.parametrize("fn", [pytest.param(scanned, marks=torch_faults.SCANS), mapped])
def test_gradients_of_higher_order_ops(compiled: Compiled, fn: Callable[..., Any]) -> None:
    compiled.check(fn, (torch.randn(STEPS, 4, dtype=torch.float64, requires_grad=True),))


SIZES = ((torch.randn(7, 5),), (torch.randn(11, 6),))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.arange(0, x.shape[0], 0.5) + 1,
        lambda x: torch.arange(0, x.shape[0] * 0.3, 0.1).exp().sum() + x,
        lambda x: torch.arange(0.5, x.shape[0], 2)[:, None] * x[0],
        lambda x: torch.arange(x.shape[0], 0, -0.7) * 2,
        lambda x: torch.arange(x.shape[1] / 3, x.shape[0] * 3, x.shape[1] / 3) * 2,
        lambda x: x.new_ones(int(x.shape[0] * 0.7), x.shape[1]) * 2 + x[0],
        lambda x: torch.arange(0, int(x.shape[0] * 0.7) / 3, 0.25) + 1,
    ],
)
def test_sizes_that_are_rounded_floats(compiled: Compiled, fn: Callable[..., Any]) -> None:
    compiled.check(fn, *SIZES, dynamic=True)


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
@pytest.mark.parametrize("convert", [int, math.floor])
def test_floats_that_are_no_integers_raise(wrapper: str, convert: Callable[..., int]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(4) * convert(x.sum().item())

    options = {"wrapper": wrapper, "strict": True, "progress": False}
    patch = torch._dynamo.config.patch(capture_scalar_outputs=True)
    with patch, Session(options=options) as session:
        call = torch.compile(fn, backend=session.backend)
        for number in (-2.5, 7.9, 2.0**62, -(2.0**62)):
            x = torch.tensor([number])
            assert torch.equal(call(x), fn(x))
        for number, kind in ((math.nan, ValueError), (math.inf, OverflowError)):
            for f in (call, fn):
                with pytest.raises(kind, match="to integer"):
                    f(torch.tensor([number]))
        for number in (-math.inf, 2.0**63, -1e30):
            with pytest.raises(OverflowError, match="to integer"):
                call(torch.tensor([number]))


@pytest.mark.parametrize("wrapper", ["cpp", "fx"])
def test_gradients_beside_a_rounded_size(compiled: Compiled) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        indices = torch.arange(0, x.shape[0], 0.5)
        return (indices[:, None] * x.sum(0)).sin()

    calls = [(torch.randn(n, 3, dtype=torch.float64, requires_grad=True),) for n in (7, 10)]
    compiled.check(fn, *calls, dynamic=True)


def through(dtype: torch.dtype) -> Callable[..., Any]:
    """Return a function that converts to a type and back."""
    return lambda x: (x + 1).abs().to(dtype).to(torch.float32).sin() * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu])
def test_types_that_programs_do_not_hold(
    compiled: Compiled, dtype: torch.dtype, dynamic: bool
) -> None:
    compiled.check(through(dtype), *SIZES, left=["aten._to_copy.default"], dynamic=dynamic)


@pytest.mark.parametrize(
    "dtype", [torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128]
)
def test_types_that_kernels_do_not_compute_on(compiled: Compiled, dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = (x.abs() + 9).to(dtype)
        return (y.sqrt().abs() if dtype.is_complex else y.to(torch.float32)).cos()

    compiled.check(fn, *SIZES, dynamic=True)


def test_tensors_that_programs_do_not_hold_pass_through(compiled: Compiled) -> None:
    narrow = torch.randn(3, 4).to(torch.float8_e8m0fnu)
    compiled.check(
        lambda x, n: (x.sin(), n, n.to(torch.float32) * x.sum()),
        (torch.randn(5), narrow),
        left=["aten._to_copy.default"],
    )


def test_a_device_without_a_target(compiled: Compiled) -> None:
    def fn(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = (m * 2).sum(0).expand(x.shape[0], -1)
        return rows.new_ones(x.shape, device="cpu") + x.sin(), x * 2

    left = [f"aten.{op}" for op in ("mul.Tensor", "sum.dim_IntList", "expand.default")]
    left.append("aten.new_ones.default")
    compiled.check(fn, (torch.randn(4, 3), torch.empty(2, 3, device="meta")), left=left)


def test_run_time_floats_among_inputs_and_arguments(compiled: Compiled) -> None:
    def fn(x: torch.Tensor, n: float, k: int) -> tuple[Any, ...]:
        y = torch.nn.functional.pad(x.sin() * n, (1, 1), value=n * 2)
        total = torch.nn.functional.gumbel_softmax(x * k, n, hard=False) * 0
        return y + total.sum() + k / 3, n * 2

    with torch._dynamo.config.patch(specialize_float=False):
        compiled.check(fn, (torch.randn(4), 1.5, 2), (torch.randn(5), 2.75, 3), dynamic=True)


def test_a_float_read_from_a_tensor_as_an_argument(compiled: Compiled) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        reach = x.abs().max().item()
        return torch.histc(x * 2, 4, -reach, reach).sin() + reach

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        calls = [(torch.randn(n, dtype=torch.float64),) for n in (9, 12)]
        compiled.check(fn, *calls, left=["aten.histc.default"], dynamic=True)


def test_sparse_gradients(compiled: Compiled) -> None:
    table = torch.nn.Embedding(9, 4, sparse=True)

    def fn(i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(i, w, sparse=True).sin() * 2

    weight = table.weight.detach().requires_grad_()
    left = ["aten._sparse_coo_tensor_with_dims_and_tensors.default"]
    compiled.check(fn, (torch.randint(9, (5,)), weight), left=left)


def test_a_write_that_follows(compiled: Compiled) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = x.t().sin()
        narrow = before.to(torch.float8_e8m0fnu).to(torch.float32)
        x.mul_(2).add_(narrow.t())
        y.copy_(x[0])
        return before + x.t() + torch.rand(4, 3) * 0

    args = (torch.randn(3, 4), torch.randn(4))
    compiled.check(fn, args, left=["aten._to_copy.default"])


@torch_faults.BRANCHES_THAT_WRITE
def test_branches_that_write_to_a_leaf(compiled: Compiled) -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sin()

    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.cond(x.sum() > 0, branch, branch, (x,)) + 1

    args = (torch.randn(3, 4, requires_grad=True),)
    compiled.check(fn, args, left=["auto_functionalized_v2"])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("wrapper", ["cpp", "fx"])
def test_pieces_in_each_host_language(compiled: Compiled, dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = x.t().sin()
        narrow = before.to(torch.float8_e8m0fnu).to(torch.float32)
        y.copy_(x[0] * 2)
        return (before + narrow + y[:, None]).cos(), narrow.sum(0), narrow

    calls = [(torch.randn(n, 4, requires_grad=True), torch.randn(4)) for n in (3, 6)]
    left = ["aten._to_copy.default"]
    compiled.check(fn, *calls[: 1 + dynamic], left=left, dynamic=dynamic, kernels=3)


def test_strict_raises_and_names_all(config: Config) -> None:
    torch._dynamo.reset()
    with Session(options={"strict": True, "progress": False}, config=config) as session:
        fn = torch.compile(through(torch.float8_e8m0fnu), backend=session.backend)
        with pytest.raises(Exception, match="GY-LOWER-002"):
            fn(torch.randn(3))


@torch_faults.SCANS
def test_a_second_session_compiles_nothing(config: Config) -> None:
    retained: list[list[GraphRecord]] = []
    x = torch.randn(STEPS, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        torch._dynamo.reset()
        records: list[GraphRecord] = []
        with Session(
            options={"progress": False}, config=config, observer=records.append
        ) as session:
            actual = torch.compile(scanned, backend=session.backend)(x)
            (gradient,) = torch.autograd.grad(actual.sum(), x)
        torch.testing.assert_close(actual, scanned(x))
        torch.testing.assert_close(gradient, torch.autograd.grad(scanned(x).sum(), x)[0])
        retained.append(records)
    first, second = retained
    assert [(r.phase, len(r.kernels)) for r in first] == [(r.phase, len(r.kernels)) for r in second]
    assert all(r.cached for r in second if r.kernels)


def test_a_library_that_was_not_wanted_is_told(config: Config) -> None:
    """Of a product that torch counts no operations of: its weight is packed as the processor
    likes it."""

    def fn(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return torch._weight_int4pack_mm_for_cpu(x, packed, 32, scales).sin()

    packed = torch._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (64, 64)).int(), 1)
    inputs = torch.randn(5, 64).bfloat16(), packed, torch.rand(2, 64, 2).bfloat16()
    options = {"extern_kernels": "none", "progress": False}
    for strict in (False, True):
        torch._dynamo.reset()
        with Session(options=options | {"strict": strict}, config=config) as session:
            compiled = torch.compile(fn, backend=session.backend)
            raised = pytest.raises(Exception, match="GY-LOWER-031")
            with raised if strict else pytest.warns(GyratorWarning, match="GY-LOWER-031"):
                compiled(*inputs)


def test_many_tensors_are_joined_by_one_call(compiled: Compiled) -> None:
    compiled.check(lambda x: torch.cat(list(x.sin().split(1)) * 20).cos(), (torch.randn(9, 3),))
    assert sum(r.launches for r in compiled.records) < 5


def test_inlining_is_an_option(config: Config) -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y.cumsum(0), y.cumsum(1)

    counts = []
    for inline in (True, False):
        torch._dynamo.reset()
        records: list[GraphRecord] = []
        options = {"inline": inline, "progress": False, "strict": True}
        with Session(options=options, config=config, observer=records.append) as session:
            x = torch.randn(6, 8)
            fn = torch.compile(both, backend=session.backend)
            torch.testing.assert_close(fn(x), both(x))
        counts.append([k.text for r in records for k in r.kernels])
    assert counts[0] != counts[1]


def _sines(kernel: Any) -> bool:
    return "op='sin'" in repr(kernel)


@frozen
class Particular:
    """C++ kernels, but for one op: refused when asked, or only once it is to be written."""

    late: bool
    ours: Any
    name: str = "particular"

    @property
    def content_hash(self) -> str:
        """Ours, and when it refuses."""
        return f"{self.late} {self.ours.content_hash}"

    def refuses(self, kernel: Any, target: Any) -> Diagnostic | None:
        """Refuse kernels that take a sine."""
        if self.late or not _sines(kernel):
            return self.ours.refuses(kernel, target)  # type: ignore[no-any-return]
        return Diagnostic("GY-CPP-002", "no sines")

    def emit(self, kernels: Any, facts: Any, origins: Any, target: Any) -> Any:
        """Write kernels without sines."""
        if any(map(_sines, kernels)):
            raise UnsupportedError.of("GY-CPP-002", "no sines")
        return self.ours.emit(kernels, facts, origins, target)


@pytest.mark.parametrize("late", [False, True])
def test_what_a_kernel_language_refuses_is_a_call(config: Config, late: bool) -> None:
    torch._dynamo.reset()
    records: list[GraphRecord] = []
    definition, target = Session(config=config).targets["cpu"]
    particular = evolve(definition, kernels=Particular(late, definition.kernels))
    with Session(
        options={"progress": False},
        config=config,
        targets={"cpu": (particular, target)},
        observer=records.append,
    ) as session:
        x = torch.randn(5, 6)
        fn = lambda x: (x.exp().sum(0) + x).sin().softmax(1)  # noqa: E731
        torch.testing.assert_close(torch.compile(fn, backend=session.backend)(x), fn(x))
    assert not any(r.fallback for r in records) and records[0].kernels
    reasons = {e.target: e.reason for r in records for e in r.externs}
    assert reasons["aten.sin.default"] == "GY-CPP-002: no sines"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("broken", [lambda b, x: x.nothing, lambda b, x: 3, lambda b, x: None])
def test_a_rule_that_fails(config: Config, broken: Any, strict: bool) -> None:
    rules = LoweringTable({**default_table().rules, "aten.sin.default": broken})
    with Session(
        options={"progress": False, "strict": strict, "cache": False}, config=config, rules=rules
    ) as session:
        torch._dynamo.reset()
        fn = torch.compile(lambda x: x.sin() + 1, backend=session.backend)
        x = torch.randn(4)
        if strict:
            with pytest.raises(
                Exception, match=r"GY-LOWER-030: the rule of aten\.sin\.default failed"
            ):
                fn(x)
        else:
            with pytest.warns(GyratorWarning, match="GY-LOWER-030"):
                torch.testing.assert_close(fn(x), x.sin() + 1)


def _same(b: Any, x: Any, *rest: Any, **options: Any) -> Any:
    return b.copy(x)


def _none(b: Any, x: Any, *rest: Any, **options: Any) -> Any:
    return x.nothing


def _first_of(b: Any, x: Any, *rest: Any, **options: Any) -> Any:
    return (b.copy(x),)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("op", "rule", "function", "message"),
    [
        ("aten.sum.dim_IntList", _same, lambda x: x.sum(1) + 1,
         r"it returned f32\[4, 6\], but the op returns f32\[4\]"),
        ("aten.gt.Scalar", _same, lambda x: (x > 1) | (x < 0),
         r"it returned f32\[4, 6\], but the op returns bool\[4, 6\]"),
        ("aten.sort.default", _same, lambda x: x.sort(1),
         r"it returned f32\[4, 6\] for 2 results"),
        ("aten.sort.default", _first_of, lambda x: x.sort(1),
         r"it returned \(f32\[4, 6\]\) for 2 results"),
        ("aten.sort.default", lambda b, x, *rest, **options: (b.copy(x), b.copy(x)),
         lambda x: x.sort(1), r"it returned f32\[4, 6\], but the op returns i64\[4, 6\]"),
        ("aten.gt.Scalar", _none, lambda x: x > 1, "AttributeError: .*'nothing'"),
    ],
)  # fmt: skip
def test_a_rule_of_the_user_is_blamed(
    config: Config, op: str, rule: Any, function: Any, message: str, strict: bool
) -> None:
    rules = LoweringTable({**default_table().rules, op: rule})
    options = {"progress": False, "strict": strict, "cache": False}
    with Session(options=options, config=config, rules=rules) as session:
        torch._dynamo.reset()
        run, x = torch.compile(function, backend=session.backend), torch.randn(4, 6)
        failed = rf"GY-LOWER-030: the rule of {op} failed: .*{message}, at {__file__}:\d+ in "
        if strict:
            with pytest.raises(Exception, match=rf"{failed}(.|\n)*which is not Gyrator's"):
                run(x)
        else:
            with pytest.warns(GyratorWarning, match=failed):
                torch.testing.assert_close(run(x), function(x))


def test_a_rule_may_return_any_shape_that_can_be_equal(config: Config) -> None:
    def doubled(b: Any, x: Any) -> Any:
        return b.pointwise(lambda ops, index: ops.get(x, index) * 2)

    rules = LoweringTable({**default_table().rules, "aten.sin.default": doubled})
    options = {"progress": False, "strict": True, "cache": False}
    with Session(options=options, config=config, rules=rules) as session:
        torch._dynamo.reset()
        run = torch.compile(lambda x: x.sin() + 1, backend=session.backend, dynamic=True)
        for shape in ((3, 4), (5, 7), (0, 2), (1, 1)):
            x = torch.randn(shape)
            torch.testing.assert_close(run(x), x * 2 + 1)


def test_numbers_that_are_converted_as_tensors(session: Session) -> None:
    flex = torch.nn.attention.flex_attention.flex_attention
    fn = lambda q: flex(q, q, q, score_mod=lambda s, b, h, i, j: s * 0.1)  # noqa: E731
    q = torch.randn(1, 2, 32, 16)
    actual = torch.compile(fn, backend=session.backend)(q)
    torch.testing.assert_close(actual, fn(q), rtol=1e-4, atol=1e-5)


def test_results_that_are_no_tensors(compiled: Compiled) -> None:
    store = FakeStore()
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=store)
    try:
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
        with warnings.catch_warnings():
            warnings.simplefilter("error", GyratorWarning)
            actual = torch.compile(
                lambda t: (t * 2).sin(), backend=compiled.session.backend, fullgraph=True
            )(x)
        torch.testing.assert_close(actual.to_local(), (x.to_local() * 2).sin())
        assert sum(len(r.kernels) for r in compiled.records) == 1
    finally:
        torch.distributed.destroy_process_group()


def everything(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    """Views of views, several results, sizes, numbers, random numbers and writes."""
    rows, columns = x.shape
    a, b = (x.t() @ y).split([columns - 1, 1])
    mean, deviation = torch.var_mean(x * rows, 1)
    noise = torch.rand(rows) + torch.rand(rows)
    values, indices = y.sort(0)
    z = torch.cat([a.t(), a.t()[1:] * deviation.sum()]).view(-1)
    before = x.select(0, 1) * 2
    x.mul_(2)
    after = x.select(0, 1) + before
    y.copy_(values.flip(0))
    return z, b.t(), mean * noise[:1], indices.t(), after, x.t() * 1, rows * columns, y.sum(0), None


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_pieces_are_the_graph(mode: str) -> None:
    args = torch.randn(5, 4), torch.randn(5, 3)
    gm = make_fx(everything, tracing_mode=mode)(*(a.clone() for a in args))
    names = [n.name for n in gm.graph.nodes if n.op == "call_function"]
    expected, written = everything_of(gm, args)
    for share in (0.0, 0.05, 0.2, 0.5, 0.9):
        for seed in range(3):
            rng = random.Random(f"{share} {seed}")
            refused = [n for n in names if rng.random() < share]
            pieces = cut(gm, refused)
            run = glue(gm, pieces, [by_pytorch(p) for p in pieces])
            actual, changed = everything_of(lambda *a, run=run: run(list(a)), args)
            torch.testing.assert_close((actual, changed), (expected, written), rtol=0, atol=0)


def everything_of(fn: Callable[..., Any], args: Sequence[torch.Tensor]) -> tuple[Any, Any]:
    """Call a function on copies; return its results, and what became of the copies."""
    torch.manual_seed(3)
    inputs = [a.clone() for a in args]
    results = fn(*inputs)
    return [r.clone() if isinstance(r, torch.Tensor) else r for r in results], inputs
