"""Stores of `bf16` values that need no rounding."""

from gyrator_codegen.rounding import CHOOSING, round_to
from gyrator_ir.body.nodes import Const, Let, Load, Store, StoreMode
from gyrator_ir.body.rewrite import defined
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.types import DType


def exact_stores(kernel: Kernel) -> frozenset[int]:
    """Return the identities of a kernel's stores of `bf16` values that are elements of its
    parameters, constants, or chosen among them. The lower half of each is zero as a `float32`, also
    if it is NaN, unlike that of other values that were rounded to `bf16`."""
    elements = {p.name for p in kernel.parameters if p.dtype is DType.BF16}
    exact: set[str] = set()
    stores: set[int] = set()
    for s in kernel.statements:
        exact.difference_update(defined(s))
        match s:
            case Load(name=name, buffer=buffer) if buffer in elements:
                exact.add(name)
            case Const(name, value, DType.F32 | DType.BF16):
                if round_to(float(value), DType.BF16) == value:
                    exact.add(name)
            case Let(name, "where", (_, *args)) if exact.issuperset(args):
                exact.add(name)
            case Let(name, "cast", (arg,), DType.F32 | DType.BF16) if arg in exact:
                exact.add(name)
            case Let(name, op, args) if op in CHOOSING and exact.issuperset(args):
                exact.add(name)
            case Store(buffer=buffer, value=value, mode=StoreMode.SET):
                if buffer in elements and value in exact:
                    stores.add(id(s))
    return frozenset(stores)
