"""What goes wrong with one graph: an error, a wrong result, a slow one, the end of the process."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal

import torch
from attrs import evolve, frozen
from torch import Tensor

from gyrator.engine.compiled import Boxed
from gyrator.options import make_options
from gyrator.reports.records import GraphRecord
from gyrator.repro.example import Example
from gyrator.session import Session
from gyrator.targets import TargetDefinition
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.passes import NO_EDITS, PassEdits
from gyrator_ir.target import Target
from gyrator_ir.types import HOST
from gyrator_runtime.profile import compare
from gyrator_runtime.warn import GyratorWarning

Kind = Literal["", "error", "wrong", "slow", "death", "hang", "not run"]
"""`death`: the process ended. `hang`: it took longer than it may. `not run`: PyTorch itself refuses
the graph."""

_TOLERANCE = {
    torch.float32: 2e-5,
    torch.float64: 1e-9,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
    torch.complex64: 4e-5,
    torch.complex128: 1e-9,
}
"""A result as near to eager's as this, relative and absolute, needs no float64."""
_SLACK = 4.0
"""How many times eager's own distance from float64 a result may be away from it."""
_SLOW = 1.3
"""How many times eager's time is slow."""
_SAMPLES = 15


@frozen
class Failure:
    """What was found; an empty kind for nothing."""

    kind: Kind = ""
    code: str = ""
    """The code of an error, or its type."""
    detail: str = ""

    def alike(self, other: "Failure") -> bool:
        """Whether two graphs fail in the same way."""
        return (self.kind, self.code) == (other.kind, other.code)

    def __str__(self) -> str:
        if not self.kind:
            return "agrees with eager mode"
        return ": ".join(filter(None, (self.kind, self.code, self.detail)))


def find_failure(
    text: str,
    options: Mapping[str, Any],
    timed: bool = False,
    seed: int = 0,
    passes: PassEdits = NO_EDITS,
) -> Failure:
    """Compile the text of an ATen graph, run it, and compare with eager mode.

    A graph that is left to PyTorch counts as an error. `timed` looks for slowness too.
    """
    try:
        example = Example.read(text, seed)
        expected = example.eager()
    except Exception as error:
        return Failure("not run", type(error).__name__, _first_line(error))
    records: list[GraphRecord] = []
    chosen = make_options(options={"cache": False, "progress": False, **options})
    with Session(options=chosen, passes=passes, observer=records.append) as session:
        try:
            engine = evolve(session.engine(session.options), keeps_repros=False)
            with warnings.catch_warnings(category=GyratorWarning, action="ignore"):
                call = engine.compile(deepcopy(example.gm), "inference").call
            lost = next((r.fallback for r in records if r.fallback), "")
            if lost:
                return Failure("error", lost.partition(":")[0], lost.partition("\n")[0])
            given = example.arguments()
            results = [*call(list(given)), *given]
        except Exception as error:
            return failed(error)
        found = difference(results, expected, example)
        if found or not timed:
            return Failure("wrong", "", found) if found else Failure()
        return _slowness(example, call, engine.targets)


def failed(error: Exception) -> Failure:
    """Return what an exception says."""
    if isinstance(error, GyratorError):
        return Failure("error", error.diagnostic.code, error.diagnostic.message)
    return Failure("error", type(error).__name__, _first_line(error))


def difference(ours: list[Any], expected: list[Any], example: Example) -> str:
    """Say where results are not what eager mode and float64 allow; nothing where they are.

    The results of a graph that draws random numbers are compared by their forms alone.
    """
    if len(ours) != len(expected):
        return f"{len(ours)} results, eager mode has {len(expected)}"
    exact: list[Any] | None = None
    for k, (a, b) in enumerate(zip(ours, expected, strict=True)):
        if not isinstance(b, Tensor):
            if a != b:
                return f"result {k} is {a!r}, in eager mode {b!r}"
            continue
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            form = f"{a.dtype} {list(a.shape)}, in eager mode {b.dtype} {list(b.shape)}"
            return f"result {k} is {form}"
        if example.random or _near(a, b):
            continue
        if exact is None:
            exact = example.exact() or []
        if not exact or not _as_exact(a, b, exact[k]):
            return f"result {k}: {_worst(a, b)}"
    return ""


def _near(a: Tensor, b: Tensor) -> bool:
    tolerance = _TOLERANCE.get(a.dtype, 0.0)
    a, b = _comparable(a), _comparable(b)
    return bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


def _as_exact(a: Tensor, b: Tensor, exact: Any) -> bool:
    """Whether a result is about as near to the exact one as eager mode's."""
    if not isinstance(exact, Tensor) or not (a.is_floating_point() or a.is_complex()):
        return False
    if exact.shape != a.shape:
        return False
    whole = torch.isfinite(exact) & torch.isfinite(b)
    if not torch.equal(torch.isfinite(a) & whole, whole):
        return False
    wide = exact.dtype
    ours, eager = ((x.to(wide) - exact)[whole].abs() for x in (a, b))
    scale = exact[whole].abs().max() if bool(whole.any()) else torch.zeros(())
    least = torch.finfo(a.dtype).eps * scale
    return bool((ours <= _SLACK * torch.maximum(eager.max(), least)).all()) if len(ours) else True


def _comparable(value: Tensor) -> Tensor:
    value = value.detach().resolve_conj().resolve_neg()
    if value.is_complex():
        return value.to(torch.complex128)
    return value.to(torch.float64) if value.is_floating_point() else value.to(torch.int64)


def _worst(a: Tensor, b: Tensor) -> str:
    a, b = _comparable(a), _comparable(b)
    wrong = ~((a == b) | (a.isnan() & b.isnan()))
    apart = torch.where(wrong, (a - b).abs().nan_to_num(torch.inf), 0.0)
    place = tuple(int(i) for i in torch.unravel_index(apart.argmax(), apart.shape))
    count = int(wrong.sum())
    return f"{a[place]} at {place}, in eager mode {b[place]}; {count} of {a.numel()} differ"


def _slowness(
    example: Example, call: Boxed, targets: Mapping[str, tuple[TargetDefinition, Target]]
) -> Failure:
    devices = [v.device.type for v in example.inputs if isinstance(v, Tensor)]
    definition, target = targets[next((d for d in devices if d != HOST), HOST)]
    device = definition.device(target)
    runs = {
        "ours": lambda: call(example.arguments()),
        "eager": lambda: example.gm(*example.arguments()),
    }
    times = compare(runs, device, samples=_SAMPLES, warmup=3)
    ratio = times["ours"].least / times["eager"].least
    return Failure("slow", "", f"{ratio:.2f} of eager mode's time") if ratio > _SLOW else Failure()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
