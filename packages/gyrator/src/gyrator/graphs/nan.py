"""The option `nan_asserts`: identify the op of a graph that first produces NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import evolve
from torch.fx import GraphModule, Interpreter, Node

from gyrator.graphs.compiled import Boxed, boxed
from gyrator_ir.diagnostics import Diagnostic, NanError
from gyrator_lowering.torch_bridge.origins import Locator

_UNINITIALIZED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty")
"""Ops whose results are uninitialised."""


def naming_op(call: Boxed, gm: GraphModule) -> Boxed:
    """Wrap a program so that, if an assertion finds NaN or infinity, the graph runs op by op on the
    same arguments to identify the first op that produced one.

    Arguments that the graph writes to are copied before each call.
    """
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    changed = [written(node) for node in inputs]

    @boxed
    def run(args: list[Any]) -> Sequence[Any]:
        originals = [a.clone() if w else a for a, w in zip(args, changed, strict=True)]
        try:
            return call(args)
        except NanError as error:
            raise NanError(_with_op(error.diagnostic, gm, originals)) from None

    return run


def _with_op(failure: Diagnostic, gm: GraphModule, args: Sequence[Any]) -> Diagnostic:
    """Return the diagnostic of an assertion, with the op that caused it."""
    search = _Search(gm, "holds 0 NaN" not in failure.message)
    try:
        with torch.no_grad():
            search.run(*args)
    except _FoundError as stop:
        origin = Locator().origin(stop.node)
        line = f"{origin.location}: {origin.code}" if origin.location else ""
        module = f"the module {origin.module}" if origin.module else ""
        op = f"%{origin.node} = {origin.target}, the first op that produces {search.kind}"
        return evolve(failure, provenance=tuple(filter(None, (op, line, module))))
    help = f"op by op the graph produces no {search.kind}: `gyrator bisect` finds the faulty stage"
    return evolve(failure, help=help)


class _FoundError(Exception):
    """Ends the search at a node."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.name)
        self.node = node


class _Search(Interpreter):
    """Runs a graph up to the first op whose results are not finite although its arguments are."""

    def __init__(self, gm: GraphModule, nan: bool) -> None:
        super().__init__(gm)
        self.nan = nan
        """Whether to search for NaN; otherwise for infinity."""

    @property
    def kind(self) -> str:
        """The kind of value that is searched for."""
        return "NaN" if self.nan else "infinity"

    def run_node(self, n: Node) -> Any:
        operands = (
            [] if n.op != "call_function" else list(_tensors(self.fetch_args_kwargs_from_env(n)))
        )
        before = any(map(self._has, operands))
        result = super().run_node(n)
        if n.op != "call_function" or before or getattr(n.target, "_opname", "") in _UNINITIALIZED:
            return result
        # An op that writes to an argument may not return it.
        if any(map(self._has, (*_tensors(result), *operands))):
            raise _FoundError(n)
        return result

    def _has(self, tensor: torch.Tensor) -> bool:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return False
        wide = tensor.float() if tensor.itemsize == 1 else tensor  # isnan lacks 8-bit floats
        mask = torch.isnan(wide) if self.nan else torch.isinf(wide)
        return bool(mask.any())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for leaf in torch.utils._pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def written(node: Node) -> bool:
    """Return whether a graph writes to a tensor, or to a view of it."""
    return any(_writes(user, node) for user in node.users)


def _writes(user: Node, node: Node) -> bool:
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return user.op != "output"  # a higher-order op may do anything
    if schema.is_mutable and node in user.args[:1]:
        return True
    return any(r.alias_info is not None for r in schema.returns) and written(user)
