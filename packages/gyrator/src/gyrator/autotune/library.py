"""Which of torch's two libraries for products on a CPU is the quicker one for which product.

A few products are measured once a machine, and the results are stored. From them follows the choice
for any product, so that equal graphs become equal programs. `max_autotune` measures each product
of constant sizes instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from itertools import product as pairs
from types import MappingProxyType
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.autotune.integers import (
    can_multiply_bytes,
    convolution_calls,
    packed_bytes,
    product_call,
    sums_are_right,
)
from gyrator.autotune.kernels import Budget, remember, remembered
from gyrator.autotune.layouts import points_quicker, timed
from gyrator.engine.context import CompilerContext
from gyrator_lowering.fx_passes import (
    NOTHING,
    Activation,
    Convolution,
    ImageConvolution,
    Packed,
    Product,
)
from gyrator_runtime.cache import CacheKey, make_key
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.profile import compare

_FILE = "libraries.json"
_SIZES = ((384, 384, 512), (128, 256, 1024), (128, 256, 256), (32, 256, 256), (128, 64, 64))
"""Rows, depth and columns of what is measured. The first is the best that oneDNN can hope for."""
_LAYOUTS = ((False, False), (False, True), (True, False))
"""Whether the left matrix is copied and the right one turned: a layer's gradients and result."""
_DEPTHS = (256, 384, 512, 768, 1024, 2048, 4096)
_ROWS = 128
"""Rows and columns of the products of which the error is measured: enough for its mean."""
_GAIN = 1.1
"""How much quicker oneDNN must be to be taken."""
_PACKED_GAIN = 1.05
"""How much quicker a layout of a weight must make a product than a simpler one."""
_WHOLE = "onednn, whole"
_PACKINGS = MappingProxyType({
    "": Packed(), "aten": Packed("aten"), "onednn": Packed("onednn"), "mkl": Packed("mkl"),
    _WHOLE: Packed("onednn", True),
})  # fmt: skip
_COLD_BYTES, _MOST_COPIES = 16 << 20, 16
"""Of a packed weight there are so many copies: in a model, the layers before have filled the
caches with theirs."""
_SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0)
_SPREAD = 3.0
"""Of the numbers at which the error of a function is measured."""
_COUNT, _COLUMNS = 1 << 12, 32
_SAMPLES = 8
_PACKED_SAMPLES = 24
_SAMPLE_SECONDS = 3e-4
_WORSE = 1.05
"""How much larger an error may be measured to be where both round alike."""
_PARAMETERS = ("X", "W", "B", "attr", "scalars", "algorithm")


@frozen
class Measured:
    """What oneDNN was found to be better at on one machine."""

    quicker: frozenset[Product]
    """Products among those measured."""
    depth: int
    """Up to this depth its sums are as exact as ATen's; 0 for any."""

    def takes(self, product: Product, exact: bool) -> bool:
        """Whether a product goes to oneDNN: whether it was quicker at each of the largest products
        measured that this one contains, and its sums, if that matters, are as exact."""
        if exact and self.depth and product.depth > self.depth:
            return False
        inside = parts(product)
        largest = [p for p in inside if not any(_inside(p, q) for q in inside if q != p)]
        return bool(largest) and self.quicker.issuperset(largest)


def probes(device: str) -> tuple[Product, ...]:
    """Return the products that are measured on a device."""
    return tuple(Product(device, *s, *layout) for s, layout in pairs(_SIZES, _LAYOUTS))


def parts(product: Product) -> tuple[Product, ...]:
    """Return those products of `probes` that are no larger than one in any direction."""
    return tuple(p for p in probes(product.device) if _inside(p, product))


def _inside(part: Product, whole: Product) -> bool:
    """Whether a product is no larger than another of the same layout in any direction."""
    alike = part == evolve(whole, rows=part.rows, depth=part.depth, columns=part.columns)
    sizes = zip(_sizes(part), _sizes(whole), strict=True)
    return alike and all(a <= b for a, b in sizes)


def _sizes(product: Product) -> tuple[int, int, int]:
    return product.rows, product.depth, product.columns


def available() -> bool:
    """Whether this torch has the op, and may use it, for exact products."""
    op = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
    onednn: Any = torch.backends.mkldnn
    if op is None or not onednn.is_available() or not onednn.enabled:
        return False
    precision = onednn.matmul.fp32_precision  # "none" where nobody has chosen
    named = tuple(a.name for a in op._schema.arguments)
    return precision in ("none", "ieee") and named == _PARAMETERS


@define
class LibraryChoice:
    """Tells whether oneDNN is the better library for a product; measures what it must know."""

    setting: CompilerContext
    budget: Budget
    """What `max_autotune` may take."""
    _known: dict[str, Measured] = field(factory=dict)

    def __call__(self, product: Product) -> bool:
        """Return whether a product goes to oneDNN."""
        if not available():
            return False
        if self.setting.options.max_autotune:
            return self._tuned(product)
        if not parts(product):
            return False
        if product.device not in self._known:
            self._known[product.device] = self._of_machine(product.device)
        return self._known[product.device].takes(product, self._exact)

    def packed(self, product: Product, after: Activation, biased: bool) -> Packed:
        """Return how a product with a packed weight, and what follows it, is computed best.

        What is quickest is measured for each product, with a bias and without, once a machine.
        """
        asked = (*_PACKINGS, _COLD_BYTES, product, after, biased, self._exact)
        best = self._found(
            asked, product.device, lambda m: m.packed(product, after, biased, self._exact)
        )
        return _PACKINGS[best]

    def allows(self, device: str, after: Activation) -> bool:
        """Return whether oneDNN may compute a function: unless results are to be `fast`, it must
        keep NaN and be as exact as ATen, which is measured once a machine."""
        if not self._exact:
            return True
        return bool(self._found(("after", after), device, lambda measure: measure.keeps(after)))

    def integers(self, call: Product | Convolution) -> bool:
        """Return whether a product or a convolution of quantised tensors is quicker in integers,
        which is measured for each, once a machine, and whether their sums are right there."""
        if not can_multiply_bytes():
            return False
        right = self._found("bytes", call.device, lambda _: sums_are_right())
        if not right:
            return False
        asked = (_COLD_BYTES, call)
        return bool(self._found(asked, call.device, lambda m: m.in_integers(call)))

    def _found(self, what: Any, device: str, ask: Callable[[Measure], Any]) -> Any:
        """Return what was found out on this machine, now or before."""
        key = self._key(repr(what), device)
        found = remembered(self.setting.cache, key)
        if found is None:
            with self._alone(device) as measure:
                found = ask(measure)
            remember(self.setting.cache, key, found)
        return found

    def by_points(self, convolutions: Sequence[ImageConvolution]) -> bool:
        """Return whether the images of convolutions are to lie by points; each convolution is
        measured once a machine and number of threads."""

        def seconds(one: ImageConvolution) -> Any:
            asked = (one, torch.get_num_threads())
            return self._found(asked, one.device, lambda m: timed(one, m.device, m.generator))

        return points_quicker(convolutions, seconds)

    @property
    def _exact(self) -> bool:
        return self.setting.options.numerics != "fast"

    def _key(self, what: str, device: str) -> CacheKey:
        definition, _ = self.setting.targets[device]
        fields = {"what": what, "machine": definition.machine(), "torch": torch.__version__}
        return make_key("libraries", {name: text.encode() for name, text in fields.items()})

    def _of_machine(self, device: str) -> Measured:
        """Return what was measured on this machine, now or before."""
        found = probes(device)
        key = self._key(repr((found, _DEPTHS)), device)
        entry = self.setting.cache.get(key)
        if entry is not None:
            stored = json.loads(entry.read(_FILE))
            return Measured(frozenset(found[n] for n in stored["quicker"]), stored["depth"])
        with self._alone(device) as measure:
            best = [n for n, one in enumerate(found[: len(_LAYOUTS)]) if measure.quicker(one)]
            others = [n for n in range(len(_LAYOUTS), len(found)) if n % len(_LAYOUTS) in best]
            quicker = best + [n for n in others if measure.quicker(found[n])]
            depth = measure.depth() if quicker else 0
        text = json.dumps({"quicker": quicker, "depth": depth})
        self.setting.cache.put(key, {_FILE: text.encode()})
        return Measured(frozenset(found[n] for n in quicker), depth)

    def _tuned(self, product: Product) -> bool:
        """Measure this very product, if the budget allows, and remember the result."""
        key = self._key(repr((product, self._exact)), product.device)
        best = remembered(self.setting.cache, key)
        for _ in self.budget.each([product] if best is None else []):
            with self._alone(product.device) as measure:
                exact = not self._exact or measure.as_exact(product.depth)
                best = int(exact and measure.quicker(product))
            remember(self.setting.cache, key, best)
        return bool(best)

    @contextmanager
    def _alone(self, device: str) -> Iterator[Measure]:
        """Yield what measures on a device, outside of the modes in which torch traces."""
        definition, target = self.setting.targets[device]
        autocast = torch._C._DisableAutocast()
        with _disable_current_modes(), torch.no_grad(), autocast:
            yield Measure(definition.device(target), torch.Generator(device).manual_seed(0))


@frozen
class Measure:
    """Runs products in both libraries."""

    device: DeviceInterface
    generator: torch.Generator

    def quicker(self, product: Product) -> bool:
        """Return whether oneDNN takes less time for a product."""
        x, y = self._matrices(product)
        out = torch.empty(product.rows, product.columns, device=product.device)
        runs = {"aten": lambda: torch.mm(x, y, out=out), "onednn": lambda: _linear(x, y)}
        times = compare(runs, self.device, samples=_SAMPLES, warmup=1, seconds=_SAMPLE_SECONDS)
        return times["aten"].least >= _GAIN * times["onednn"].least

    def packed(self, product: Product, after: Activation, biased: bool, exact: bool) -> str:
        """Return which of `_PACKINGS`, if it is `exact` enough, is quickest with what follows, in
        doubt the simpler; empty for ATen's calls. All have a bias if the product is `biased`; a
        call that computes what follows too always has one, since no kernel is left to add it."""
        weights = self._weights(product)
        return _first_quick(self._times(self._packings(product, weights, after, biased, exact)))

    def in_integers(self, call: Product | Convolution) -> bool:
        """Return whether a product or a convolution takes less time of quantised operands than of
        floats, however these are packed."""
        if isinstance(call, Convolution):
            times = self._times(convolution_calls(call, self.generator))
        else:
            floats = evolve(call, turned=True, dtype=torch.float32)
            weights = self._weights(floats)
            runs = self._packings(floats, weights, NOTHING, False, False)
            packed = [packed_bytes(weight, call.rows) for weight in weights]
            each = cycle([product_call(call, weight, self.generator) for weight in packed])
            times = self._times(runs | {"integers": lambda: next(each)()})
        least = times.pop("integers")
        return min(times.values()) >= _PACKED_GAIN * least

    def _times(self, runs: Mapping[str, Callable[[], torch.Tensor]]) -> dict[str, float]:
        """Return the least seconds of each of some ways."""
        found = compare(
            runs, self.device, samples=_PACKED_SAMPLES, warmup=1, seconds=_SAMPLE_SECONDS
        )
        return {name: time.least for name, time in found.items()}

    def _weights(self, product: Product) -> list[torch.Tensor]:
        """Return weights for a product, one row an output, that no cache holds at once."""
        each_bytes = product.dtype.itemsize * product.depth * product.columns
        count = max(1, min(_MOST_COPIES, _COLD_BYTES // each_bytes))
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
        """Return the ways to compute a product with packed weights, and what follows it."""
        x, _ = self._matrices(product)
        bias = self._drawn(1, product.columns, False)[0].to(product.dtype)
        added = bias if biased else None
        out = x.new_empty(product.rows, product.columns)  # ATen's calls write into planned memory

        def each(
            pack: Callable[[torch.Tensor], Any], run: Callable[[Any, torch.Tensor], torch.Tensor]
        ) -> Callable[[], torch.Tensor]:
            packed = cycle([(pack(weight), weight) for weight in weights])
            return lambda: run(*next(packed))

        def in_aten(w: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            if added is None:
                return after.in_aten(torch.mm(x, w, out=out))
            return after.in_aten(torch.addmm(added, x, w, out=out))

        runs = {"": each(torch.t, in_aten)}
        if product.turned:
            runs["aten"] = each(lambda w: w.t().contiguous(), in_aten)
        if not exact or self.as_exact(product.depth, product.dtype):
            pack = torch.ops.mkldnn._reorder_linear_weight
            for_onednn = partial(pack, batch_size=product.rows)
            runs["onednn"] = each(for_onednn, lambda w, _: after.in_aten(_onednn(x, w, added)))
            if after != NOTHING:
                runs[_WHOLE] = each(for_onednn, lambda w, _: _onednn(x, w, bias, after))
        if torch._C.has_mkl and product.dtype == torch.float32:
            mkl: Any = torch.ops.mkl
            rows = product.rows
            runs["mkl"] = each(
                lambda w: mkl._mkl_reorder_linear_weight(w, rows),
                lambda p, w: after.in_aten(mkl._mkl_linear(x, p, w, added, rows)),
            )
        return runs

    def keeps(self, after: Activation) -> bool:
        """Return whether oneDNN gives NaN and infinities where ATen does, and has no larger an
        error elsewhere."""
        drawn = _SPREAD * self._drawn(1, _COUNT, False)[0]
        x = torch.cat([torch.tensor(_SPECIAL, device=drawn.device), drawn])
        rows = torch.ones(_COLUMNS, 1, device=drawn.device)
        ours, theirs = _onednn(x[:, None], rows, None, after)[:, 0], after.in_aten(x)
        count = len(_SPECIAL)
        if not torch.allclose(ours[:count], theirs[:count], equal_nan=True):
            return False
        exact = after.in_aten(drawn.double())
        mine, others = ((r[count:] - exact).square().mean() for r in (ours, theirs))
        return bool(mine <= _WORSE**2 * others)

    def as_exact(self, depth: int, dtype: torch.dtype = torch.float32) -> bool:
        """Return whether sums of so many products have no larger an error in oneDNN."""
        depth = min(depth, _DEPTHS[-1])
        x, y = self._matrices(Product(self.device.type, _ROWS, depth, _ROWS, dtype=dtype))
        exact = x.double() @ y.double()
        ours, theirs = ((r - exact).square().mean() for r in (_linear(x, y), x @ y))
        return bool(ours <= _WORSE**2 * theirs)

    def depth(self) -> int:
        """Return up to which depth that holds; 0 for any."""
        last = 0
        for depth in _DEPTHS:
            if not self.as_exact(depth):
                return last or 1
            last = depth
        return 0

    def _matrices(self, product: Product) -> tuple[torch.Tensor, torch.Tensor]:
        left = self._drawn(product.rows, product.depth, product.copied)
        right = self._drawn(product.depth, product.columns, product.turned)
        return left.to(product.dtype), right.to(product.dtype)

    def _drawn(self, rows: int, columns: int, turned: bool) -> torch.Tensor:
        shape = (columns, rows) if turned else (rows, columns)
        drawn = torch.randn(shape, generator=self.generator, device=self.generator.device)
        return drawn.t() if turned else drawn


def _first_quick(seconds: Mapping[str, float]) -> str:
    """Return the quickest of ways in order, each later one only where it gains enough."""
    best, *others = seconds
    for name in others:
        if seconds[best] >= _PACKED_GAIN * seconds[name]:
            best = name
    return best


def _linear(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _onednn(x, y.t(), None)


def _onednn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    after: Activation = NOTHING,
) -> torch.Tensor:
    op = torch.ops.mkldnn._linear_pointwise.default
    result: torch.Tensor = op(x, weight, bias, *after.arguments)
    return result
