"""Ways to call a part of a program as a function of its own.

Consecutive statements that end in the same mark, `# checkpoint 1` or `# vmap.no_grad 2`, are the
body of a function of the tensors that they read. It is called by the function of this module that
the mark names; of two, the second is called by the first.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

Part = Callable[..., tuple[Tensor, ...]]

VARIABLE = re.compile(r"\b[vx]\d+\b")
"""The name of a tensor in a statement."""
_ASSIGNED = re.compile(r"(v\d+) = ")
_MARK = re.compile(r"  # ([\w.]+) (\d+)$")


def checkpoint(part: Part, *tensors: Tensor) -> Any:
    """Compute what the backward pass needs of a part again."""
    return torch.utils.checkpoint.checkpoint(part, *tensors, use_reentrant=False)


def no_grad(part: Part, *tensors: Tensor) -> Any:
    """Run a part without recording gradients."""
    with torch.no_grad():
        return part(*tensors)


def cond(part: Part, *tensors: Tensor) -> Any:
    """Run a part as both branches of a choice."""
    return torch.cond(tensors[0].sum().abs() > 1, part, part, tensors)


def vmap(part: Part, *tensors: Tensor) -> Any:
    """Run a part for two equal rows, and return the results of the second one."""
    rows = torch.vmap(part, randomness="different")(*(torch.stack([t, t]) for t in tensors))
    return tuple(row[1] for row in rows)


def vjp(part: Part, *tensors: Tensor) -> Any:
    """Run a part whose gradient, by `torch.func`, is added to each floating result."""
    results, pull, *_ = torch.func.vjp(part, *tensors)
    total = sum(g.sum() for g in pull(results) if g.is_floating_point())
    return tuple(r + total.to(r.dtype) if r.is_floating_point() else r for r in results)


def function(part: Part, *tensors: Tensor) -> Any:
    """Run a part as an `autograd.Function` with a gradient of its own."""
    return _Function.apply(part, *tensors)  # type: ignore[no-untyped-call]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Part, *tensors: Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        return part(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        total = sum(g.real.sum() for g in gradients if g is not None)
        pairs = zip(ctx.needs_input_grad[1:], ctx.saved_tensors, strict=True)
        return (None, *((t * total).to(t.dtype) if needs else None for needs, t in pairs))


CALLS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    call.__name__: call for call in (checkpoint, no_grad, cond, vmap, vjp, function)
})  # fmt: skip


def marked(statement: str, ways: Sequence[str], number: int) -> str:
    """Return a statement with the mark of a part."""
    return f"{statement}  # {'.'.join(ways)} {number}"


def unmarked(statement: str) -> str:
    """Return a statement without its mark."""
    return _MARK.sub("", statement)


def mark_of(statement: str) -> str:
    """Return the mark of a statement, or nothing."""
    mark = _MARK.search(statement)
    return "" if mark is None else mark[0]


def with_plainer_parts(statements: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the statements with one part called in fewer ways, or made no part."""
    for mark in dict.fromkeys(filter(None, map(mark_of, statements))):
        ways = mark.split()[1].split(".")
        for fewer in ("", *(ways if len(ways) > 1 else ())):
            new = fewer and mark.replace(".".join(ways), fewer)
            yield tuple(unmarked(s) + new if mark_of(s) == mark else s for s in statements)


def assigned(statement: str) -> str:
    """Return the variable that a statement assigns, or nothing."""
    assignment = _ASSIGNED.match(statement)
    return "" if assignment is None else assignment[1]


def lines_of(statements: Sequence[str], results: Sequence[str]) -> list[str]:
    """Return the lines of a program: its statements, with calls of its parts."""
    lines: list[str] = []
    rest = list(statements)
    for mark, group in groupby(statements, mark_of):
        body = [unmarked(s) for s in group]
        del rest[: len(body)]
        if not mark:
            lines += body
            continue
        assignments = [name for name in map(assigned, body) if name]
        read = dict.fromkeys(n for s in body for n in VARIABLE.findall(s) if n not in assignments)
        names = {*results, *(n for s in rest for n in VARIABLE.findall(s))}
        returned = "".join(f"{name}, " for name in assignments if name in names)
        ways, number = mark.split()[1:]
        call = f"part{number}"
        lines += [f"def {call}({', '.join(read)}):", *(f"    {s}" for s in body)]
        lines.append(f"    return ({returned.strip()})")
        first, *others = ways.split(".")
        for other in reversed(others):
            call = f"partial({other}, {call})"
        called = f"{first}({', '.join([call, *read])})"
        lines.append(f"{returned.strip()} = {called}" if returned else called)
    return lines


NAMES: Mapping[str, Any] = MappingProxyType({**CALLS, "partial": partial})
"""What calls of parts name."""
