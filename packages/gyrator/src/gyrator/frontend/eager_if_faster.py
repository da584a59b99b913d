"""Graphs that run in eager mode where that was measured to be faster, or to need less memory in
about the same time: the option `eager_if_faster`."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from attrs import asdict, field
from torch._C._autograd import _profiler_enabled, _top_saved_tensors_default_hooks
from torch.autograd import forward_ad

from gyrator.autotune.kernels import Budget, remember, remembered
from gyrator.autotune.layouts import undisturbed
from gyrator.engine.context import CompilerContext
from gyrator.frontend.dynamo.graph import nodes_of
from gyrator.graphs.graph_key import is_torch_function
from gyrator.reports.logs import log_unmeasured
from gyrator.reports.records import GraphRecord
from gyrator_ir.define import define, frozen
from gyrator_ir.types import HOST
from gyrator_runtime.cache import CacheKey, make_key
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.profile import Timer, compare

_GAIN = 1.05
"""The minimum speedup of eager mode, to exclude measurement noise."""
_LEANER = 1.1
"""The minimum ratio of the peaks of two graphs that take about the same time."""
_LEANER_BYTES = 1 << 20
"""The minimum difference of these peaks."""
_CLEAR = 1.5
"""The ratio of two times that needs no further samples."""
_SAMPLES = 12
_SAMPLE_SECONDS = 1e-3
_FEWEST_RUNS = 8
"""Minimum number of runs of each function in a comparison."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)

Function = Callable[..., Any]


@frozen
class Times:
    """Seconds of one call, including its backward pass in training; and the bytes at its peak, 0 if
    they do not matter."""

    compiled: float
    eager: float
    compiled_bytes: int = 0
    eager_bytes: int = 0

    @property
    def about_equal(self) -> bool:
        """Whether neither is clearly faster."""
        return 1 / _GAIN < self.compiled / self.eager < _GAIN

    @property
    def _saves_memory(self) -> bool:
        least = max(_LEANER * self.eager_bytes, self.eager_bytes + _LEANER_BYTES)
        return self.about_equal and self.compiled_bytes >= least

    @property
    def replaces(self) -> bool:
        """Whether the graph runs in eager mode from now on."""
        return self.compiled >= _GAIN * self.eager or self._saves_memory

    def __str__(self) -> str:
        share = f"{self.eager / self.compiled:.2f}"
        before, after = (f"{1e6 * s:,.1f} µs" for s in (self.compiled, self.eager))
        time = f"{share} of the time: {after} instead of {before} a call"
        if not self._saves_memory:
            return f"eager mode takes {time}"
        before, after = (f"{b / 1e6:,.1f} MB" for b in (self.compiled_bytes, self.eager_bytes))
        return f"eager mode needs {after} at its peak instead of {before}, and {time}"


@define(eq=False)
class Contest:
    """A compiled graph and the function that it was compiled from. The first call on which it is
    possible measures both on its arguments, and calls go to the faster one from then on."""

    compiled: Function
    function: Function
    measure: Callable[[Function, Function, Sequence[Any]], Times | None]
    """Times the compiled graph and the function; None if that gives no clear answer."""
    decide: Callable[[Times], None]
    """Is told the times."""
    possible: Callable[[Sequence[Any]], bool]
    """Returns whether the arguments and torch's state allow a measurement now."""
    chosen: Function | None = field(default=None, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def choose(self, args: Sequence[Any]) -> Function:
        """Return what to call: the compiled graph while another thread measures."""
        if not self.possible(args) or not self._lock.acquire(blocking=False):
            return self.compiled
        try:
            if self.chosen is None:
                times = self._times(args)
                replaces = times is not None and times.replaces
                if times is not None:
                    self.decide(times)
                self.chosen = self.function if replaces else self.compiled
            return self.chosen
        finally:
            self._lock.release()

    def _times(self, args: Sequence[Any]) -> Times | None:
        try:
            # Restores the mode, which a graph may change.
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                return self.measure(self.compiled, self.function, args)
        except Exception as error:  # the call itself raises what is the user's mistake
            log_unmeasured(f"{type(error).__name__}: {error}")
            return None


def faster(
    context: CompilerContext,
    compiled: Function,
    function: Function,
    key: CacheKey | None,
    refusal: str,
    inputs: Sequence[Any],
) -> Function:
    """Return a callable that runs a compiled graph, or the function that it was compiled from if
    that is faster, or needs less memory.

    Args:
        context: the settings.
        compiled: the compiled graph.
        function: Dynamo's graph.
        key: the key of its cache entry, by which the times are stored; None if they are not.
        refusal: why the function cannot be called repeatedly; empty if it can.
        inputs: the example inputs of the graph.
    """
    device = _device(inputs)
    reason = refusal or _refusal(function, device, context)
    if reason or device is None:
        log_unmeasured(reason)
        return compiled
    store_key = None if key is None else make_key("eager", {"graph": key.hex.encode()})

    def replaced(times: Times) -> None:
        if times.replaces:
            context.observe(_record(function, times))

    def decide(times: Times) -> None:
        if store_key is not None:
            remember(context.cache, store_key, asdict(times))
        replaced(times)

    stored = None if store_key is None else remembered(context.cache, store_key)
    if stored is not None:
        times = Times(**stored)
        replaced(times)
        return function if times.replaces else compiled
    definition, target = context.targets[device.type]
    interface = definition.device(target)
    budget = Budget(context.options.autotune_seconds)

    measure = partial(_measured, _Numbered(interface, device.index or 0), budget)
    contest = Contest(compiled, function, measure, decide, lambda args: _possible(args, interface))

    def call(*args: Any) -> Any:
        run = contest.chosen
        return (contest.choose(args) if run is None else run)(*args)

    return call


def _measured(
    timer: "_Numbered", budget: Budget, compiled: Function, function: Function, args: Sequence[Any]
) -> Times | None:
    """Time a compiled graph and its function, and take their peaks of memory if the times are about
    equal."""
    with timer.device.guard(timer.index):
        times = measured(compiled, function, args, timer, budget)
        if times is None or not times.about_equal or not budget.left or _profiler_enabled():
            return times
        runs = (_step(compiled, args), _step(function, args))
        with budget.running():
            peaks = [peak_bytes(run) for run in runs]
        return Times(times.compiled, times.eager, *peaks)


def _record(function: Any, times: Times) -> GraphRecord:
    """Describe a graph that runs in eager mode, with the user's line of its first call."""
    from gyrator_lowering.torch_bridge.origins import innermost  # rarely used

    calls = [n for n in nodes_of(function) if n.op.startswith("call")]
    traces = (n.meta.get("stack_trace") for n in calls)
    line, code = innermost(next(filter(None, traces), ""))
    where = f"\n{line}: {code}" if line else ""
    return GraphRecord("main", "eager", len(calls), fallback=f"{times}{where}")


@frozen
class _Numbered:
    """One of the devices of a type."""

    device: DeviceInterface
    index: int

    def synchronize(self) -> None:
        """Wait until it is idle."""
        self.device.synchronize(self.index)

    def clock(self) -> Callable[[], float]:
        """Return the clock by which to time work on it."""
        return self.device.clock()


def measured(
    compiled: Function, function: Function, args: Sequence[Any], device: Timer, budget: Budget
) -> Times | None:
    """Time a compiled graph and the function on the same arguments, in turns; return None if
    other processes disturb, or the budget is too small."""
    runs = {"compiled": _step(compiled, args), "eager": _step(function, args)}

    def decided(seconds: Mapping[str, float]) -> bool:
        share = seconds["compiled"] / seconds["eager"]
        return not budget.left or not 1 / _CLEAR < share < _CLEAR

    with budget.running():
        first = compare({"compiled": runs["compiled"]}, device, samples=1, warmup=2)
        if _FEWEST_RUNS * first["compiled"].minimum > budget.left:
            return None
        times = compare(
            runs, device, samples=_SAMPLES, warmup=2, seconds=_SAMPLE_SECONDS, decided=decided
        )
    seconds = undisturbed(times)
    return None if seconds is None else Times(seconds["compiled"], seconds["eager"])


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the most bytes that a call had allocated at once with torch's allocators, on the host
    and on devices, beyond what was allocated before it. No profiler may be running."""
    # Kineto takes a second to start, and some of its versions print. PyTorch may drop this one.
    from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    config = ProfilerConfig(
        ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()
    )
    _enable_profiler_legacy(config)
    try:
        run()
    finally:
        events: list[Any] = [e for thread in _disable_profiler_legacy() for e in thread]
    start = next(e for e in events if e.name() == "__start_profile")
    changes = [e for e in events if e.kind() == "memory_alloc"]
    changes.sort(key=start.cpu_elapsed_us)
    sizes: Iterator[int] = (e.cpu_memory_usage() + e.cuda_memory_usage() for e in changes)
    return max(accumulate(sizes, initial=0))


def _step(run: Function, args: Sequence[Any]) -> Callable[[], object]:
    """Return a call on the arguments that computes the same gradients as an ordinary call, but does
    not accumulate them in the arguments."""
    own = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
    leaves: list[torch.Tensor] = []
    if torch.is_grad_enabled():
        needing = (n for n, x in enumerate(args) if getattr(x, "requires_grad", False))
        leaves = [own[n].requires_grad_() for n in needing]
    if not leaves:
        return lambda: run(*own)
    tangents: dict[int, torch.Tensor] = {}

    def step() -> object:
        results = enumerate(run(*own))
        flow = {n: r for n, r in results if isinstance(r, torch.Tensor) and r.requires_grad}
        for n, r in flow.items():
            if n not in tangents:
                tangents[n] = torch.ones_like(r)
        if not flow:
            return None
        gradients = [tangents[n] for n in flow]
        return torch.autograd.grad([*flow.values()], leaves, gradients, allow_unused=True)

    return step


def _device(inputs: Sequence[Any]) -> torch.device | None:
    """Return the device to wait for: an accelerator rather than the host."""
    devices = [x.device for x in inputs if isinstance(x, torch.Tensor)]
    return min(devices, key=lambda d: d.type == HOST, default=None)


def _refusal(function: Any, device: torch.device | None, context: CompilerContext) -> str:
    """Return why a function cannot be measured; empty if it can."""
    if device is None:
        return "it has no tensor as an argument"
    if device.type not in context.targets:
        return f"there is no target for {device.type}"
    for node in nodes_of(function):
        called = node.target
        if node.op == "call_function" and (not is_torch_function(called) or _has_effects(called)):
            return f"it calls {called}, which may have side effects"
    return ""


def _has_effects(called: Any) -> bool:
    """Return whether a function of PyTorch runs arbitrary code, or communicates."""
    higher = isinstance(called, torch._ops.HigherOrderOperator)
    return higher or str(getattr(called, "__module__", "")).startswith("torch.distributed")


def _possible(args: Sequence[Any], device: DeviceInterface) -> bool:
    """Return whether extra calls on these arguments go unnoticed: no transform, mode or hook sees
    them, and nothing is being captured."""
    plain = all(type(x) in _PLAIN for x in args if isinstance(x, torch.Tensor))
    return (
        plain
        and forward_ad._current_level < 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and not torch._C._len_torch_dispatch_stack()
        and _top_saved_tensors_default_hooks(True) is None
        and not device.capturing()
    )
