"""Random numbers: Philox in kernels, or ATen's own generator."""

from collections.abc import Sequence
from typing import Any

from gyrator_ir.expr import Expr, contiguous_strides
from gyrator_lowering.builder.program import LoopBuilder, flat_index
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.extern import left_to_aten
from gyrator_lowering.table import TableBuilder

GENERATOR = "random numbers come from ATen's generator"


def philox(
    b: LoopBuilder,
    size: Sequence[Any],
    seeds: TensorValue,
    at: int,
    kind: str,
    low: Any,
    high: Any,
    *_: Any,
) -> TensorValue:
    """`gyrator::philox`: see `gyrator_lowering.torch_bridge.random_ops`."""
    out = b.out
    steps = contiguous_strides(out.shape)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        seed = ops.load(seeds, (b.symbols.size(at),))
        counter = ops.index(flat_index(index, steps))
        if kind == "randint":
            bounds = [ops.index(b.symbols.size(v)) for v in (low, high)]
            return ops.cast(ops.randint(seed, counter, *bounds), out.dtype.compute)
        if kind == "randn":
            value = ops.randn(seed, counter)
            plain = value if (low, high) == (0, 1) else None
            return value * float(high) + float(low) if plain is None else plain
        value = ops.rand(seed, counter)
        if (low, high) == (0, 1):
            return value
        return value * float(high - low) + float(low)

    return b.pointwise(body, out)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("gyrator.philox.default")(philox)
    ops = (
        "rand randn randint rand_like randn_like randint_like randperm bernoulli native_dropout "
        "normal normal_functional uniform multinomial exponential geometric cauchy log_normal "
        "random poisson"
    )
    for op in ("gyrator.philox_seed", *(f"aten.{name}" for name in ops.split())):
        table.rule(op)(left_to_aten(GENERATOR))
