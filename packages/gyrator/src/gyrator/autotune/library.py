"""The choice between torch's two CPU libraries for matrix products.

A few products are measured once per machine, and the results are stored. They determine the choice
for any product, so that equal graphs become equal programs. `max_autotune` measures each product of
constant sizes instead.

Where other processes keep the machine so busy that a measurement says nothing, ATen's calls are
used, and the next process measures again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import cycle
from itertools import product as pairs
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from attrs import evolve, field
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.autotune.integers import (
    can_multiply_bytes,
    convolution_calls,
    packed_bytes,
    product_call,
    sums_are_right,
)
from gyrator.autotune.kernels import Budget, remember, remembered
from gyrator.autotune.layouts import channels_last_faster, timed, undisturbed
from gyrator.autotune.panels import OWN_ROWS, PanelProduct, panel_product, tiled_rows
from gyrator.autotune.tiles import DIRECT, TILED, tiled_and_direct
from gyrator.engine.context import CompilerContext
from gyrator_ir.define import define, frozen
from gyrator_lowering.fx_passes import (
    NOTHING,
    Activation,
    Convolution,
    ImageConvolution,
    Packed,
    Product,
)
from gyrator_lowering.torch_bridge.kernel_ops import in_panels
from gyrator_runtime.cache import CacheKey, make_key
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.profile import compare

_FILE = "libraries.json"
_SIZES = ((384, 384, 512), (128, 256, 1024), (128, 256, 256), (32, 256, 256), (128, 64, 64))
"""Rows, depth and columns of the measured products. The first is the best case for oneDNN."""
_LAYOUTS = ((False, False), (False, True), (True, False))
"""Whether the left matrix is copied and the right one transposed: a layer's gradients and
result."""
_DEPTHS = (256, 384, 512, 768, 1024, 2048, 4096)
_ROWS = 128
"""Rows and columns of the products whose error is measured, large enough for a stable mean."""
_GAIN = 1.1
"""The minimum speedup of oneDNN."""
_CLEAR = 1.2
"""The factor by which a measured speedup must be above or below `_GAIN` to end the measurement."""
_PACKED_GAIN = 1.05
"""The minimum speedup of a packed weight layout over a simpler one."""
_WHOLE = "onednn, whole"
_KERNELS = "kernels"
_PACKINGS = MappingProxyType({
    "": Packed(), "aten": Packed("aten"), "onednn": Packed("onednn"), "mkl": Packed("mkl"),
    _WHOLE: Packed("onednn", True), _KERNELS: Packed("kernels"),
})  # fmt: skip
_PANEL_ROWS = 4
"""The minimum number of rows of a product of panels: kernels of fewer rows have no register tiles.
"""
_COLD_BYTES, _MAX_COPIES = 16 << 20, 16
"""The total size and maximum number of copies of a packed weight, to measure with cold caches: in a
model, other layers evict a weight between its uses."""
_SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0)
_STD = 3.0
"""Standard deviation of the inputs at which the error of a function is measured."""
_COUNT, _COLUMNS = 1 << 12, 32
_SAMPLES = 8
_PACKED_SAMPLES = 24
_SAMPLE_SECONDS = 3e-4
_ERROR_TOLERANCE = 1.05
"""The tolerated ratio of measured errors if both libraries round alike."""
_PARAMETERS = ("X", "W", "B", "attr", "scalars", "algorithm")


@frozen
class Measured:
    """The products for which oneDNN is the better library on one machine."""

    quicker: frozenset[Product]
    """The measured products that are faster in oneDNN."""
    depth: int
    """The depth up to which oneDNN's sums are as accurate as ATen's; 0 for any."""

    def takes(self, product: Product, exact: bool) -> bool:
        """Return whether to use oneDNN for a product: whether it was faster for each of the
        largest measured products that fit into this one, and, if `exact`, is as accurate."""
        if exact and self.depth and product.depth > self.depth:
            return False
        inside = parts(product)
        largest = [p for p in inside if not any(_inside(p, q) for q in inside if q != p)]
        return bool(largest) and self.quicker.issuperset(largest)


def probes(device: str) -> tuple[Product, ...]:
    """Return the products that are measured on a device."""
    return tuple(Product(device, *s, *layout) for s, layout in pairs(_SIZES, _LAYOUTS))


def parts(product: Product) -> tuple[Product, ...]:
    """Return the products of `probes` that are no larger than `product` in any dimension."""
    return tuple(p for p in probes(product.device) if _inside(p, product))


def _inside(part: Product, other: Product) -> bool:
    """Return whether a product is no larger than another of the same layout in any dimension."""
    sizes = zip(_sizes(part), _sizes(other), strict=True)
    if any(a > b for a, b in sizes):
        return False
    return part == evolve(other, rows=part.rows, depth=part.depth, columns=part.columns)


def _sizes(product: Product) -> tuple[int, int, int]:
    return product.rows, product.depth, product.columns


def available() -> bool:
    """Return whether this torch has the oneDNN op, and may use it for full-precision products."""
    op = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
    onednn: Any = torch.backends.mkldnn
    if op is None or not onednn.is_available() or not onednn.enabled:
        return False
    precision = onednn.matmul.fp32_precision  # "none" if unset
    named = tuple(a.name for a in op._schema.arguments)
    return precision in ("none", "ieee") and named == _PARAMETERS


@cache
def _disturbed(root: Path) -> dict[str, Measured | None]:
    """Return the answers of this process to what it could not measure, by key, for a cache folder.
    They hold for later graphs too, and for the other targets of a package."""
    return {}


@define
class LibraryChoice:
    """Chooses the library for products, and measures what the choice depends on."""

    context: CompilerContext
    budget: Budget
    """The time limit of `max_autotune`."""
    in_bytes: bool = True
    """Whether quantised tensors may be multiplied as integers."""
    _measured: dict[str, Measured] = field(factory=dict)
    _panels: dict[tuple[str, int], PanelProduct | None] = field(factory=dict)
    """The kernels of products of panels that were compiled, by device type and the rows for which
    they are tiled."""

    def __call__(self, product: Product) -> bool:
        """Return whether to use oneDNN for a product."""
        if not available():
            return False
        if self.context.options.max_autotune:
            return self._tuned(product)
        if not parts(product):
            return False
        if product.device not in self._measured:
            self._measured[product.device] = self._of_machine(product.device)
        return self._measured[product.device].takes(product, self._exact)

    def packed(self, product: Product, after: Activation, biased: bool) -> Packed:
        """Return the best way to compute a product with a packed weight and the ops after it.

        Each product is measured once per machine, with and without a bias.
        """
        question = (*_PACKINGS, _COLD_BYTES, OWN_ROWS, product, after, biased, self._exact)

        def measured(measure: Measure) -> str | None:
            kernel = self._panel_kernel(product)
            return measure.packed(product, after, biased, self._exact, kernel)

        best = self._lookup(question, product.device, measured)
        return _PACKINGS[best or ""]

    def _panel_kernel(self, product: Product) -> tuple[PanelProduct, int] | None:
        """Return a kernel that could compute a product, and the columns of its panels; None if
        there is none, or if it is for another processor than this one."""
        width = self.context.targets[product.device][1].heuristics.panel_columns
        if not width or product.columns % width or product.rows < _PANEL_ROWS:
            return None
        if product.dtype != torch.float32 or not self._is_here(product.device):
            return None
        tiled = product.device, tiled_rows(product.rows)
        if tiled not in self._panels:
            self._panels[tiled] = panel_product(self.context, product.device, width, tiled[1])
        kernel = self._panels[tiled]
        return None if kernel is None else (kernel, width)

    def allows(self, device: str, after: Activation) -> bool:
        """Return whether oneDNN may compute a function: unless numerics are `fast`, it must
        propagate NaN and be as accurate as ATen, which is measured once per machine."""
        if not self._exact:
            return True
        return bool(self._lookup(("after", after), device, lambda measure: measure.keeps(after)))

    def integers(self, call: Product | Convolution) -> bool:
        """Return whether a product or convolution of quantised tensors is faster in integers,
        which is measured once per machine, and exact on this machine."""
        if not self.in_bytes or not can_multiply_bytes():
            return False
        right = self._lookup("bytes", call.device, lambda _: sums_are_right())
        if not right:
            return False
        question = (_COLD_BYTES, call)
        return bool(self._lookup(question, call.device, lambda m: m.in_integers(call)))

    def _lookup(self, question: Any, device: str, measure_it: Callable[[Measure], Any]) -> Any:
        """Return the answer to a question about this machine, from the cache or by measuring; None
        if it could not be measured."""
        key = self._key(repr(question), device)
        disturbed = _disturbed(self.context.cache.root)
        if key.hex in disturbed:
            return None
        answer = remembered(self.context.cache, key)
        if answer is None:
            with self._measuring(device) as measure:
                answer = measure_it(measure)
            if answer is None:
                disturbed[key.hex] = None
            else:
                remember(self.context.cache, key, answer)
        return answer

    def channels_last(
        self, convolutions: Sequence[ImageConvolution], copied: Callable[[], int]
    ) -> bool:
        """Return whether a graph's images should be channels-last, if `copied` elements have to be
        copied for that.

        Each convolution is measured once per machine and number of threads.
        """

        def seconds(convolution: ImageConvolution) -> Any:
            question = ("layouts and copies", convolution, torch.get_num_threads())
            return self._lookup(
                question, convolution.device, lambda m: timed(convolution, m.device, m.generator)
            )

        return channels_last_faster(convolutions, seconds, copied)

    def in_tiles(self, convolution: ImageConvolution) -> bool:
        """Return whether a convolution of channels-last images by transformed tiles, with a known
        weight, is faster than oneDNN's, which is measured once per machine and number of
        threads."""
        if not self._is_here(convolution.device):
            return False

        def faster(measure: Measure) -> bool | None:
            runs = tiled_and_direct(self.context, convolution, measure.generator)
            seconds = runs and undisturbed(
                compare(runs, measure.device, samples=_SAMPLES, warmup=1, seconds=_SAMPLE_SECONDS)
            )
            if not seconds:
                return False if runs is None else None
            return seconds[DIRECT] >= _GAIN * seconds[TILED]

        question = ("tiles", convolution, torch.get_num_threads())
        return bool(self._lookup(question, convolution.device, faster))

    def _is_here(self, device: str) -> bool:
        """Return whether this machine runs what is compiled for a device's target."""
        definition, target = self.context.targets[device]
        here = definition.probe(self.context.config)
        return here is not None and here.arch == target.arch

    @property
    def _exact(self) -> bool:
        return self.context.options.numerics != "fast"

    def _key(self, question: str, device: str) -> CacheKey:
        definition, _ = self.context.targets[device]
        fields = {"what": question, "machine": definition.machine(), "torch": torch.__version__}
        return make_key("libraries", {name: text.encode() for name, text in fields.items()})

    def _of_machine(self, device: str) -> Measured:
        """Return the measurements of this machine, from the cache or by measuring."""
        products = probes(device)
        key = self._key(repr((products, _DEPTHS)), device)
        disturbed = _disturbed(self.context.cache.root)
        if (answer := disturbed.get(key.hex)) is not None:
            return answer
        entry = self.context.cache.get(key)
        if entry is not None:
            stored = json.loads(entry.read(_FILE))
            return Measured(frozenset(products[n] for n in stored["quicker"]), stored["depth"])
        results: dict[int, bool | None] = {}
        with self._measuring(device) as measure:
            for n, product in enumerate(products):
                layout = n % len(_LAYOUTS)
                if n == layout or results.get(layout):
                    results[n] = measure.quicker(product)
                    if results[n] is None:  # the machine is busy, and the rest would wait too
                        break
            quicker = [n for n, faster in results.items() if faster]
            depth = measure.depth() if quicker else 0
        measured = Measured(frozenset(products[n] for n in quicker), depth)
        if None in results.values():
            disturbed[key.hex] = measured
        else:
            text = json.dumps({"quicker": quicker, "depth": depth})
            self.context.cache.put(key, {_FILE: text.encode()})
        return measured

    def _tuned(self, product: Product) -> bool:
        """Measure this product, if the budget allows, and store the result."""
        key = self._key(repr((product, self._exact)), product.device)
        best = remembered(self.context.cache, key)
        for _ in self.budget.each([product] if best is None else []):
            with self._measuring(product.device) as measure:
                exact = not self._exact or measure.as_exact(product.depth)
                best = measure.quicker(product) if exact else False
            if best is not None:
                remember(self.context.cache, key, int(best))
        return bool(best)

    @contextmanager
    def _measuring(self, device: str) -> Iterator[Measure]:
        """Yield a `Measure` for a device, outside of torch's tracing modes."""
        definition, target = self.context.targets[device]
        # A package may be for processors with more instructions than this one has.
        here = definition.probe(self.context.config) or target
        autocast = torch._C._DisableAutocast()
        with _disable_current_modes(), torch.no_grad(), autocast:
            yield Measure(definition.device(here), torch.Generator(device).manual_seed(0))


@frozen
class Measure:
    """Measures products in both libraries. Answers are None where other processes disturb."""

    device: DeviceInterface
    generator: torch.Generator

    def quicker(self, product: Product) -> bool | None:
        """Return whether oneDNN is faster for a product."""
        x, y = self._matrices(product)
        out = torch.empty(product.rows, product.columns, device=product.device)
        runs = {"aten": lambda: torch.mm(x, y, out=out), "onednn": lambda: _linear(x, y)}

        def clear(seconds: Mapping[str, float]) -> bool:
            excess = seconds["aten"] / (_GAIN * seconds["onednn"])
            return not 1 / _CLEAR < excess < _CLEAR

        times = compare(
            runs, self.device, samples=_SAMPLES, warmup=1, seconds=_SAMPLE_SECONDS, decided=clear
        )
        seconds = undisturbed(times)
        return None if seconds is None else seconds["aten"] >= _GAIN * seconds["onednn"]

    def packed(
        self,
        product: Product,
        after: Activation,
        biased: bool,
        exact: bool,
        kernel: tuple[PanelProduct, int] | None = None,
    ) -> str | None:
        """Return the fastest of `_PACKINGS` for a product and the ops after it, the simpler one
        in doubt; empty for ATen's calls. If `exact`, only sufficiently accurate ones are
        considered. All have a bias if the product is `biased`; a call that fuses the ops after
        it always has one, since no kernel is left to add it. `kernel` multiplies panels of a number
        of columns; it adds a bias, and computes what follows, in the loop over its results."""
        weights = self._weights(product)
        runs = self._packings(product, weights, after, biased, exact)
        if kernel is not None:
            multiply, width = kernel
            x, _ = self._matrices(product)
            panels = cycle([in_panels(weight, width) for weight in weights])
            out = x.new_empty(product.rows, product.columns)

            def run() -> torch.Tensor:
                multiply(x, next(panels), out)
                return after.in_aten(out)

            runs[_KERNELS] = run
        seconds = self._times(runs)
        return None if seconds is None else _first_quick(seconds)

    def in_integers(self, call: Product | Convolution) -> bool | None:
        """Return whether a product or convolution is faster with quantised operands than with
        floats in any packing."""
        if isinstance(call, Convolution):
            times = self._times(convolution_calls(call, self.generator))
        else:
            floats = evolve(call, turned=True, dtype=torch.float32)
            weights = self._weights(floats)
            runs = self._packings(floats, weights, NOTHING, False, False)
            packed = [packed_bytes(weight, call.rows) for weight in weights]
            each = cycle([product_call(call, weight, self.generator) for weight in packed])
            times = self._times(runs | {"integers": lambda: next(each)()})
        if times is None:
            return None
        least = times.pop("integers")
        return min(times.values()) >= _PACKED_GAIN * least

    def _times(self, runs: Mapping[str, Callable[[], torch.Tensor]]) -> dict[str, float] | None:
        """Return the minimum seconds of each alternative."""
        times = compare(
            runs, self.device, samples=_PACKED_SAMPLES, warmup=1, seconds=_SAMPLE_SECONDS
        )
        return undisturbed(times)

    def _weights(self, product: Product) -> list[torch.Tensor]:
        """Return copies of a weight for a product, one row per output, that exceed the caches
        together."""
        each_bytes = product.dtype.itemsize * product.depth * product.columns
        count = max(1, min(_MAX_COPIES, _COLD_BYTES // each_bytes))
        _, y = self._matrices(product)
        return [y.t().clone() for _ in range(count)]

    def _packings(
        self,
        product: Product,
        weights: Sequence[torch.Tensor],
        after: Activation,
        biased: bool,
        exact: bool,
    ) -> dict[str, Callable[[], torch.Tensor]]:
        """Return the ways to compute a product with packed weights, and the ops after it."""
        x, _ = self._matrices(product)
        bias = self._random(1, product.columns, False)[0].to(product.dtype)
        addend = bias if biased else None
        out = x.new_empty(product.rows, product.columns)  # ATen's calls write into planned memory

        def each(
            pack: Callable[[torch.Tensor], Any], run: Callable[[Any, torch.Tensor], torch.Tensor]
        ) -> Callable[[], torch.Tensor]:
            packed = cycle([(pack(weight), weight) for weight in weights])
            return lambda: run(*next(packed))

        def in_aten(w: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            if addend is None:
                return after.in_aten(torch.mm(x, w, out=out))
            return after.in_aten(torch.addmm(addend, x, w, out=out))

        runs = {"": each(torch.t, in_aten)}
        if product.turned:
            runs["aten"] = each(lambda w: w.t().contiguous(), in_aten)
        if not exact or self.as_exact(product.depth, product.dtype):
            pack = torch.ops.mkldnn._reorder_linear_weight
            for_onednn = partial(pack, batch_size=product.rows)
            runs["onednn"] = each(for_onednn, lambda w, _: after.in_aten(_onednn(x, w, addend)))
            if after != NOTHING:
                runs[_WHOLE] = each(for_onednn, lambda w, _: _onednn(x, w, bias, after))
        if torch._C.has_mkl and product.dtype == torch.float32:
            mkl: Any = torch.ops.mkl
            rows = product.rows
            runs["mkl"] = each(
                lambda w: mkl._mkl_reorder_linear_weight(w, rows),
                lambda p, w: after.in_aten(mkl._mkl_linear(x, p, w, addend, rows)),
            )
        return runs

    def keeps(self, after: Activation) -> bool:
        """Return whether oneDNN produces NaN and infinities where ATen does, with no larger
        error elsewhere."""
        random = _STD * self._random(1, _COUNT, False)[0]
        x = torch.cat([torch.tensor(_SPECIAL, device=random.device), random])
        rows = torch.ones(_COLUMNS, 1, device=random.device)
        onednn, aten = _onednn(x[:, None], rows, None, after)[:, 0], after.in_aten(x)
        count = len(_SPECIAL)
        if not torch.allclose(onednn[:count], aten[:count], equal_nan=True):
            return False
        exact = after.in_aten(random.double())
        error, others = ((r[count:] - exact).square().mean() for r in (onednn, aten))
        return bool(error <= _ERROR_TOLERANCE**2 * others)

    def as_exact(self, depth: int, dtype: torch.dtype = torch.float32) -> bool:
        """Return whether sums of this many products are as accurate in oneDNN as in ATen."""
        depth = min(depth, _DEPTHS[-1])
        x, y = self._matrices(Product(self.device.type, _ROWS, depth, _ROWS, dtype=dtype))
        exact = x.double() @ y.double()
        onednn, aten = ((r - exact).square().mean() for r in (_linear(x, y), x @ y))
        return bool(onednn <= _ERROR_TOLERANCE**2 * aten)

    def depth(self) -> int:
        """Return the depth up to which sums are as accurate; 0 for any depth."""
        last = 0
        for depth in _DEPTHS:
            if not self.as_exact(depth):
                return last or 1
            last = depth
        return 0

    def _matrices(self, product: Product) -> tuple[torch.Tensor, torch.Tensor]:
        left = self._random(product.rows, product.depth, product.copied)
        right = self._random(product.depth, product.columns, product.turned)
        return left.to(product.dtype), right.to(product.dtype)

    def _random(self, rows: int, columns: int, turned: bool) -> torch.Tensor:
        shape = (columns, rows) if turned else (rows, columns)
        random = torch.randn(shape, generator=self.generator, device=self.generator.device)
        return random.t() if turned else random


def _first_quick(seconds: Mapping[str, float]) -> str:
    """Return the fastest of ordered alternatives, preferring earlier ones unless a later one
    gains enough."""
    best, *others = seconds
    for name in others:
        if seconds[best] >= _PACKED_GAIN * seconds[name]:
            best = name
    return best


def _linear(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _onednn(x, y.t(), None)


def _onednn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, after: Activation = NOTHING
) -> torch.Tensor:
    op = torch.ops.mkldnn._linear_pointwise.default
    result: torch.Tensor = op(x, weight, bias, *after.arguments)
    return result
