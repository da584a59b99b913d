"""Ops on lists of tensors are expanded to ops on their elements, with eager's results."""

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from gyrator_lowering.foreach import PREFIX, element_of

LISTS = [
    torch._C._get_schema(name, overload)
    for name, overload in sorted(
        {
            (s.name, s.overload_name)
            for s in torch._C._jit_get_all_schemas()
            if s.name.startswith(PREFIX) and "out" not in s.overload_name and s.returns
        }
    )
]
LEFT = {"aten::_foreach_powsum.Scalar"} | {
    f"aten::_foreach_{op}.Tensor" for op in ("addcmul", "addcdiv")
}
SHAPES = ((), (3,), (2, 5), (0, 4), (1, 1, 3))
TYPES = (torch.float32, torch.bfloat16, torch.float64)


def full(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def lists(dtypes: Any) -> list[torch.Tensor]:
    """Tensors of several dtypes and shapes, one of them transposed, with values between 0.25 and
    0.75."""
    tensors = []
    for n, shape in enumerate(SHAPES):
        x = torch.rand(shape[::-1], dtype=torch.float64).mul(0.5).add(0.25)
        tensors.append((x.mT if x.dim() > 1 else x).to(dtypes[n % len(dtypes)]))
    return tensors


def arguments(schema: Any) -> list[Any]:
    """Arguments that the op supports; an empty tensor has no maximum, and matrices are
    multiplied."""
    tensors = lists(TYPES)
    if schema.name == "aten::_foreach_max":
        tensors = [x for x in tensors if x.numel()]
    if schema.name == "aten::_foreach_mm":
        tensors = [torch.randn(3, 3), torch.randn(3, 3)]
    number = 2 if schema.name == "aten::_foreach_norm" else 1.5
    values = {
        "List[Tensor]": tensors,
        "List[number]": [0.5, 2, 1.25, 3, 0.75],
        "Tensor": torch.tensor(0.625),
        "number": number,
    }
    kinds = [str(a.type) for a in schema.arguments if not a.kwarg_only]
    return [values[kind] for kind in kinds if kind in values]


@pytest.mark.parametrize("schema", [s for s in LISTS if full(s) not in LEFT], ids=full)
def test_every_op_on_lists(check, schema: Any) -> None:
    op = getattr(getattr(torch.ops.aten, schema.name[6:]), schema.overload_name or "default")
    all_arguments = arguments(schema)
    tensors = [x for x in tree_leaves(all_arguments) if isinstance(x, torch.Tensor)]

    def run(*inputs: torch.Tensor) -> Any:
        left = iter(inputs)
        return op(
            *tree_map(lambda x: next(left) if isinstance(x, torch.Tensor) else x, all_arguments)
        )

    externs = ("aten.mm.default",) if schema.name.endswith("_mm") else ()
    # Of a power of a number, torch's fake tensors have other strides than its tensors.
    strides = schema.overload_name != "ScalarAndTensor"
    check(run, *tensors, externs=externs, strides=strides)


def test_most_ops_are_expanded() -> None:
    ops = {full(s): getattr(torch.ops.aten, s.name[6:]) for s in LISTS}
    left = {
        name
        for (name, packet), s in zip(ops.items(), LISTS, strict=True)
        if element_of(getattr(packet, s.overload_name or "default")) is None
    }
    assert left <= LEFT


def test_in_place_lists_that_share_elements(check) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> Any:
        torch._foreach_mul_([x, y], 0.5)
        torch._foreach_add_([x[:2], y], [y[:2], x], alpha=2)
        torch._foreach_copy_([y], [x.half()])
        return torch._foreach_clone([x, y])

    check(run, torch.randn(4, 3), torch.randn(4, 3))


def test_symbolic_sizes(check) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch._foreach_addcmul([x, y], [x, y], [y.sum(), x.sum()], 0.5)

    check(run, torch.randn(3, 4), torch.randn(5), other=(torch.randn(6, 2), torch.randn(7)))
