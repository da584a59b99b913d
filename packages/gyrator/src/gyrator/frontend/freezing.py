"""Calls of graphs whose parameters are known: constants are computed at the first call, and again
when a parameter has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any
from weakref import WeakValueDictionary

import torch
from attrs import define, field, frozen
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.engine.compiled import Boxed, untraced
from gyrator.frontend.fallback import warn_fallback
from gyrator_ir.diagnostics import GyratorError
from gyrator_lowering.folding import Folding

_KEPT = 4
"""Sets of parameters, as of several models of one class, whose constants a graph keeps."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_POINTS = (torch.int8, torch.int16, torch.int32, torch.int64)
"""Types of zero points."""
_STORAGE = torch.Tensor.untyped_storage
_VERSION: Callable[[torch.Tensor], int] = attrgetter("_version")


def known_inputs(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> frozenset[int]:
    """Return the places of Dynamo's inputs that are parameters or buffers of modules.

    Those made in inference mode count no writes, and are left out.
    """
    nodes = gm.graph.find_nodes(op="placeholder")
    return frozenset(
        place
        for place, (node, x) in enumerate(zip(nodes, inputs, strict=False))
        if type(x) in _PLAIN and (type(x) is torch.nn.Parameter or _static(node))
        if x.layout is torch.strided and not (x.is_inference() or x.is_conj() or x.is_neg())
    )


def zero_inputs(inputs: Sequence[Any], places: frozenset[int]) -> frozenset[int]:
    """Return which of the inputs at some places are integers that are all zero, as zero points."""
    return frozenset(
        place
        for place in places
        if (x := inputs[place]).dtype in _POINTS and x.dim() < 2 and _is_zero(x)
    )


def _is_zero(x: torch.Tensor) -> bool:
    if isinstance(x, FakeTensor):
        return False
    with _disable_current_modes():
        return not x.any()


class NotZeroError(GyratorError):
    """Integers are no longer zero that a program takes for zero."""

    @classmethod
    def of_point(cls) -> NotZeroError:
        """Return the error (GY-COMPILE-004)."""
        return cls.of(
            "GY-COMPILE-004",
            "zero points of a weight, which were all zero when it was compiled, are not",
            help="call `torch.compiler.reset()` once the zero points have been set",
        )


def or_eagerly(run: Callable[..., Any], eager: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls a frozen graph, and the user's own where it does not hold any more."""

    def call(*args: Any) -> Any:
        try:
            return run(*args)
        except NotZeroError as error:
            warn_fallback(error, "as the user wrote it")
        return eager(*args)

    return untraced(call)


def _static(node: torch.fx.Node) -> bool:
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


@frozen(eq=False)
class Constants:
    """The constants of a set of tensors, as they were."""

    given: tuple[torch.Tensor, ...]
    versions: list[int]
    addresses: list[int]
    values: list[Any]

    @classmethod
    def of(cls, folding: Folding, given: Sequence[torch.Tensor]) -> Constants:
        """Compute them.

        Raises:
            NotZeroError: where zero points are not zero.
        """
        points = [given[folding.given.index(place)] for place in folding.zeros]
        if not all(map(_is_zero, points)):
            raise NotZeroError.of_point()
        autocast = torch._C._DisableAutocast()
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad(), autocast:
            values = folding.constants(given)
        versions, addresses = list(map(_VERSION, given)), list(map(torch.Tensor.data_ptr, given))
        return cls(tuple(given), versions, addresses, values)

    @property
    def bytes(self) -> int:
        """Memory that they take; views of the parameters take none."""
        plain = [v for v in self.values if v.layout is torch.strided]
        storages = {s.data_ptr(): s.nbytes() for s in map(_STORAGE, plain)}
        for t in self.given:
            storages.pop(_STORAGE(t).data_ptr(), None)
        packed = (v for v in self.values if v.layout is torch._mkldnn)  # type: ignore[attr-defined]
        total: int = sum(storages.values()) + sum(map(torch.ops.mkldnn._nbytes, packed))
        return total

    def hold(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether they are those of the very tensors, with nothing written to them since."""
        return (
            all(map(is_, given, self.given))
            and list(map(_VERSION, given)) == self.versions
            and list(map(torch.Tensor.data_ptr, given)) == self.addresses
        )


@define(eq=False)
class SharedConstants:
    """The constants of all graphs of a session: those of one model are shared by graphs for several
    sizes."""

    _found: WeakValueDictionary[tuple[str, tuple[int, ...]], Constants] = field(
        factory=WeakValueDictionary
    )
    _lock: threading.Lock = field(factory=threading.Lock)

    @property
    def bytes(self) -> int:
        """Memory that they take beside the parameters."""
        with self._lock:
            return sum(found.bytes for found in self._found.values())

    def of(self, folding: Folding, text: str, given: Sequence[torch.Tensor]) -> Constants:
        """Return the constants of tensors, computed if need be; `text` is the folding's own."""
        key = text, tuple(map(id, given))
        with self._lock:
            found = self._found.get(key)
            if found is None or not found.hold(given):
                found = self._found[key] = Constants.of(folding, given)
            return found


def with_constants(folding: Folding, run: Boxed, shared: SharedConstants) -> Boxed:
    """Return what runs a graph that is given its constants; it takes all inputs of the graph."""
    given, kept = folding.given, folding.kept
    text = repr((folding.steps, folding.results, folding.zeros))
    known: tuple[Constants, ...] = ()

    def call(args: list[Any]) -> Sequence[Any]:
        nonlocal known
        tensors = [args[k] for k in given]
        for found in known:
            if found.hold(tensors):
                break
        else:
            found = shared.of(folding, text, tensors)
            others = (c for c in known if not all(map(is_, tensors, c.given)))
            known = (found, *others)[:_KEPT]
        rest = [args[k] for k in kept]
        args.clear()
        return run(rest + found.values)

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
    return call
