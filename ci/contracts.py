"""What the results of PyTorch's functions are worth, found by lowering PyTorch's own samples.

Each sample is lowered twice: as the default mode does, and with eager's bits, whose reasons for
calls of ATen say where a kernel may round otherwise.
"""

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db

from gyrator.targets.cpu import cpu_target
from gyrator_ir.loop.nodes import Extern
from gyrator_ir.modes import Numerics
from gyrator_lowering import LoweringOptions, lower
from gyrator_lowering.decompositions import default_decompositions, exact_decompositions

Run = Callable[..., Any]

_OTHER = re.compile(r"kernels compute (.*) with other bits than ATen")
_TARGETS = {"cpu": cpu_target("avx2", 1)}


def contracts(names: Collection[str] = ()) -> list[list[str]]:
    """Return, for each function of `float32`, or only these: its name, the calls that it makes by
    default, and what in its kernels may round otherwise than eager does."""
    numerics = [
        (default_decompositions(), Numerics.EAGER),
        (exact_decompositions(), Numerics.BITWISE),
    ]
    rows: dict[str, list[str]] = {}
    for name, run, tensors in _samples(names):
        try:
            default, exact = (_calls(run, tensors, *settings) for settings in numerics)
        except Exception:  # what cannot be traced or lowered has no row
            continue
        by = ", ".join(f"`{op}`" for op in sorted(default)) or "kernels"
        other = sorted({_why(reason) for op, reason in exact.items() if op not in default})
        rows.setdefault(name, [f"`{name}`", by, ", ".join(other) or "eager's bits"])
    return [rows[name] for name in sorted(rows)]


def _why(reason: str) -> str:
    match = _OTHER.match(reason)
    return match[1] if match else "its formula"


def _calls(
    run: Run, tensors: Sequence[torch.Tensor], decompositions: Any, numerics: Numerics
) -> Mapping[str, str]:
    """Return the ops that a function calls, and why."""
    plain = make_fx(run, tracing_mode="fake")(*tensors)  # calls of composite ops write in place
    functional = make_fx(torch.func.functionalize(plain), decompositions, tracing_mode="fake")
    program = lower(functional(*tensors), LoweringOptions(numerics=numerics), _TARGETS)
    return {o.target: o.reason for o in program.operations if isinstance(o, Extern)}


def _samples(names: Collection[str]) -> Iterator[tuple[str, Run, Sequence[torch.Tensor]]]:
    """Return the first sample of each function, as a function of tensors alone."""
    for info in op_db:
        if torch.float32 not in info.dtypes or (names and info.name not in names):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sample = next(iter(info.sample_inputs("cpu", torch.float32)), None)
            if sample is not None:
                values = (sample.input, *sample.args)
                yield (
                    info.name,
                    partial(_run, info.op, values, sample.kwargs),
                    [v for v in values if isinstance(v, torch.Tensor)],
                )


def _run(op: Run, values: Sequence[Any], kwargs: Mapping[str, Any], *tensors: torch.Tensor) -> Any:
    arguments = iter(tensors)
    return op(*(next(arguments) if isinstance(v, torch.Tensor) else v for v in values), **kwargs)
