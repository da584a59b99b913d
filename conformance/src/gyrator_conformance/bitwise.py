"""`python -m gyrator_conformance.bitwise`: compare `numerics="bitwise"` with eager.

Each model runs on fresh inputs in inference and in training; results, buffers and gradients must
equal eager's bit for bit. Calls are timed alternately with the default numerics and with eager
mode, in each order as often: a call takes up to a quarter longer if the one before it used other
code. On a CPU the measure is the processor time of one thread, which is robust against other load.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import cycle, islice, permutations
from math import exp, inf, log
from statistics import fmean

import torch
from attrs import define, frozen
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gyrator.session import Session
from gyrator_conformance.cells import Keyword
from gyrator_conformance.models import Model, all_models
from gyrator_conformance.models.collective import start_group
from gyrator_conformance.profiles import Chosen, find_target
from gyrator_ir.types import HOST

_ROUNDS = 30


@frozen
class Row:
    """One model in one mode."""

    name: str
    training: bool
    differing: int
    """The number of tensors that differ from eager's."""
    tensors: int
    ratio: float
    """The time of a call divided by the time with default numerics."""
    over_eager: float
    """The time of a call divided by eager's."""


def compare(model: Model, training: bool, chosen: Chosen, rounds: int = _ROUNDS) -> Row:
    """Run a model in eager mode, compiled with `numerics="bitwise"`, and compiled with the
    defaults."""
    device = chosen.target.device
    if model.family == "collective":
        start_group(chosen.group)
    torch.manual_seed(0)
    base = model.build().train(training).to(device)
    inputs = model.inputs(torch.Generator().manual_seed(1), model.size)
    arguments = [t.to(device) for t in inputs]
    runs: list[Run] = []
    for numerics in ("", "bitwise", "eager"):
        compared = deepcopy(base)
        call: Callable[..., object] = compared
        if numerics:
            options = {"numerics": numerics, "strict": True, "progress": False}
            session = Session(options=options, config=chosen.config)
            torch._dynamo.reset()
            call = torch.compile(compared, backend=session.backend, dynamic=False)
        runs.append(Run(compared, call, arguments, training))
    eager, bitwise, default = runs
    pairs = [(eager.visible(), bitwise.visible()) for _ in range(2)]
    results = [(a, b) for want, got in pairs for a, b in zip(want, got, strict=True)]
    differing = sum(not same(a, b) for a, b in results)
    default.visible()
    least = _least([bitwise.once, default.once, eager.once], rounds)
    return Row(
        model.name, training, differing, len(results), least[0] / least[1], least[0] / least[2]
    )


@define
class Run:
    """Calls of a module, in eager mode or compiled."""

    module: nn.Module
    call: Callable[..., object]
    inputs: Sequence[Tensor]
    training: bool

    def visible(self) -> list[Tensor]:
        """Return results, buffers and gradients of a call."""
        torch.manual_seed(3)
        self.module.zero_grad(set_to_none=True)
        arguments = [self._leaf(t) for t in self.inputs]
        results = self._call(arguments)
        gradients = [t.grad for t in (*self.module.parameters(), *arguments) if t.grad is not None]
        return [t.detach().clone() for t in (*results, *self.module.buffers(), *gradients)]

    def once(self) -> float:
        """Return the seconds of a call: processor time of this thread, or wall time until the
        device is idle."""
        arguments = [self._leaf(t) for t in self.inputs]
        self.module.zero_grad(set_to_none=True)
        if all(t.is_cpu for t in arguments):
            start = time.thread_time()
            self._call(arguments)
            return time.thread_time() - start
        torch.accelerator.synchronize()
        start = time.perf_counter()
        self._call(arguments)
        torch.accelerator.synchronize()
        return time.perf_counter() - start

    def _leaf(self, tensor: Tensor) -> Tensor:
        return tensor.clone().requires_grad_(self.training and tensor.is_floating_point())

    def _call(self, arguments: Sequence[Tensor]) -> list[Tensor]:
        with torch.set_grad_enabled(self.training):
            results = [t for t in tree_leaves(self.call(*arguments)) if isinstance(t, Tensor)]
        if self.training:
            parts = [t for t in results if t.is_floating_point() and t.requires_grad]
            torch.autograd.backward(parts, [torch.cos(t.detach()) for t in parts])
        return results


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors have equal elements, including NaN at the same indices."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _least(calls: Sequence[Callable[[], float]], rounds: int) -> list[float]:
    """Return the minimum time of each function, called alternately on one thread, in each order in
    turn."""
    threads, least = torch.get_num_threads(), [inf] * len(calls)
    orders = cycle(permutations(range(len(calls))))
    torch.set_num_threads(1)
    try:
        for order in islice(orders, max(rounds, 1)):
            for k in order:
                least[k] = min(least[k], calls[k]())
    finally:
        torch.set_num_threads(threads)
    return least


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; return 0 if every model is bitwise equal to eager, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m gyrator_conformance.bitwise",
        description='Compare models compiled with numerics="bitwise" with eager, bit for bit.',
    )
    parser.add_argument("--target", default=HOST, help=f"name of a target, default {HOST}")
    parser.add_argument("-k", dest="keyword", default="", help="expression over names of models")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="calls that are timed")
    args = parser.parse_args(arguments)
    keyword, chosen = Keyword.read(args.keyword), find_target(args.target)
    console = Console(width=None if sys.stdout.isatty() else 100)
    rows: list[Row] = []
    for model in all_models().values():
        for training in (False, True) if model.trains else (False,):
            if keyword.matches(f"{model.name}/{'training' if training else 'inference'}"):
                rows.append(compare(model, training, chosen, args.rounds))
                if rows[-1].differing:
                    console.print(rows[-1])
    table = Table("model", "mode", "tensors that differ", "time over default's", "over eager's")
    for row in sorted(rows, key=lambda r: (-r.differing, -r.ratio)):
        mode = "training" if row.training else "inference"
        differing = f"{row.differing} of {row.tensors}"
        table.add_row(row.name, mode, differing, f"{row.ratio:.2f}", f"{row.over_eager:.2f}")
    console.print(table)
    if rows:
        default, eager = (
            exp(fmean(map(log, ratios)))
            for ratios in zip(*((r.ratio, r.over_eager) for r in rows), strict=True)
        )
        equal = sum(not row.differing for row in rows)
        console.print(f"{equal} of {len(rows)} equal; in the mean {default:.2f} of the default's")
        console.print(f"time, {eager:.2f} of eager's")
    return int(any(row.differing for row in rows))


if __name__ == "__main__":
    sys.exit(main())
