"""`python -m gyrator_conformance.strides`: find ops whose fake results have other strides.

The samples of torch's own database, on turned, sliced and expanded tensors, and the models of the
suite run in eager mode, forward and backward. Each op of ATen that they call runs again on fake
tensors, with the corrections of `numerics="bitwise"`, and the strides are compared.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gyrator.frontend.dynamo.eager_strides import with_eager_strides
from gyrator_conformance.cells import Keyword
from gyrator_conformance.models import Model, all_models
from gyrator_conformance.opinfo.samples import Call, Case, calls, database
from gyrator_ir.types import HOST

_LARGE = 3000
"""Samples with tensors of more elements are left out."""


def turned(x: Tensor) -> Tensor:
    """Return a copy whose axes lie in reverse order."""
    return _in_order(x, range(x.dim())[::-1])


def _rotated(x: Tensor) -> Tensor:
    """Return a copy whose second axis is the innermost one, as channels are in `channels_last`."""
    return _in_order(x, (0, *range(2, x.dim()), 1))


def _in_order(x: Tensor, order: Sequence[int]) -> Tensor:
    back = [order.index(d) for d in range(x.dim())]
    return x.permute(tuple(order)).contiguous().permute(back)


def _sliced(x: Tensor) -> Tensor:
    whole = x.new_zeros([2 * n for n in x.shape])
    return whole[tuple(slice(None, None, 2) for _ in x.shape)].copy_(x)


LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "given": lambda x: x,
        "turned": turned,
        "rotated": _rotated,
        "sliced": _sliced,
        "expanded": lambda x: x[:1].expand(x.shape),
    }
)
"""Copies of a tensor with at least two axes."""


class Comparison(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each op of ATen on fake tensors, too, and keeps the first difference of each result."""

    def __init__(self, corrected: bool = True) -> None:
        """Compare fake kernels as bitwise mode corrects them, or as torch has them."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.corrected = corrected
        self.equal: set[str] = set()
        self.different: dict[str, str] = {}
        """By op and index of the result: arguments and strides."""
        self._compared: set[tuple[object, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an op, and once more on fake tensors."""
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func._schema.is_mutable and not func.is_view:
            call = (func, *map(_shown, pytree.tree_leaves((args, kwargs))))
            if call not in self._compared:
                self._compared.add(call)
                self._compare(func, args, kwargs or {}, result)
        return result

    def _compare(self, func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> None:
        mode = FakeTensorMode()
        fake_args, fake_kwargs = pytree.tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
        try:
            with mode:
                if self.corrected:
                    with with_eager_strides(mode):
                        fakes = pytree.tree_leaves(func(*fake_args, **fake_kwargs))
                else:
                    fakes = pytree.tree_leaves(func(*fake_args, **fake_kwargs))
        except Exception:  # an op whose shapes depend on values, or that has no fake kernel
            return
        for k, (fake, real) in enumerate(zip(fakes, pytree.tree_leaves(result), strict=True)):
            if not isinstance(real, Tensor) or real.layout is not torch.strided:
                continue
            name = f"{func}[{k}]"
            if _steps(fake) == _steps(real):
                self.equal.add(name)
            elif name not in self.different:
                inputs = ", ".join(map(_shown, pytree.tree_leaves((args, kwargs))))
                self.different[name] = f"({inputs}): {fake.stride()} for {real.stride()}"


def _steps(x: Tensor) -> list[int]:
    """Return the strides of axes of several elements; others mean nothing, nor do those of empty
    tensors."""
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1 and x.numel()]


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{value.dtype}{list(value.shape)} by {value.stride()}"


def compare_op(name: str, comparison: Comparison, most: int) -> None:
    """Run at most so many samples of an op of torch's database in each layout."""
    info = database()[name]
    dtypes = info.supported_dtypes(HOST)
    dtype = next((d for d in (torch.float32, torch.int64) if d in dtypes), None)
    if dtype is None:
        return
    trains = info.supports_autograd and dtype is torch.float32
    short = str(dtype).removeprefix("torch.")
    for call in calls(Case(name, short, gradients=trains, most=most)):
        if all(t.numel() <= _LARGE for t in call.tensors):
            for flat in _laid_out(call):
                with suppress(Exception):  # eager mode refuses some samples in other layouts
                    _run(call, flat, trains, comparison)


def _laid_out(call: Call) -> Iterator[list[Any]]:
    """Return the arguments of a call with all tensors in each layout, and with the first alone."""
    for change in LAYOUTS.values():
        for alone in (False, True):
            flat, left = [], 1 if alone else len(call.flat)
            for value in call.flat:
                if isinstance(value, Tensor) and value.dim() > 1 and left:
                    left -= 1
                    value = change(value.detach())
                flat.append(value)
            yield flat


def _run(call: Call, flat: Sequence[Any], trains: bool, comparison: Comparison) -> None:
    leaves = [
        v.detach().requires_grad_(trains and v.is_floating_point()) if isinstance(v, Tensor) else v
        for v in flat
    ]
    x, args, kwargs = pytree.tree_unflatten(leaves, call.spec)
    with comparison:
        _differentiate(call.op(x, *args, **kwargs), leaves)


def _differentiate(results: Any, leaves: Sequence[Any]) -> None:
    """Compute gradients from gradients of the results in several layouts."""
    outs = [t for t in pytree.tree_leaves(results) if isinstance(t, Tensor) and t.requires_grad]
    ins = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
    if not outs or not ins:
        return
    ones = [torch.ones_like(t.detach(), memory_format=torch.contiguous_format) for t in outs]
    alike, one = [torch.ones_like(t.detach()) for t in outs], [t.new_ones(()) for t in outs]
    spread = [t.expand(o.shape) for t, o in zip(one, outs, strict=True)]
    for grads in (ones, alike, list(map(turned, ones)), spread):
        torch.autograd.grad(outs, ins, grads, retain_graph=True, allow_unused=True)


def compare_model(model: Model, comparison: Comparison) -> None:
    """Run a step of training of a model."""
    torch.manual_seed(0)
    module = model.build().train(model.trains)
    inputs = model.inputs(torch.Generator().manual_seed(1), model.size)
    with comparison, torch.set_grad_enabled(model.trains):
        _differentiate(module(*inputs), list(module.parameters()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the search; return 0 if no strides differ, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m gyrator_conformance.strides",
        description="Compare the strides of fake results and of eager's, op by op.",
    )
    parser.add_argument("-k", dest="keyword", default="", help="expression over names")
    parser.add_argument("--samples", type=int, default=6, help="of each op, default 6")
    parser.add_argument(
        "--uncorrected", action="store_true", help="torch's own fake kernels, not the corrected"
    )
    args = parser.parse_args(arguments)
    keyword, comparison = Keyword.read(args.keyword), Comparison(not args.uncorrected)
    warnings.simplefilter("ignore")
    for name in filter(keyword.matches, database()):
        compare_op(name, comparison, args.samples)
    for model in all_models().values():
        if model.family != "collective" and keyword.matches(model.name):
            compare_model(model, comparison)
    for name, detail in sorted(comparison.different.items()):
        print(name, detail)
    total = len(comparison.equal | comparison.different.keys())
    print(f"{len(comparison.different)} of {total} results of ops differ")
    return int(bool(comparison.different))


if __name__ == "__main__":
    sys.exit(main())
