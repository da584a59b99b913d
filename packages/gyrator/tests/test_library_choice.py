"""Products that oneDNN computes where it was measured to be the better library."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from forked import run_forked
from runner_cache import with_runner
from torch import nn

from gyrator.autotune import layouts, matmuls
from gyrator.autotune import library as library_choice
from gyrator.autotune.kernels import Budget
from gyrator.autotune.library import LibraryChoice, Measure, Measured, available, probes
from gyrator.config import Config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator.targets import discover
from gyrator_lowering.fx_passes import NOTHING, ImageConvolution, Packed, Product
from gyrator_lowering.torch_bridge.kernel_ops import in_panels
from gyrator_runtime import profile
from gyrator_runtime.device import cpu_isa
from gyrator_runtime.profile import Timing

LINEAR = "mkldnn._linear_pointwise.default"
EVERY = frozenset(probes("cpu"))

pytestmark = pytest.mark.skipif(not available(), reason="this torch has no oneDNN")


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Session]:
    """Make sessions that share a cache of this test's own."""

    def make(records: Any = lambda record: None, machine: str = "", **options: Any) -> Session:
        torch._dynamo.reset()
        config = Config(with_runner(tmp_path / "cache"), 1 << 30, "")
        targets = {
            device: (evolve(one, machine=lambda: machine) if machine else one, target)
            for device, (one, target) in discover(config).items()
        }
        inputs = {"strict": True, "progress": False, "wrapper": "python"} | options
        return Session(options=inputs, config=config, targets=targets, observer=records)

    return make


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[Product]:
    """Let oneDNN be the better library whatever is measured, and list what is."""
    actual: list[Product] = []

    def quicker(_: Measure, product: Product) -> bool:
        actual.append(product)
        return True

    monkeypatch.setattr(Measure, "quicker", quicker)
    monkeypatch.setattr(Measure, "as_exact", lambda *_: True)
    return actual


def product(*sizes: int, copied: bool = False, turned: bool = False) -> Product:
    return Product("cpu", *sizes, copied=copied, turned=turned)


def test_a_product_needs_all_that_it_contains() -> None:
    better = Measured(EVERY, 0)
    assert better.takes(product(1024, 1024, 1024), exact=True)
    assert better.takes(product(4096, 64, 64), exact=True)
    for thin in (product(1, 4096, 4096), product(4096, 4096, 8), product(64, 64, 64)):
        assert not better.takes(thin, exact=True)
    assert not better.takes(product(999, 999, 999, copied=True, turned=True), exact=False)
    assert not Measured(frozenset(), 0).takes(product(1024, 1024, 1024), exact=False)
    wide = product(128, 256, 1024)
    lost = Measured(EVERY - {wide}, 0)
    assert lost.takes(product(128, 768, 768), exact=True)
    assert not lost.takes(product(1024, 1024, 1024), exact=True)
    assert lost.takes(product(1024, 1024, 1024, copied=True), exact=True)
    small = Measured(frozenset({product(384, 384, 512), wide}), 0)  # as with MKL limited to AVX2
    assert small.takes(product(1024, 1024, 1024), exact=True)
    assert small.takes(product(512, 256, 1024), exact=True)
    assert not small.takes(product(128, 256, 256), exact=True)


def test_deep_sums_stay_as_exact_as_atens() -> None:
    known = Measured(EVERY, 384)
    assert known.takes(product(512, 384, 512), exact=True)
    assert not known.takes(product(512, 768, 512), exact=True)
    assert known.takes(product(512, 768, 512), exact=False)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def _calls(records: list[GraphRecord]) -> Counter[str]:
    return Counter(e.target for record in records for e in record.externs)


def _step(call: Any, module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    y = call(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]


def _check(call: Any, module: nn.Module, x: torch.Tensor) -> None:
    got, want = _step(call, module, x), _step(module, module, x)
    module.double()
    exact = _step(module, module, x.double())
    module.float()
    for ours, expected, true in zip(got, want, exact, strict=True):
        assert ours.stride() == expected.stride()
        off, bound = ((r - true).norm() for r in (ours, expected))
        assert off <= 2 * bound + 1e-6 * true.norm()


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_training(opened: Any, products: list[Product], wrapper: str) -> None:
    records: list[GraphRecord] = []
    module = Layers()
    with opened(records.append, wrapper=wrapper) as session:
        compiled = torch.compile(module, backend=session.backend)
        _check(compiled, module, torch.randn(512, 256))
    assert _calls(records)[LINEAR] == 6 and len(products) == len(EVERY)


def test_sizes_that_change(opened: Any, products: list[Product]) -> None:
    records: list[GraphRecord] = []
    module = Layers()
    with opened(records.append) as session, torch.no_grad():
        compiled = torch.compile(module, backend=session.backend, dynamic=True)
        for rows in (4200, 5, 4300):
            x = torch.randn(rows, 256)
            torch.testing.assert_close(compiled(x), module(x))
    assert len(records) == 1 and _calls(records)[LINEAR] == 2


def test_measured_once_a_machine(opened: Any, products: list[Product]) -> None:
    x, y = torch.randn(512, 512), torch.randn(512, 512)

    def cached(machine: str, fn: Any) -> list[bool]:
        records: list[GraphRecord] = []
        with opened(records.append, machine) as session:
            torch.compile(fn, backend=session.backend)(x, y)
        assert _calls(records)[LINEAR] == 1
        return [r.cached for r in records]

    assert cached("one", torch.mm) == [False] and len(products) == len(EVERY)
    assert cached("one", torch.mm) == [True]
    assert cached("one", lambda x, y: x @ y + 1) == [False] and len(products) == len(EVERY)
    assert cached("two", torch.mm) == [False] and len(products) == 2 * len(EVERY)


def test_nothing_is_measured_for_small_products(opened: Any, products: list[Product]) -> None:
    x = torch.randn(64, 64)
    with opened() as session:
        torch.compile(torch.mm, backend=session.backend)(x, x)
        torch._C._set_mkldnn_enabled(False)
        try:
            torch.compile(lambda x: x @ x, backend=session.backend)(torch.randn(512, 512))
        finally:
            torch._C._set_mkldnn_enabled(True)
    assert not products


@pytest.fixture
def best(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the last of this list be the faster way to compute a product, the library at first."""
    ways = ["library"]
    monkeypatch.setattr(matmuls, "quickest", lambda *_: ways[-1])
    return ways


def test_max_autotune_measures_the_product_itself(
    opened: Any, products: list[Product], best: list[str]
) -> None:
    x = torch.randn(40, 33)
    for _ in range(2):
        records: list[GraphRecord] = []
        with opened(records.append, max_autotune=True, cache=False) as session:
            torch.compile(torch.mm, backend=session.backend)(x, x.t())
        assert _calls(records)[LINEAR] == 1
    assert products == [product(40, 33, 40, turned=True)]


@pytest.mark.skipif(cpu_isa() == "plain", reason="kernels have no vectors")
@pytest.mark.parametrize("onednn", [True, False])
def test_kernels_are_a_candidate_of_max_autotune(
    opened: Any, monkeypatch: pytest.MonkeyPatch, best: list[str], onednn: bool
) -> None:
    monkeypatch.setattr(Measure, "quicker", lambda *_: onednn)
    monkeypatch.setattr(Measure, "as_exact", lambda *_: True)
    x, w, b = torch.randn(40, 33), torch.randn(50, 33), torch.randn(50)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, w, b).relu()

    for way in ("none", "library"):
        best.append(way)
        records: list[GraphRecord] = []
        machine = f"{way} {onednn}"
        with opened(records.append, machine, max_autotune=True) as session:
            got = torch.compile(layer, backend=session.backend)(x)
        assert sum(_calls(records).values()) == (way == "library")
        assert _calls(records)[LINEAR] == (onednn and way == "library")
        torch.testing.assert_close(got, layer(x))


@pytest.mark.skipif(cpu_isa() == "plain", reason="kernels have no vectors")
def test_kernels_are_measured_with_the_tiles_of_their_rows(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are right for any sizes; products of as many rows, or of many, share one."""
    requested, compiled = [], library_choice.panel_product

    def panel_product(*args: Any) -> Any:
        requested.append(args[-1])
        return compiled(*args)

    def packed(_: Measure, product: Product, *rest: Any) -> str:
        multiply, width = rest[-1]
        x, out = torch.randn(product.rows, product.depth), torch.empty(product.rows, 96)
        weight = torch.randn(96, product.depth)
        multiply(x, in_panels(weight, width), out)
        torch.testing.assert_close(out, x @ weight.T, rtol=1e-4, atol=1e-4)
        return ""

    monkeypatch.setattr(library_choice, "panel_product", panel_product)
    monkeypatch.setattr(Measure, "packed", packed)
    with opened() as session:
        choice = LibraryChoice(session.engine(session.options).context, Budget(0))
        for rows, depth in ((64, 33), (64, 40), (80, 33), (600, 33), (300, 33)):
            product = Product("cpu", rows, depth, 96, turned=True)
            assert choice.packed(product, NOTHING, False) == Packed()
    assert requested == [64, 80, 126]


def test_nothing_is_decided_on_a_busy_machine(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen's calls and layouts are kept by the process, until another finds the machine idle."""
    disturbed = True

    def compare(runs: Any, *_: Any, **__: Any) -> dict[str, Timing]:
        """Let each way take half as long as the one before."""
        return {name: Timing(0.5**n, 1.0, disturbed) for n, name in enumerate(runs)}

    monkeypatch.setattr(library_choice, "compare", compare)
    monkeypatch.setattr(layouts, "compare", compare)
    monkeypatch.setattr(Measure, "as_exact", lambda *_: True)
    large = probes("cpu")[0]
    window = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    sizes = (1, 8, 16, 16), (8, 8, 3, 3)
    image = ImageConvolution("cpu", torch.float32, *sizes, False, window)

    def decisions(**options: Any) -> tuple[bool, Packed, bool]:
        with opened(**options) as session:
            choice = LibraryChoice(session.engine(session.options).context, Budget(0))
            packed = choice.packed(evolve(large, turned=True), NOTHING, True)
            return choice(large), packed, choice.channels_last([image], lambda: 0)

    for tuned in (False, True):
        assert decisions(max_autotune=tuned) == (False, Packed(), False)
    disturbed = False
    assert decisions() == (False, Packed(), False)
    library_choice._disturbed.cache_clear()  # as in another process
    first, packed, last = decisions()
    assert first and packed != Packed() and last
    disturbed = True
    assert decisions() == (first, packed, last)  # remembered


def test_a_busy_machine_is_measured_once(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Product] = []

    def disturbed(_: Measure, product: Product) -> None:
        measured.append(product)

    monkeypatch.setattr(Measure, "quicker", disturbed)
    with opened() as session:
        choice = LibraryChoice(session.engine(session.options).context, Budget(0))
        assert not any(choice(product) for product in probes("cpu"))
    assert len(measured) == 1


def test_measuring(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_choice, "_SIZES", ((32, 64, 64), (32, 64, 128)))
    monkeypatch.setattr(profile, "_interruptions", lambda: 0)
    drawn = torch.get_rng_state()
    with opened() as session, torch.autocast("cpu"):
        choice = LibraryChoice(session.engine(session.options).context, Budget(0))
        first = choice._of_machine("cpu")
        assert first == choice._of_machine("cpu") and first.quicker <= set(probes("cpu"))
    assert torch.equal(drawn, torch.get_rng_state())


def test_the_error_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    definition, target = discover(Config(Path(), 0, ""))["cpu"]
    measure = Measure(definition.device(target), torch.Generator().manual_seed(0))
    monkeypatch.setattr(library_choice, "_linear", lambda x, y: (x.double() @ y.double()).float())
    assert measure.depth() == 0
    monkeypatch.setattr(library_choice, "_linear", lambda x, y: x @ y * 1.000001)
    assert measure.depth() == 1


def test_choosing_what_torch_does_anyway_leaves_the_machine_as_it_was() -> None:
    asks = "import torch\nfrom gyrator.targets.cpu import machine\nunasked = machine()\n"
    message = "torch.set_float32_matmul_precision('highest')\nassert machine() == unasked\n"
    done = run_forked(asks + message)
    assert done.returncode == 0, done.stderr
