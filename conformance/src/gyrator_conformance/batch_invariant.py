"""`python -m gyrator_conformance.batch_invariant`: check that rows are the same in any batch.

Each model runs with `numerics="batch_invariant"` on a batch and on slices of it. If eager mode in
`float64` shows that the rows of a result correspond to the rows of the slice, each row must be
equal bit for bit.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from attrs import frozen
from rich.console import Console
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gyrator.session import Session
from gyrator_conformance.bitwise import same
from gyrator_conformance.cells import Keyword
from gyrator_conformance.models import Model, all_models
from gyrator_conformance.profiles import Chosen, find_target
from gyrator_ir.types import HOST

_BATCH = 8
_SLICES = ((0, 1), (5, 7), (2, 5), (1, 8))


@frozen
class Slices:
    """The results of one model's slices."""

    name: str
    rowwise: int
    """The number of results, over all slices, that have one row per row of the batch."""
    differing: int
    """The number of those in which a row depends on other rows."""


def compare(model: Model, chosen: Chosen, numerics: str = "batch_invariant") -> Slices:
    """Run a model on a batch and on slices of it."""
    device = chosen.target.device
    torch.manual_seed(0)
    module = model.build().eval().to(device)
    exact = deepcopy(module).double()
    inputs = [t.to(device) for t in model.inputs(torch.Generator().manual_seed(1), _BATCH)]

    def run(begin: int, end: int) -> tuple[list[Tensor], list[Tensor]]:
        arguments = [t[begin:end].clone() if t.shape[:1] == (_BATCH,) else t for t in inputs]
        torch._dynamo.reset()
        options = {"numerics": numerics, "strict": True, "progress": False}
        session = Session(options=options, config=chosen.config)
        compiled = torch.compile(deepcopy(module), backend=session.backend, dynamic=False)
        return _results(compiled, arguments), _results(deepcopy(exact), _wide(arguments))

    whole, true = run(0, _BATCH)
    rowwise = differing = 0
    for begin, end in _SLICES:
        parts = zip(whole, true, *run(begin, end), strict=True)
        for all_rows, all_true, rows, true_rows in parts:
            if all_rows.shape[:1] == (_BATCH,) and _alike(all_true[begin:end], true_rows):
                rowwise += 1
                differing += not same(all_rows[begin:end], rows)
    return Slices(model.name, rowwise, differing)


def _wide(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.double() if t.is_floating_point() else t for t in tensors]


def _results(call: Callable[..., object], arguments: Sequence[Tensor]) -> list[Tensor]:
    torch.manual_seed(3)
    with torch.no_grad():
        return [t for t in tree_leaves(call(*arguments)) if isinstance(t, Tensor)]


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; return 0 if no row depends on another, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m gyrator_conformance.batch_invariant",
        description="Compare rows of a batch with the same rows in smaller batches, bit for bit.",
    )
    parser.add_argument("--target", default=HOST, help=f"name of a target, default {HOST}")
    parser.add_argument("--numerics", default="batch_invariant", help="the mode that is tried")
    parser.add_argument("-k", dest="keyword", default="", help="expression over names of models")
    args = parser.parse_args(arguments)
    keyword, chosen = Keyword.read(args.keyword), find_target(args.target)
    console = Console(width=None if sys.stdout.isatty() else 100)
    rows: list[Slices] = []
    for model in all_models().values():
        if model.family != "collective" and keyword.matches(f"{model.name}/{model.family}"):
            rows.append(compare(model, chosen, args.numerics))
            row = rows[-1]
            console.print(f"{row.name}: {row.differing} of {row.rowwise} differ")
    bad = sum(row.differing > 0 for row in rows)
    rowwise = sum(row.rowwise > 0 for row in rows)
    console.print(f"{rowwise - bad} of {rowwise} models with rows are independent of other rows")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
