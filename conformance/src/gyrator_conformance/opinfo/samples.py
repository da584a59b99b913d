"""Cases: an op of torch's database, an element type, how samples are laid out and compiled."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Literal

import torch
from attrs import frozen
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils import _pytree as pytree

from gyrator_ir.types import HOST

LAYOUTS = ("given", "strided", "channels-last")
Layout = Literal["given", "strided", "channels-last"]

UNWRITTEN = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Ops that return memory to which nothing was written. They run in deterministic mode, in which
eager mode fills it."""
UNORDERED = {
    "argsort": "the order of equal elements, which torch promises with stable=True alone",
    "msort": "the order of equal elements, in its gradients",
    "sort": "the order of equal elements, which torch promises with stable=True alone",
    "topk": "which of equal elements is taken, and their order",
}
"""Ops of which eager mode's vectors, scalars and sorts of short rows have each their own result:
positions are right if the same elements lie there."""


@frozen
class Case:
    """The samples of an op that are compiled alike."""

    op: str
    """Its name, with a dot and that of the variant if it has one."""
    dtype: str
    layout: Layout = "given"
    gradients: bool = False
    dynamic: bool = False
    most: int | None = None
    """Samples to take at most, spread over all."""
    device: str = HOST

    def __str__(self) -> str:
        shapes, mode = ("static", "dynamic")[self.dynamic], ("forward", "gradient")[self.gradients]
        where = "" if self.device == HOST else f"/{self.device}"
        return f"{self.op}/{self.dtype}/{self.layout}/{mode}/{shapes}{where}"


@frozen(eq=False)
class Call:
    """A call of an op: what it is given, flat, and which of that are tensors."""

    op: Callable[..., Any]
    flat: list[Any]
    spec: pytree.TreeSpec

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that it is given."""
        return [v for v in self.flat if isinstance(v, torch.Tensor)]

    def text(self, tensors: Iterator[str], space: dict[str, Any], dynamic: bool) -> str:
        """Return the call as Python text, with the names of its tensors; what else the text names
        is put into `space`, also integers if sizes are `dynamic`."""

        def named(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return _Name(next(tensors))
            if type(value) in _PLAIN and not (dynamic and type(value) is int):
                return value
            space[name := f"c{len(space)}"] = value
            return _Name(name)

        x, args, kwargs = pytree.tree_unflatten([named(v) for v in self.flat], self.spec)
        arguments = [*map(repr, (x, *args)), *(f"{k}={v!r}" for k, v in kwargs.items())]
        return f"{named(self.op)}({', '.join(arguments)})"


_PLAIN = frozenset({bool, int, str, type(None)})
"""Types whose values are written into the text of a call."""


@frozen
class _Name:
    """What prints as a name."""

    text: str

    def __repr__(self) -> str:
        return self.text


def joined(calls: Sequence[Call], dynamic: bool = False) -> Callable[..., list[Any]]:
    """Return one function that makes all calls; it takes their tensors, and returns their results.

    It is compiled from text: tracing one that puts arguments together costs many times as much as
    compiling the graph.
    """
    names = [f"t{k}" for k in range(sum(len(call.tensors) for call in calls))]
    rest, space = iter(names), dict[str, Any]()
    calls_made = ", ".join(call.text(rest, space, dynamic) for call in calls)
    text = f"def run({', '.join(names)}):\n    return [{calls_made}]\n"
    exec(compile(text, "<calls>", "exec"), space)
    run: Callable[..., list[Any]] = space["run"]
    return run


@cache
def database() -> dict[str, Any]:
    """Return torch's ops by name."""
    return {".".join(filter(None, (o.name, o.variant_test_name))): o for o in op_db}


def cases(
    dtypes: Sequence[str], layouts: Sequence[Layout], modes: Sequence[str],
    shapes: Sequence[str], device: str = HOST,
) -> Iterator[Case]:  # fmt: skip
    """Return the cases of all ops; no element types mean all that an op takes there."""
    for name, info in sorted(database().items()):
        for dtype in sorted(info.supported_dtypes(device), key=str):
            short = str(dtype).removeprefix("torch.")
            if dtypes and short not in dtypes:
                continue
            learnt = info.supports_autograd and dtype in info.supported_backward_dtypes(device)
            for mode in modes:
                if mode == "forward" or learnt:
                    for layout in layouts:
                        for shape in shapes:
                            yield Case(
                                name, short, layout, mode != "forward", shape == "dynamic",
                                device=device,
                            )  # fmt: skip


def slice_of(chosen: Sequence[Case], part: int, parts: int) -> list[Case]:
    """Return the cases of one of `parts` slices, counted from 1; the same ones each time.

    Cases of an op lie one after another in a fixed order of types, layouts and modes: every n-th
    of them would have but few of these. They are mixed first.
    """
    mixed = list(chosen)
    random.Random(0).shuffle(mixed)
    return mixed[part - 1 :: parts]


def calls(case: Case) -> list[Call]:
    """Return the calls of a case: those of its samples that take dense tensors."""
    info, samples = database()[case.op], []
    dtype = getattr(torch, case.dtype)
    set_rng_seed(0)  # type: ignore[no-untyped-call]
    # `OpInfo.sample_inputs` reads the source of the whole call stack twice first.
    for sample in info.sample_inputs_func(info, case.device, dtype, requires_grad=case.gradients):
        flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        if any(isinstance(v, torch.Tensor) and v.layout is not torch.strided for v in flat):
            continue
        if case.layout == "strided":
            strided = sample.noncontiguous()
            flat, spec = pytree.tree_flatten((strided.input, strided.args, strided.kwargs))
        elif case.layout == "channels-last":
            flat = [_last(v) for v in flat]
        call = Call(info.op, flat, spec)
        if case.layout != "channels-last" or any(_is_last(t) for t in call.tensors):
            samples.append(call)
    step = 1 if case.most is None else -(-len(samples) // case.most)
    return samples[:: max(step, 1)]


def _last(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() != 4:
        return value
    copy = value.detach().contiguous(memory_format=torch.channels_last)
    return copy.requires_grad_(value.requires_grad)


def _is_last(t: torch.Tensor) -> bool:
    return t.dim() == 4 and not t.is_contiguous()


def copied(t: torch.Tensor) -> torch.Tensor:
    """Return a leaf with the same elements, strides and offset."""
    if t.is_conj() or t.is_neg() or not t.numel():
        copy = t.detach().clone()
    else:
        size = t.untyped_storage().nbytes() // t.itemsize
        whole = torch.as_strided(t.detach(), (size,), (1,), 0).clone()
        copy = torch.as_strided(whole, t.shape, t.stride(), t.storage_offset())
    return copy.requires_grad_(t.requires_grad)
