"""Compare a built kernel with its IR: both run on equal random memory."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from attrs import define, field, frozen

from gyrator_ir.body import nodes
from gyrator_ir.body.nodes import ReduceKind, ScanKind, StoreMode
from gyrator_ir.body.ops import OPS
from gyrator_ir.body.ops import Numerics as Precision
from gyrator_ir.body.rewrite import AnyStatement, expressions
from gyrator_ir.expr import Expr, ShapeFacts, Sym, SymKind
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, Numerics, TemplateKernel
from gyrator_ir.loop.formulas import with_distinct_names
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.loop.templates import first_captured, literal
from gyrator_ir.tile.nodes import APPROXIMABLE
from gyrator_ir.types import HOST, DType
from gyrator_testing.feeds import size_of
from gyrator_testing.interp.dtypes import NUMPY, Array, cast
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.index import Number, integer, truth_of
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.interp.memory import span
from gyrator_testing.interp.template import run_template
from gyrator_testing.kernels.compare import agree, computed_width, same_bits
from gyrator_testing.kernels.rows import TYPES

GUARD = 512
"""The number of guard bytes before and after every buffer; a multiple of every alignment."""
POINTS = 1 << 20
"""The maximum number of points of a kernel, and elements of its buffers, that are interpreted."""
_ELEMENTS = 1 << 24
_AROUND, _UNWRITTEN = 0xFB, 0x5A
"""Byte values of guards, and of outputs before the kernel runs: large numbers in every float
dtype."""
_SPECIAL = (0.0, -0.0, np.nan, 1.0, -1.0, 2.5, -3.5, np.inf, -np.inf)
_EXTREMES = (ReduceKind.MIN, ReduceKind.MAX, ReduceKind.ARGMIN, ReduceKind.ARGMAX)
_ROUNDING_MODES = (StoreMode.ADD, StoreMode.MUL, StoreMode.TOTAL)
_PERIOD = 65521
"""The period of random numbers, a prime."""
_SIZES = (SymKind.SIZE, SymKind.UNBACKED)
_OTHER_SIZES = (0, 1, 7, 3, 2, 16)

Launch = Callable[[Sequence[Array], Sequence[int]], Sequence[Array]]
"""Runs the built kernel on copies of raw memory, one per parameter with guards, and on
the values of the kernel's sizes; returns the memory after the run."""


@frozen
class Verdict:
    """The outcome of comparing a kernel with its IR."""

    runs: int = 0
    skipped: str = ""
    """Why the kernel did not run; empty if it did."""
    difference: str = ""
    """The first difference; empty for none."""


def validate(kernel: Launchable, facts: ShapeFacts, launch: Launch, seed: int = 0) -> Verdict:
    """Run a built kernel and the interpreter of its IR on equal random memory, and compare.

    Sizes are the hints of the facts, and other values that satisfy them; floats are random, then
    mixed with zeros, infinities and NaN. Integers used as indices are within bounds.
    Results of exact ops must agree in every bit, others within the
    tolerance of `compare`.
    """
    types = {p.dtype for p in kernel.parameters}
    if not types <= {*TYPES}:
        return Verdict(skipped=f"reads or writes {', '.join(sorted(types - {*TYPES}))}")
    traits = _Traits.of(kernel)
    skipped, runs = "no sizes that the facts admit were found", 0
    for sizes in _choices(kernel, facts):
        reason = _too_large(kernel, sizes)
        for style in traits.styles:
            if not reason:
                trial = _Trial(kernel, traits, facts, sizes, np.random.default_rng(seed), style)
                reason, difference = trial.run(launch)
                if difference:
                    return Verdict(runs, difference=difference)
                runs += not reason
        skipped = reason or skipped
    return Verdict(runs, "" if runs else skipped)


# What a kernel needs of its inputs ----------------------------------------------------------------


@frozen
class _Traits:
    """The properties of a kernel that determine its random inputs."""

    indices: Mapping[str, tuple[Expr, ...]]
    """Buffers whose integers are used as indices, with the lengths that they index."""
    wrapped: frozenset[str]
    """Index buffers that may hold negative indices, which count from the end."""
    scattered: frozenset[str]
    """Index buffers of stores that set values: each index occurs at most once."""
    nonzero: bool
    """Whether integers are used as divisors."""
    specials: tuple[float, ...]
    """Special floats that are worth a trial and well-defined throughout: no NaN if floats are
    converted to integers, no infinity if deviations from a mean are computed."""
    signed: bool
    """Whether the kernel computes a minimum or maximum, whose identity shows among numbers of one
    sign."""
    exact: frozenset[str]
    """Buffers whose contents are bitwise equal on every backend."""
    width: int = 4
    """The size in bytes of the dtype in which floats are computed."""
    narrow: Mapping[str, int] = MappingProxyType({})
    """The same for buffers whose values are computed in a narrower dtype."""

    @property
    def styles(self) -> tuple[str, ...]:
        """The kinds of random inputs that are worth a run each."""
        special = ("special",) if self.specials else ()
        return ("plain", *special, *(("negative", "positive") if self.signed else ()))

    @classmethod
    def of(cls, kernel: Launchable) -> "_Traits":
        if isinstance(kernel, KernelGroup):
            return cls._of_members(kernel)
        if not isinstance(kernel, Kernel):
            empty: frozenset[str] = frozenset()
            loads, wrapped = _template_indices(kernel)
            return cls(loads, wrapped, empty, False, (), False, exact=empty, narrow=_narrow(kernel))
        body = kernel.statements
        types = kernel.storage
        eager = kernel.numerics is not Numerics.FAST
        values, rounded = _values(body, types, eager, kernel.device.type == HOST)
        binds = [s for s in body if isinstance(s, nodes.Bind)]
        lets = [s for s in body if isinstance(s, nodes.Let)]
        sources = {s.symbol: values[s.value].sources for s in binds}
        indices: dict[str, tuple[Expr, ...]] = {}
        for s in binds:
            for name in sources[s.symbol]:
                indices[name] = (*indices.get(name, ()), s.size)
        scattered = [
            sources.get(symbol, frozenset())
            for s in body
            if isinstance(s, nodes.Store) and s.mode is StoreMode.SET
            for symbol in s.index.free_symbols
        ]
        plain = (sources[s.symbol] for s in binds if not s.wrap)
        finite = any(isinstance(s, nodes.Reduce) and s.kind is ReduceKind.WELFORD for s in body)
        whole = any(
            s.op == "cast" and s.dtype.is_int and values[s.args[0]].dtype.is_float for s in lets
        )
        floats = any(p.dtype.is_float for p in kernel.parameters)
        special = (_SPECIAL[:-2] if finite else _SPECIAL) if floats and not whole else ()
        extremes = (*_EXTREMES, ScanKind.MIN, ScanKind.MAX, ScanKind.ARGMIN, ScanKind.ARGMAX)
        return cls(
            indices=indices,
            wrapped=frozenset(indices).difference(*plain),
            scattered=frozenset().union(*scattered),
            nonzero=any(s.op in ("floordiv", "truncdiv", "mod", "rem") for s in lets),
            specials=special,
            signed=any(
                isinstance(s, nodes.Reduce | nodes.ScanStep) and s.kind in extremes for s in body
            ),
            exact=frozenset(types) - rounded,
            width=computed_width(body),
        )

    @classmethod
    def _of_members(cls, group: KernelGroup) -> "_Traits":
        """Return the traits of all members, under the names of the group's parameters."""
        each = [cls.of(kernel) for kernel in group.kernels]
        numbered = [(place, each[number]) for place, number in enumerate(group.members)]

        def named(trait: Callable[[_Traits], Iterable[str]]) -> frozenset[str]:
            return frozenset(group.parameter(place, n) for place, t in numbered for n in trait(t))

        return cls(
            indices={group.parameter(m, n): e for m, t in numbered for n, e in t.indices.items()},
            wrapped=named(lambda t: t.wrapped),
            scattered=named(lambda t: t.scattered),
            nonzero=any(t.nonzero for t in each),
            specials=min((t.specials for t in each), key=len),
            signed=any(t.signed for t in each),
            exact=named(lambda t: t.exact),
            width=min(t.width for t in each),
        )


def _narrow(kernel: TemplateKernel) -> Mapping[str, int]:
    """Return the widths of results that are wider than the attention weights, which
    have the dtype of the queries."""
    if kernel.kind is not TemplateKind.FLEX_ATTENTION_PARTS:
        return {}
    return {kernel.outputs[0].buffer: kernel.inputs[0].dtype.size}


def _members(
    kernel: Kernel | KernelGroup, arrays: Mapping[str, Array]
) -> Iterator[tuple[Kernel, dict[str, Array]]]:
    """Yield the kernels of a launch, each with the arrays of its parameters."""
    if isinstance(kernel, Kernel):
        yield kernel, dict(arrays)
        return
    left = iter(arrays.values())
    for number in kernel.members:
        member = kernel.kernels[number]
        yield member, {p.name: next(left) for p in member.parameters}


@frozen
class _Value:
    """What is known about a value, or about the contents of a written buffer."""

    dtype: DType
    sources: frozenset[str] = frozenset()
    """The integer buffers that it is computed from."""
    rounded: bool = False
    """Whether backends may differ in its last bits."""


def _values(
    body: Sequence[AnyStatement], types: Mapping[str, DType], eager: bool, host: bool
) -> tuple[dict[str, _Value], frozenset[str]]:
    """Return what is known about each value, and the buffers that hold rounded values.

    Without `eager`, every value may be rounded. Quotients are correctly rounded only on the `host`.
    """
    values: dict[str, _Value] = {}
    rounded: set[str] = set()
    for s in body:
        match s:
            case nodes.Load(name, buffer):
                integers = frozenset({buffer} if types[buffer].is_int else ())
                values[name] = _Value(types[buffer], integers, buffer in rounded)
            case nodes.Const(name, _, dtype) | nodes.IndexValue(name, _, dtype):
                values[name] = _Value(dtype)
            case nodes.Let() | nodes.Reduce() | nodes.ScanStep() | nodes.SortStep():
                args = [values[a] for a in s.args]
                result = _Value(
                    s.dtype,
                    frozenset().union(*(a.sources for a in args)),
                    not eager or _rounds(s, host) or any(a.rounded for a in args),
                )
                names = (s.name,) if isinstance(s, nodes.Let) else s.names
                values |= dict.fromkeys(names, result)
            case nodes.Store(buffer, _, value, mode):
                sums = mode in _ROUNDING_MODES and types[buffer].is_float
                if sums or values[value].rounded:
                    rounded.add(buffer)
    return values, frozenset(rounded)


def _rounds(s: nodes.Let | nodes.Reduce | nodes.ScanStep | nodes.SortStep, host: bool) -> bool:
    """Return whether backends may differ in the last bits of a statement's result."""
    match s:
        case nodes.Let():
            approximate = not host and s.op in APPROXIMABLE and s.dtype is DType.F32
            return approximate or OPS[s.op].numerics not in (Precision.EXACT, Precision.ROUNDED)
        case nodes.Reduce(_, kind):
            return s.dtype.is_float and kind not in _EXTREMES
        case nodes.ScanStep(_, kind):
            inexact = (ScanKind.SUM, ScanKind.PROD, ScanKind.LOGSUMEXP)
            return s.dtype.is_float and kind in inexact
    return False


# Sizes --------------------------------------------------------------------------------------------


def _choices(kernel: Launchable, facts: ShapeFacts) -> Iterator[dict[Sym, Number]]:
    """Return values for all size symbols: the hints, and two others if the facts allow them."""
    symbols = {s for e in _expressions(kernel) for s in e.free_symbols} | {*kernel.sizes}
    equal = dict(facts.equalities)
    while more := {t for s in symbols & equal.keys() for t in equal[s].free_symbols} - symbols:
        symbols |= more
    for cond in facts.assumed:
        if cond.free_symbols & symbols:
            symbols |= cond.free_symbols
    for _, (_, top) in facts.ranges:
        symbols |= top.free_symbols if top is not None else set()
    free = sorted(symbols - equal.keys(), key=lambda s: s.name)
    choices: list[dict[Sym, Number]] = []
    for wish in (None, *_OTHER_SIZES):
        values: dict[Sym, Number] = {
            s: size_of(s, facts) if wish is None else _near(s, wish, facts) for s in free
        }
        for s in sorted(symbols & equal.keys(), key=lambda s: s.name):
            values[s] = integer(equal[s], values)
        if values not in choices and _admits(facts, values):
            choices.append(values)
            yield values
        if len(choices) == 3:
            return


def _expressions(kernel: Launchable) -> Iterator[Expr]:
    for p in kernel.parameters:
        yield from (*p.shape, *p.strides)
    if isinstance(kernel, KernelGroup):
        for member in kernel.kernels:
            yield from _expressions(member)
    if isinstance(kernel, Kernel):
        for a in (*kernel.axes, *kernel.inner):
            yield a.extent
        for s in kernel.statements:
            for e in expressions(s):
                yield from (x for x in e.free_symbols if x.kind in _SIZES)


def _near(symbol: Sym, wish: int, facts: ShapeFacts) -> int:
    """Return the size nearest to `wish` that a symbol's range and divisor allow."""
    low, high = facts.bounds(symbol)
    step = dict(facts.divisors).get(symbol, 1)
    value = -(-max(wish, low or 0) // step) * step
    return value if high is None or value <= high else high // step * step


def _admits(facts: ShapeFacts, values: Mapping[Sym, Number]) -> bool:
    for s, (low, top) in facts.ranges:
        if s in values:
            value = values[s]
            high = math.inf if top is None else integer(top, values)
            if not (-math.inf if low is None else low) <= value <= high:
                return False
    if any(s in values and values[s] % step for s, step in facts.divisors):
        return False
    known = (c for c in facts.assumed if c.free_symbols <= values.keys())
    return all(bool(truth_of(c, values)) for c in known)


def _too_large(kernel: Launchable, sizes: Mapping[Sym, Number]) -> str:
    """Return why a kernel takes too long to interpret, or an empty string."""
    elements = sum(span(p, sizes) for p in kernel.parameters)
    points = _points(kernel, sizes)
    if points > POINTS:
        return f"has {points} points; up to {POINTS} are interpreted"
    return f"touches {elements} elements; up to {_ELEMENTS} are" if elements > _ELEMENTS else ""


def _points(kernel: Launchable, sizes: Mapping[Sym, Number]) -> int:
    match kernel:
        case KernelGroup():
            return sum(_points(kernel.kernels[number], sizes) for number in kernel.members)
        case TemplateKernel(kind=TemplateKind.CONVOLUTION):
            sizes_of_sums = (*kernel.outputs[0].shape, *kernel.inputs[1].shape[1:4])
            return math.prod(integer(n, sizes) for n in sizes_of_sums)
        case TemplateKernel(kind=TemplateKind.DEPTHWISE):
            sizes_of_sums = (*kernel.outputs[0].shape, *kernel.inputs[1].shape[:2])
            return math.prod(integer(n, sizes) for n in sizes_of_sums)
        case TemplateKernel():
            rows = math.prod(integer(n, sizes) for n in kernel.inputs[0].shape[:-1])
            return rows * integer(kernel.inputs[1].shape[-2], sizes)
    return math.prod(integer(a.extent, sizes) for a in (*kernel.axes, *kernel.inner))


def _template_indices(kernel: TemplateKernel) -> tuple[dict[str, tuple[Expr, ...]], frozenset[str]]:
    """Return the lengths that buffers index, including block counts, and the buffers that may hold
    negative indices."""
    if not kernel.formulas:
        return {}, frozenset()
    body: list[AnyStatement] = []
    for f in with_distinct_names(kernel.formulas):
        body += [nodes.Const(name, 0.0, DType.F32) for name in f.parameters]
        body += f.body
    values, _ = _values(body, {p.name: p.dtype for p in kernel.parameters}, True, True)
    indices: dict[str, tuple[Expr, ...]] = {}
    plain: set[str] = set()
    for s in body:
        if isinstance(s, nodes.Bind):
            for name in values[s.value].sources:
                indices[name] = (*indices.get(name, ()), s.size)
                plain |= set() if s.wrap else {name}
    wrapped = frozenset(indices) - plain
    first = first_captured(kernel.kind, kernel.attributes)
    start = 6 if kernel.kind is TemplateKind.FLEX_ATTENTION_GRADIENTS else 3
    half = first if start == 3 else start + (first - start) // 2
    for place in range(start, first, 2):
        counts, listed = kernel.inputs[place : place + 2]
        extent, block = kernel.inputs[1].shape[2], "column_block"
        if place >= half:
            extent, block = kernel.inputs[0].shape[2], "row_block"
        length = literal(kernel.attributes, block, int)
        blocks = (extent + length - 1) // length
        indices[counts.buffer] = (*indices.get(counts.buffer, ()), listed.shape[3] + 1)
        indices[listed.buffer] = (*indices.get(listed.buffer, ()), blocks)
    return indices, wrapped


# One run ------------------------------------------------------------------------------------------


@define
class _Trial:
    """One comparison of a kernel with its IR."""

    kernel: Launchable
    traits: _Traits
    facts: ShapeFacts
    sizes: Mapping[Sym, Number]
    rng: np.random.Generator
    style: str
    _memory: dict[str, Array] = field(factory=dict)

    def run(self, launch: Launch) -> tuple[str, str]:
        """Return why the comparison was impossible, or "", and the first difference, or ""."""
        named = {s.name: integer(s, self.sizes) for s in self.kernel.sizes}
        for indices in ("wrapped", "plain", "zero"):
            self._memory = {p.name: self._draw(p.name, indices) for p in self.kernel.parameters}
            if not self._memory:
                return "", ""
            expected = {name: raw.copy() for name, raw in self._memory.items()}
            try:
                self._interpret(expected, named)
                break
            except (IndexError, RuntimeError, InterpreterError) as error:
                if "outside of the" in str(error):
                    # Guards that the facts do not have may keep other sizes than these away.
                    wrong = all(self.facts.hint(s) == n for s, n in self.sizes.items())
                    message = f"the IR itself is at fault: {error}"
                    return ("", message) if wrong else ("no address of the IR fits its buffer", "")
                reason = f"found no numbers to index with: {error}".splitlines()[0]
        else:
            return reason, ""
        if self._collides():
            return "several points may write one element", ""
        try:
            arrays = [raw.copy() for raw in self._memory.values()]
            left = launch(arrays, [named[s.name] for s in self.kernel.sizes])
        except (IndexError, RuntimeError) as error:
            return "", f"it raised {type(error).__name__}: {error}"
        pairs = zip(self.kernel.parameters, left, strict=True)
        differences = (self._difference(p.name, got, expected[p.name]) for p, got in pairs)
        difference = next(filter(None, differences), "")
        where = ", ".join(f"{s.name}={n}" for s, n in self.sizes.items())
        return "", f"{difference}, with {where}" if difference and where else difference

    def _interpret(self, raw: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
        arrays = {p.name: _inside(raw[p.name], p.dtype) for p in self.kernel.parameters}
        with np.errstate(all="ignore"):
            if isinstance(self.kernel, TemplateKernel):
                run_template(self.kernel, arrays, sizes)
                return
            for member, own in _members(self.kernel, arrays):
                run_kernel(member, own, sizes)

    def _draw(self, name: str, indices: str) -> Array:
        """Return the memory of a parameter with its guards.

        Indices are `wrapped`, negative where that counts from the end, `plain`, or all `zero`.
        """
        (p,) = (p for p in self.kernel.parameters if p.name == name)
        count = span(p, self.sizes)
        raw = np.full(2 * GUARD + count * p.dtype.size, _AROUND, np.uint8)
        values = _inside(raw, p.dtype)
        if self._fresh(name):
            raw[GUARD : raw.size - GUARD] = _UNWRITTEN
        elif name in self.traits.indices:
            tops = [integer(e, self.sizes) for e in self.traits.indices[name] if self._constant(e)]
            top = 1 if indices == "zero" else max(min(tops, default=1), 1)
            low = -top if indices == "wrapped" and name in self.traits.wrapped else 0
            if name in self.traits.scattered and count <= top:
                values[:] = self.rng.permutation(top)[:count]
            else:
                values[:] = np.resize(self.rng.integers(low, top, min(count, _PERIOD)), count)
        else:
            values[:] = np.resize(self._numbers(p.dtype, min(count, _PERIOD)), count)
        return raw

    def _constant(self, e: Expr) -> bool:
        return e.free_symbols <= self.sizes.keys()

    def _fresh(self, name: str) -> bool:
        """Return whether the initial contents of a buffer are irrelevant."""
        if not isinstance(self.kernel, Kernel):
            return name not in self.kernel.reads
        body = self.kernel.statements
        stores = [s for s in body if isinstance(s, nodes.Store) and s.buffer == name]
        own = (StoreMode.SET, StoreMode.TOTAL)
        return name not in self.kernel.reads and all(s.mode in own for s in stores)

    def _numbers(self, dtype: DType, count: int) -> Array:
        if dtype is DType.BOOL:
            return self.rng.random(count) < 0.5
        if dtype.is_int:
            info = np.iinfo(NUMPY[dtype])
            low = 1 if self.traits.nonzero else max(info.min, -20)
            if info.min < 0 and self.style == "negative":
                return self.rng.integers(-100, 0, count).astype(NUMPY[dtype])
            low = max(low, int(self.style == "positive"))
            return self.rng.integers(low, 100, count).astype(NUMPY[dtype])
        numbers = self.rng.standard_normal(count)
        if self.style in ("negative", "positive"):
            numbers = np.abs(numbers) * (-1 if self.style == "negative" else 1)
        if self.style == "special":
            chosen = self.rng.random(count) < 0.1
            numbers = np.where(chosen, self.rng.choice(self.traits.specials, count), numbers)
        return cast(numbers, dtype)

    def _collides(self) -> bool:
        """Return whether the stored value depends on the order of stores."""
        for name in self.traits.scattered:
            (p,) = (p for p in self.kernel.parameters if p.name == name)
            values = _inside(self._memory[name], p.dtype)
            if np.unique(values).size < values.size:
                return True
        return False

    def _difference(self, name: str, got: Array, want: Array) -> str:
        """Return the difference in one parameter's memory, or an empty string."""
        (p,) = (p for p in self.kernel.parameters if p.name == name)
        for guard, where in ((slice(0, GUARD), "before"), (slice(want.size - GUARD, None), "past")):
            wrong = np.flatnonzero(got[guard] != want[guard])
            if wrong.size:
                return f"{name}: byte {wrong[0]} {where} the buffer was written"
        ours, expected = _inside(got, p.dtype), _inside(want, p.dtype)
        size = p.dtype.size
        before = self._memory[name][GUARD : want.size - GUARD].reshape(-1, size)
        touched = (want[GUARD : want.size - GUARD].reshape(-1, size) != before).any(axis=1)
        done = (got[GUARD : want.size - GUARD].reshape(-1, size) != before).any(axis=1)
        stray = np.flatnonzero(done & ~touched)
        fresh = self._fresh(name)
        if fresh and stray.size:
            return f"{name}[{stray[0]}] was written, as {ours[stray[0]]}, and is not to be"
        width = self.traits.narrow.get(name, self.traits.width)
        good = np.ones(ours.size, np.bool_)
        judge = touched if fresh else slice(None)
        if name in self.traits.exact or not p.dtype.is_float:
            good[judge] = same_bits(ours[judge], expected[judge])
        else:
            good[judge] = agree(ours[judge], expected[judge], width)
        bad = np.flatnonzero(~good)
        if not bad.size:
            return ""
        at = int(bad[0])
        return (
            f"{name}[{at}] is {ours[at]}, not {expected[at]}; "
            f"{bad.size} of {ours.size} elements differ"
        )


def _inside(raw: Array, dtype: DType) -> Array:
    return raw[GUARD : raw.size - GUARD].view(NUMPY[dtype])
