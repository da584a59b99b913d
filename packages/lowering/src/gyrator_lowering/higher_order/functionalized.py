"""Wrappers around ops that write or have side effects: `auto_functionalized`, `with_effects`.

AOTAutograd wraps an op that writes its arguments in a pure op that returns the written tensors.
Lowering calls the original op again, on a copy, or in place if the old values have no other
readers. An op with side effects (printing, raising, communicating) is wrapped so that it passes on
a token. Here it writes the token's buffer, so that the scheduler neither removes nor reorders it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from attrs import evolve, field
from torch.fx import Node

from gyrator_ir.define import define
from gyrator_ir.expr import ONE, ZERO
from gyrator_ir.loop.nodes import Extern, ListArg, Literal
from gyrator_ir.types import HOST, Device, DType
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder, each
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.extern import emit
from gyrator_lowering.rules.view import surely_out_of_bounds
from gyrator_lowering.torch_bridge.graphs import fake_of
from gyrator_lowering.torch_bridge.schema import OpInfo, info_of

_ORDER = "calls with side effects stay in order"
_COPY = torch.ops.aten.copy_.default


def is_token(node: Node) -> bool:
    """Return whether a placeholder is an effect token, for which AOTAutograd passes None."""
    return bool(node.users) and all(
        user.target is torch.ops.higher_order.with_effects and user.args[0] is node
        for user in node.users
    )


@define
class BufferViews:
    """The nodes whose values view each buffer, to find later readers of its old contents."""

    env: Mapping[Node, Any]
    _seen: int = 0
    _nodes: dict[str, list[Node]] = field(factory=dict)
    _order: dict[Node, int] = field(factory=dict)

    def read_after(self, buffer: str, node: Node) -> Iterator[tuple[Node, Node]]:
        """Yield (view, reader) for each reader after `node` of a node that views `buffer`."""
        if not self._order:
            self._order = {n: k for k, n in enumerate(node.graph.nodes)}
        for holder, value in islice(self.env.items(), self._seen, None):
            for name in {v.buffer for v in each(value) if isinstance(v, TensorValue)}:
                self._nodes.setdefault(name, []).append(holder)
        self._seen = len(self.env)
        position = self._order[node]
        for holder in self._nodes.get(buffer, ()):
            for user in holder.users:
                if self._order[user] > position:
                    yield holder, user


@define
class WrappedOps:
    """Lowers the wrapper ops of one graph."""

    b: LoopBuilder
    views: BufferViews

    def with_effects(self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an op with side effects, ordered by its token; return the token and the results."""
        token, op, *rest = args
        info = self._info(op)
        token = token or self._token()
        fakes = tuple(node.meta["val"])[1:][: info.returns]
        used = frozenset(k - 1 for k in self.b.used_results)
        reason = f"{info.name} has side effects"
        return (token, *emit(self.b, info, rest, kwargs, fakes, used, reason, token=token))

    def _token(self) -> TensorValue:
        """Return a new empty tensor that orders calls."""
        b = self.b
        token = b.buffer(Spec(DType.F32, Device(HOST), (ZERO,), (ONE,)))
        op, size = "aten.empty.memory_format", ListArg((Literal(0),))
        b.operations.append(
            Extern(b.op_name(), op, (size,), (), (token.buffer,), reason=_ORDER, origins=b.origin)
        )
        return token

    def auto_functionalized(self, node: Node, op: Any, kwargs: Mapping[str, Any]) -> Any:
        """Call an op on copies of the arguments that it writes; return its results, then the
        copies."""
        info = self._info(op)
        arguments = {k: v for k, v in kwargs.items() if k in info.arguments}
        fakes = node.meta["val"]
        first = max(1, info.returns)
        written: list[Any] = []
        for position in info.writes:
            name = info.arguments[position]
            value = kwargs[name]
            fake: Any = node.kwargs[name]
            if isinstance(value, list):
                pairs = zip(value, fake, strict=True)
                written.append([self._own(node, v, fake_of(f), None) for v, f in pairs])
            else:
                written.append(self._own(node, value, fake_of(fake), first + len(written)))
            arguments[name] = written[-1]
        return (
            *self._results(info, arguments, fakes, f"{info.name} writes its arguments"),
            *written,
        )

    def auto_functionalized_v2(self, node: Node, op: Any, kwargs: Mapping[str, Any]) -> Any:
        """Like `auto_functionalized`, for arguments that are views of base tensors."""
        info = self._info(op)
        arguments = {k: v for k, v in kwargs.items() if k in info.arguments}
        reason = f"{info.name} writes its arguments"
        names = [info.arguments[position] for position in info.writes]
        if any(f"_{name}_dtype" in kwargs for name in names):
            for k, name in enumerate(names):
                arguments[name] = self._empty(node.meta["val"], k)
            return self._results(info, arguments, node.meta["val"], reason)
        fakes = node.meta["val"]
        first = max(1, info.returns)
        bases = [fake_of(base) for base in node.kwargs["_all_bases"]]  # type: ignore[union-attr]
        shared = Counter(v.buffer for v in each(kwargs["_all_bases"]) if v is not None)
        owned = [
            None
            if value is None
            else self._own(node, value, fake, first + k if shared[value.buffer] == 1 else None)
            for k, (value, fake) in enumerate(zip(kwargs["_all_bases"], bases, strict=True))
        ]
        view = _Views(self.b, kwargs, owned, bases)
        for name in names:
            count = kwargs.get(f"_{name}_length")
            arguments[name] = (
                view.of(f"_{name}")
                if count is None
                else [view.of(f"_{name}_{k}") for k in range(count)]
            )
        return (*self._results(info, arguments, fakes, reason), *owned)

    def _info(self, op: Any) -> OpInfo:
        if isinstance(op, torch._ops.OpOverload):
            return info_of(op)
        raise self.b.unsupported(
            "GY-LOWER-001",
            f"{self.b.node.target} of {op}, which is not an op of the dispatcher",
            help=BY_PYTORCH,
        )

    def _results(
        self, info: OpInfo, arguments: Mapping[str, Any], fakes: Any, reason: str
    ) -> tuple[Any, ...]:
        """Emit the call. An op that returns nothing has the single result None."""
        results = emit(
            self.b, info, (), arguments, tuple(fakes)[: info.returns], self.b.used_results, reason
        )
        return results or (None,)

    def _empty(self, fakes: Any, index: int) -> TensorValue:
        out = self.b.spec(fakes[index] if isinstance(fakes, (tuple, list)) else fakes)
        return self.b.pointwise(lambda ops, _: ops.const(0, out.dtype), out)

    def _own(self, node: Node, value: Any, fake: Any, result_index: int | None) -> Any:
        """Return a tensor that may be overwritten: `value` itself if its old contents are not read
        again.

        Args:
            node: the wrapper.
            value: the tensor.
            fake: the fake tensor of eager's copy.
            result_index: the index of the tensor among the wrapper's results; None forces a copy.
        """
        if not isinstance(value, TensorValue):
            return value
        if result_index is not None and self.is_free(node, value, result_index):
            return value.in_memory
        return self.b.copy(value, self.b.spec(fake))

    def is_free(self, node: Node, value: TensorValue, result_key: int | str) -> bool:
        """Return whether a tensor may be overwritten: after `node`, only its own result is read.

        `result_key` is the index, or the keyword, of the tensor among the results of the node.
        """
        if any(
            stride is ZERO and size is not ONE
            for size, stride in zip(value.shape, value.strides, strict=True)
        ):
            return False
        is_external = value.buffer in self.b.external
        is_written_back = False
        for holder, user in self.views.read_after(value.buffer, node):
            if not is_external or user.target is not _COPY or user.args[0] is not holder:
                return False
            source = user.args[1]
            is_written_back = isinstance(source, Node) and source.args == (node, result_key)
            if not is_written_back:
                return False
        return is_written_back or not is_external


@define
class _Views:
    """The views of base tensors that an op's keyword arguments describe."""

    b: LoopBuilder
    kwargs: Mapping[str, Any]
    bases: Sequence[Any]
    fakes: Sequence[Any]

    def of(self, prefix: str) -> Any:
        """Return the argument that the keywords with a prefix describe."""
        kwargs, size = self.kwargs, self.b.symbols.size
        index = kwargs.get(f"{prefix}_base_index")
        if index is None:
            return None
        base: TensorValue = self.bases[index]
        if f"{prefix}_storage_offset" in kwargs:
            shift = size(kwargs[f"{prefix}_storage_offset"]) - size(
                self.fakes[index].storage_offset()
            )
            view = evolve(
                base,
                shape=self.b.symbols.sizes(kwargs[f"{prefix}_size"]),
                strides=self.b.symbols.sizes(kwargs[f"{prefix}_stride"]),
                offset=base.offset + shift,
            )
            if surely_out_of_bounds(view, base):
                raise self.b.unsupported(
                    "GY-LOWER-006",
                    "an op writes outside of the tensor that the graph was given",
                    help="PyTorch runs the op; pass the whole tensor to the model",
                )
            return view
        if f"{prefix}_slice_dim" in kwargs:
            d = kwargs[f"{prefix}_slice_dim"]
            start, end = (size(kwargs[f"{prefix}_slice_{k}"]) for k in ("start", "end"))
            shape = (*base.shape[:d], end - start, *base.shape[d + 1 :])
            return evolve(base, shape=shape, offset=base.offset + start * base.strides[d])
        return base
