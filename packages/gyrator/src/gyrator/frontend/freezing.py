"""Calls of graphs with frozen parameters: constants are computed at the first call, and
recomputed when a parameter has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any
from weakref import WeakValueDictionary

import torch
from attrs import field
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.graphs.compiled import Boxed, boxed, untraced
from gyrator.graphs.fallback import warn_fallback
from gyrator_ir.define import define, frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_lowering.folding import Folding
from gyrator_runtime.native import Recorded, Runner

_CACHED_SETS = 4
"""Number of parameter sets, such as those of several models of one class, whose constants a graph
caches."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ZERO_POINT_DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64)
"""Dtypes of the zero points of quantised tensors."""
_STORAGE = torch.Tensor.untyped_storage


def frozen_inputs(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> frozenset[int]:
    """Return the indices of Dynamo's inputs that are parameters or buffers of modules.

    Tensors created in inference mode have no version counter and are excluded.
    """
    nodes = gm.graph.find_nodes(op="placeholder")
    return frozenset(
        index
        for index, (node, x) in enumerate(zip(nodes, inputs, strict=False))
        if type(x) in _PLAIN and (type(x) is torch.nn.Parameter or _static(node))
        if x.layout is torch.strided and not (x.is_inference() or x.is_conj() or x.is_neg())
    )


def zero_inputs(inputs: Sequence[Any], indices: frozenset[int]) -> frozenset[int]:
    """Return the indices among `indices` of integer inputs that are all zero, such as zero
    points."""
    return frozenset(
        index
        for index in indices
        if (x := inputs[index]).dtype in _ZERO_POINT_DTYPES and x.dim() < 2 and _is_zero(x)
    )


def _is_zero(x: torch.Tensor) -> bool:
    if isinstance(x, FakeTensor):
        return False
    with _disable_current_modes():
        return not x.any()


class NotZeroError(GyratorError):
    """Integers that a program assumes to be zero are not zero."""

    @classmethod
    def of_point(cls) -> NotZeroError:
        """Return the error (GY-COMPILE-004)."""
        return cls.of(
            "GY-COMPILE-004",
            "the zero points of a weight were zero when the graph was compiled, but are not now",
            help="call `torch.compiler.reset()` once the zero points have been set",
        )


def or_eagerly(run: Callable[..., Any], eager: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callable that runs a frozen graph, or the user's function if its assumptions
    fail."""

    def call(*args: Any) -> Any:
        try:
            return run(*args)
        except NotZeroError as error:
            warn_fallback(error, "as written by the user")
        return eager(*args)

    return untraced(call)


def _static(node: torch.fx.Node) -> bool:
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


@frozen(eq=False)
class Constants:
    """The constants computed from a set of tensors, and the state of these at that time."""

    tensors: Recorded
    values: list[Any]

    @classmethod
    def of(cls, folding: Folding, tensors: Sequence[torch.Tensor]) -> Constants:
        """Compute the constants.

        Raises:
            NotZeroError: if zero points are not zero.
        """
        points = [tensors[folding.sources.index(index)] for index in folding.zeros]
        if not all(map(_is_zero, points)):
            raise NotZeroError.of_point()
        autocast = torch._C._DisableAutocast()
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad(), autocast:
            values = folding.constants(tensors)
        return cls(Recorded.of(tensors), values)

    @property
    def bytes(self) -> int:
        """Memory in bytes of the constants, excluding views of the parameters."""
        plain = [v for v in self.values if v.layout is torch.strided]
        storages = {s.data_ptr(): s.nbytes() for s in map(_STORAGE, plain)}
        for t in self.tensors.tensors:
            storages.pop(_STORAGE(t).data_ptr(), None)
        packed = (v for v in self.values if v.layout is torch._mkldnn)  # type: ignore[attr-defined]
        total: int = sum(storages.values()) + sum(map(torch.ops.mkldnn._nbytes, packed))
        return total


@define(eq=False)
class SharedConstants:
    """The constants of all graphs of a session: graphs of one model for different sizes share
    them."""

    _constants: WeakValueDictionary[tuple[str, tuple[int, ...]], Constants] = field(
        factory=WeakValueDictionary
    )
    _lock: threading.Lock = field(factory=threading.Lock)

    @property
    def bytes(self) -> int:
        """Memory in bytes of the constants, in addition to the parameters."""
        with self._lock:
            return sum(constants.bytes for constants in self._constants.values())

    def of(self, folding: Folding, text: str, tensors: Sequence[torch.Tensor]) -> Constants:
        """Return the constants of tensors, computed if necessary; `text` identifies the folding."""
        key = text, tuple(map(id, tensors))
        with self._lock:
            constants = self._constants.get(key)
            if constants is None or not constants.tensors.match(tensors):
                constants = self._constants[key] = Constants.of(folding, tensors)
            return constants


def with_constants(
    folding: Folding, run: Boxed, shared: SharedConstants, runner: Callable[[], Runner]
) -> Boxed:
    """Return a callable that takes all inputs of a graph, and runs it with its constants."""
    frozen, variable = folding.sources, folding.remaining
    text = repr((folding.steps, folding.results, folding.zeros))
    cached: tuple[tuple[Callable[[list[Any]], bool], Constants], ...] = ()

    def recomputed(args: list[Any]) -> Constants:
        nonlocal cached
        tensors = [args[k] for k in frozen]
        constants = shared.of(folding, text, tensors)
        older = (each for each in cached if not all(map(is_, tensors, each[1].tensors.tensors)))
        newest = runner().unchanged(constants.tensors, frozen), constants
        cached = (newest, *older)[:_CACHED_SETS]
        return constants

    @boxed
    def call(args: list[Any]) -> Sequence[Any]:
        for unchanged, constants in cached:
            if unchanged(args):
                values = constants.values
                break
        else:
            values = recomputed(args).values
        rest = [args[k] for k in variable]
        args.clear()
        return run(rest + values)

    return call
