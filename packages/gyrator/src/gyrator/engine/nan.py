"""Which op of a graph first gives NaN: what `nan_asserts` adds to a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import evolve
from torch.fx import GraphModule, Interpreter, Node

from gyrator.engine.compiled import Boxed
from gyrator_ir.diagnostics import Diagnostic, GyratorError
from gyrator_lowering.torch_bridge.origins import Locator

_CODE = "GY-RUNTIME-003"
_UNSET = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty")
"""Ops whose results hold anything."""


def naming_op(call: Boxed, gm: GraphModule) -> Boxed:
    """Return a program that, where an assertion of its finds NaN or infinity, runs the graph that
    it was made of on the same arguments, op by op, and says which op is the first to give one.

    Arguments that the graph writes to are copied ahead of each call.
    """
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    changed = [written(node) for node in inputs]

    def run(args: list[Any]) -> Sequence[Any]:
        kept = [a.clone() if w else a for a, w in zip(args, changed, strict=True)]
        try:
            return call(args)
        except GyratorError as error:
            if error.diagnostic.code != _CODE:
                raise
            raise type(error)(_named(error.diagnostic, gm, kept)) from None

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
    return run


def _named(said: Diagnostic, gm: GraphModule, args: Sequence[Any]) -> Diagnostic:
    """Return what an assertion said, with the op that it stands for."""
    search = _Search(gm, "holds 0 NaN" not in said.message)
    try:
        with torch.no_grad():
            search.run(*args)
    except _FoundError as found:
        origin = Locator().origin(found.node)
        line = f"{origin.location}: {origin.code}" if origin.location else ""
        module = f"the module {origin.module}" if origin.module else ""
        op = f"%{origin.node} = {origin.target}, the first op to give {search.kind}"
        return evolve(said, provenance=tuple(filter(None, (op, line, module))))
    help = f"op by op the graph gives no {search.kind}: `gyrator bisect` finds the stage at fault"
    return evolve(said, help=help)


class _FoundError(Exception):
    """The search has come to its end."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.name)
        self.node = node


class _Search(Interpreter):
    """Runs a graph up to the first op whose results are not finite though its arguments are."""

    def __init__(self, gm: GraphModule, nan: bool) -> None:
        super().__init__(gm)
        self.nan = nan
        """Whether to look for NaN, and else for infinity."""

    @property
    def kind(self) -> str:
        """What is looked for."""
        return "NaN" if self.nan else "infinity"

    def run_node(self, n: Node) -> Any:
        given = (
            [] if n.op != "call_function" else list(_tensors(self.fetch_args_kwargs_from_env(n)))
        )
        before = any(map(self._has, given))
        result = super().run_node(n)
        if n.op != "call_function" or before or getattr(n.target, "_opname", "") in _UNSET:
            return result
        # An op that writes to an argument need not return it.
        if any(map(self._has, (*_tensors(result), *given))):
            raise _FoundError(n)
        return result

    def _has(self, tensor: torch.Tensor) -> bool:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return False
        wide = tensor.float() if tensor.itemsize == 1 else tensor  # 8-bit floats have no test
        found = torch.isnan(wide) if self.nan else torch.isinf(wide)
        return bool(found.any())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for leaf in torch.utils._pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def written(node: Node) -> bool:
    """Whether a graph writes to a tensor, or to a view of it."""
    return any(_writes(user, node) for user in node.users)


def _writes(user: Node, node: Node) -> bool:
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return user.op != "output"  # a higher-order op may do anything
    if schema.is_mutable and node in user.args[:1]:
        return True
    return any(r.alias_info is not None for r in schema.returns) and written(user)
